"""Advantages of whole trajectories, and how every row of a trajectory gets its own.

A row is one model call; a trajectory is all calls of one rollout; a group is the rollouts of one prompt. Baselines are taken
over trajectories before anything is spread over rows, so that a trajectory of many calls weighs no more than one of few.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from pimem.errors import ConfigError


def check_group(size: int) -> None:
    """Raises `ConfigError` for a group of fewer than two rollouts, of which every advantage would be zero."""
    if size < 2:
        raise ConfigError(
            f"group: {size} rollout(s) a prompt have no baseline, so every advantage would be zero and nothing would be "
            "learned (equation 5); give at least 2"
        )


def trajectory(rewards: Sequence[float], groups: Sequence[Hashable]) -> np.ndarray:
    """Dr. GRPO's advantage of each trajectory: its reward minus the mean of its group, not divided by anything (equation 5).

    `rewards`, `groups`: one a trajectory. Returns float64, shape (trajectories,). A trajectory whose siblings are all missing
    gets 0; `keep` says which those are. Raises `ValueError` for rewards that are not finite or not one a trajectory.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if values.shape != (len(groups),):
        raise ValueError(f"{values.shape} rewards for {len(groups)} trajectories; give one each")
    if not np.isfinite(values).all():
        raise ValueError(f"trajectory {int(np.flatnonzero(~np.isfinite(values))[0])}: its reward is not a finite number")
    out = np.zeros_like(values)
    for members in _members(groups).values():
        out[members] = values[members] - values[members].mean()
    return out


def turn(steps: Sequence[Sequence[float]]) -> list[np.ndarray]:
    """Advantages of single turns within one group: a turn's reward minus the mean over the trajectories alive at that turn.

    `steps`: the rewards of each trajectory's turns, ragged. Returns float64 arrays of the same lengths (GRU-Mem's turn-level
    advantage; G_t trajectories reach turn t). A turn that only one trajectory reaches gets 0.
    """
    longest = max(map(len, steps), default=0)
    means = [np.mean([s[t] for s in steps if t < len(s)]) for t in range(longest)]
    return [np.asarray(s, dtype=np.float64) - np.asarray(means[: len(s)], dtype=np.float64) for s in steps]


def mixed(
    rewards: Sequence[float],
    groups: Sequence[Hashable],
    steps: Sequence[Sequence[float]],
    alpha: float,
    owner: Sequence[int],
    step: Sequence[int],
) -> np.ndarray:
    """`alpha` times the trajectory's advantage plus (1 - `alpha`) times the turn's, for each row.

    `rewards`, `groups`, `steps`: one a trajectory. `owner`: trajectory of each row; `step`: which of its owner's `steps` a
    row is, -1 for one that has none (the final answer of GRU-Mem), whose turn-level part is 0. Returns float64, shape (rows,).
    GRU-Mem: alpha 0.9, 1 or 0.5; ReMemR1: 0.8. Raises `ConfigError` for an alpha outside 0..1 and `ValueError` for a row
    that points at no trajectory or step.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"alpha: {alpha} is no share; give a number from 0 to 1")
    if len(steps) != len(groups) or len(owner) != len(step):
        raise ValueError(f"{len(steps)} lists of steps for {len(groups)} trajectories, {len(step)} steps for {len(owner)} rows")
    whole = trajectory(rewards, groups)
    single: list[np.ndarray] = [np.zeros(0)] * len(groups)
    for members in _members(groups).values():
        for member, values in zip(members, turn([steps[m] for m in members]), strict=True):
            single[member] = values
    out = np.empty(len(owner))
    for row, (of, at) in enumerate(zip(owner, step, strict=True)):
        if not 0 <= of < len(groups) or not -1 <= at < len(single[of]):
            raise ValueError(f"row {row} is step {at} of trajectory {of}, which does not exist")
        out[row] = alpha * whole[of] + (1 - alpha) * (single[of][at] if at >= 0 else 0.0)
    return out


def keep(accuracy: Sequence[float], groups: Sequence[Hashable], drop_equal: bool = False) -> np.ndarray:
    """Which trajectories are trained on: bool, shape (trajectories,).

    Left out are lone survivors, whose siblings are missing and who so have no baseline, and, if `drop_equal`, groups that are
    all equally accurate. Give it accuracies: by whole rewards with a bonus on every trajectory, a group of wrong answers that
    differ in turns would stay, and teach to give up early. The released trainer goes by whole rewards, with the bonus on right
    answers only; `accuracy` may be those.
    """
    values = np.asarray(accuracy, dtype=np.float64)
    out = np.ones(len(groups), dtype=bool)
    for members in _members(groups).values():
        if len(members) < 2 or (drop_equal and np.ptp(values[members]) == 0):
            out[members] = False
    return out


def broadcast(
    advantages: Sequence[float] | np.ndarray, owner: Sequence[int], masks: Sequence[Sequence[int] | np.ndarray]
) -> list[np.ndarray]:
    """The advantage of each row's trajectory on every one of its response tokens, 0 where the row's own mask is 0.

    `owner`: trajectory of each row; `masks`: the response mask of each row, ragged. Returns float64 arrays of the masks'
    lengths. With advantages that are one a row already (`mixed`), `owner` is range(rows).
    """
    values = np.asarray(advantages, dtype=np.float64)
    return [values[of] * np.asarray(mask, dtype=np.float64) for of, mask in zip(owner, masks, strict=True)]


def _members(groups: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for number, group in enumerate(groups):
        found[group].append(number)
    return found
