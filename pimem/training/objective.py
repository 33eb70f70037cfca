"""The objective of equations 6 to 8 in float64 numpy: the trainer's own loss is checked against it, nothing trained with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CLIP = 0.2
"""Clip ratio of the paper (Supplement Table 1)."""
KL = 1e-3
"""Coefficient beta of the KL term (Supplement Table 1)."""
RELEASED_DUAL_CLIP = 3.0
"""Constant of the second clip that the released trainer has and equation 6 does not."""


@dataclass(frozen=True)
class Row:
    """One model call of a trajectory. All arrays have shape (response tokens,)."""

    new: np.ndarray
    """Log-probability of each response token under the policy being trained."""
    old: np.ndarray
    """Under the policy that generated it."""
    reference: np.ndarray
    """Under the frozen reference policy."""
    advantage: np.ndarray
    """As `advantages.broadcast` gives it."""
    mask: np.ndarray
    """1 where the token counts."""


@dataclass(frozen=True)
class Objective:
    """The objective of one batch and what it consists of. The loss that is minimised is `-value`."""

    value: float
    surrogate: float
    """Token mean of the clipped term."""
    kl: float
    """Token mean of the KL estimate, not yet multiplied by beta."""
    clipped: float
    """Share of tokens at which the clipped term is the smaller one."""
    tokens: int
    """Z, the tokens counted."""


def ratio(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Policy ratio of each token (equation 7)."""
    return np.exp(np.asarray(new, dtype=np.float64) - np.asarray(old, dtype=np.float64))


def surrogate(rho: np.ndarray, advantage: np.ndarray, clip: float = CLIP, dual_clip: float | None = None) -> np.ndarray:
    """Clipped term of each token (equation 6). `dual_clip`: where the advantage is negative, at least this times it."""
    term = np.minimum(rho * advantage, np.clip(rho, 1 - clip, 1 + clip) * advantage)
    return term if dual_clip is None else np.where(advantage < 0, np.maximum(term, dual_clip * advantage), term)


def k3(new: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Estimate of KL(policy || reference) at each token: never negative, and right in the mean over the policy's tokens."""
    difference = np.asarray(reference, dtype=np.float64) - np.asarray(new, dtype=np.float64)
    return np.exp(difference) - difference - 1


def objective(rows: Sequence[Row], clip: float = CLIP, beta: float = KL, dual_clip: float | None = None) -> Objective:
    """The mean over all response tokens of all rows of the clipped term minus beta times the KL estimate (equation 8).

    `dual_clip` None is the paper's equation 6, `RELEASED_DUAL_CLIP` what the released trainer does. Raises `ValueError` where
    no token counts.
    """
    mask = np.concatenate([np.asarray(r.mask, dtype=bool) for r in rows]) if rows else np.zeros(0, dtype=bool)
    if not mask.any():
        raise ValueError("no response token counts, so the objective has no value")
    new, old, reference, advantage = (
        np.concatenate([np.asarray(getattr(r, name), dtype=np.float64) for r in rows])[mask]
        for name in ("new", "old", "reference", "advantage")
    )
    rho = ratio(new, old)
    term, kl = surrogate(rho, advantage, clip, dual_clip), k3(new, reference)
    return Objective(
        value=float(np.mean(term - beta * kl)),
        surrogate=float(np.mean(term)),
        kl=float(np.mean(kl)),
        clipped=float(np.mean(np.clip(rho, 1 - clip, 1 + clip) * advantage < rho * advantage)),
        tokens=int(mask.sum()),
    )
