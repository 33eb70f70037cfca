"""Intervals and tests for scores of samples that share questions.

The same question asked at another length, or of another method, is not a new observation: whole questions (clusters) are
resampled. Everything is seeded and so gives the same figures again; nothing here ever returns NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from pimem.errors import DataError

DRAWS = 10_000
"""Bootstrap resamples."""

_BLOCK = 4_000_000
"""Most numbers of a block of resamples in memory at a time."""


@dataclass(frozen=True)
class Estimate:
    """A mean, or a difference of means, with its interval. In the unit of the scores that went in."""

    value: float
    low: float
    high: float
    n: int
    """Scores that went in."""
    clusters: int
    level: float
    how: str
    """wilson, cluster bootstrap, paired cluster bootstrap, or clopper-pearson where a bootstrap has no width."""

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def excludes(self, value: float) -> bool:
        return not self.low <= value <= self.high


@dataclass(frozen=True)
class Paired:
    """Whether two methods differ on the same samples."""

    difference: Estimate
    """First minus second."""
    only_first: int
    """Samples that the first got right and the second wrong; both counts are 0 for scores other than 0 and 1."""
    only_second: int
    p_value: float | None
    """Two-sided exact McNemar; None where scores are not all 0 or 1, or a cluster has more than one sample."""


def mean(scores: Sequence[float], clusters: Sequence[Any], level: float = 0.95, seed: int = 0) -> Estimate:
    """The mean and its interval, clustered.

    Wilson's interval where every score is 0 or 1 and every cluster has one sample; otherwise the percentile interval of a
    cluster bootstrap, which with fewer than some twenty clusters is on the narrow side. Scores in 0..1 that leave the
    bootstrap no width get the interval that the clusters leave open, since a cell of only right answers is no proof of
    perfection. Raises `DataError` for empty, missing or unequal input.
    """
    values, ids = _checked(scores, clusters, level)
    k = int(ids.max()) + 1
    if k == len(values) and _binary(values):
        return Estimate(float(values.mean()), *wilson(int(values.sum()), k, level), len(values), k, level, "wilson")
    draws = _bootstrap(values, ids, seed)
    return _estimate(float(values.mean()), draws, values, k, level, (0.0, 1.0))


def macro_mean(
    scores: Sequence[float], groups: Sequence[Any], clusters: Sequence[Any], level: float = 0.95, seed: int = 0
) -> Estimate:
    """The unweighted mean over groups (lengths, tasks) of their means, as the paper's tables average, clustered over groups.

    A resample that happens to leave a group empty takes that group's own mean. Raises as `mean`.
    """
    values, ids = _checked(scores, clusters, level)
    if len(groups) != len(values):
        raise DataError(f"{len(values)} scores but {len(groups)} groups; each score needs its group")
    group = _codes(groups, "group")
    g, k = int(group.max()) + 1, int(ids.max()) + 1
    means = np.bincount(group, values, g) / np.bincount(group, minlength=g)
    sums, counts = np.zeros((k, g)), np.zeros((k, g))
    np.add.at(sums, (ids, group), values)
    np.add.at(counts, (ids, group), 1)
    draws = []
    for weights in _resamples(k, seed, width=g):
        total = weights @ counts
        draws.append(np.where(total > 0, (weights @ sums) / np.maximum(total, 1), means).mean(axis=1))
    return _estimate(float(means.mean()), np.concatenate(draws), values, k, level, (0.0, 1.0))


def paired(
    first: Sequence[float], second: Sequence[float], clusters: Sequence[Any], level: float = 0.95, seed: int = 0
) -> Paired:
    """Two methods on the same samples, in the same order: difference of means, interval and exact McNemar test.

    The interval is a paired cluster bootstrap's, and where that has no width what the clusters leave open, as in `mean`.
    Raises `DataError` for unequal lengths and as `mean`.
    """
    if len(first) != len(second):
        raise DataError(f"{len(first)} scores of the first method but {len(second)} of the second; pair them by sample")
    a, ids = _checked(first, clusters, level)
    b, _ = _checked(second, clusters, level)
    k, gap = int(ids.max()) + 1, a - b
    difference = _estimate(
        float(gap.mean()), _bootstrap(gap, ids, seed), gap, k, level, (-1.0, 1.0), "paired cluster bootstrap"
    )
    if not (_binary(a) and _binary(b)):
        return Paired(difference, 0, 0, None)
    only_first, only_second = int((gap > 0).sum()), int((gap < 0).sum())
    return Paired(difference, only_first, only_second, mcnemar(only_first, only_second) if k == len(a) else None)


def wilson(right: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share, without continuity correction (Wilson 1927)."""
    if n < 1 or not 0 <= right <= n:
        raise DataError(f"{right} right of {n}: a share needs at least one sample and no more right than there are")
    z = _z(level)
    share = right / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (0.0 if right == 0 else centre - half), (1.0 if right == n else centre + half)


def mcnemar(only_first: int, only_second: int) -> float:
    """Two-sided exact p-value of McNemar's test from the two discordant counts; 1 where there are none."""
    if only_first < 0 or only_second < 0:
        raise DataError(f"discordant counts cannot be negative: {only_first} and {only_second}")
    n = only_first + only_second
    tail = sum(math.comb(n, i) for i in range(min(only_first, only_second) + 1))
    return min(1.0, float(2 * tail / 2**n)) if n else 1.0


def half_width(n: int, share: float = 0.5, level: float = 0.95) -> float:
    """Half the width of Wilson's interval that n independent samples allow at a share: what a cell can tell at best."""
    if n < 1 or not 0 <= share <= 1:
        raise DataError(f"half-width of {n} samples at a share of {share}: needs n of 1 or more and a share in 0..1")
    z = _z(level)
    return z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))


def _z(level: float) -> float:
    if not 0 < level < 1:
        raise DataError(f"confidence level {level}: must lie between 0 and 1, such as 0.95")
    return NormalDist().inv_cdf(0.5 + level / 2)


def _checked(scores: Sequence[float], clusters: Sequence[Any], level: float) -> tuple[np.ndarray, np.ndarray]:
    _z(level)
    values = np.asarray(scores, dtype=float)
    if values.ndim != 1 or not len(values):
        raise DataError("no scores: an interval needs at least one")
    if not np.isfinite(values).all():
        raise DataError(f"{int((~np.isfinite(values)).sum())} of {len(values)} scores are missing or infinite")
    if len(clusters) != len(values):
        raise DataError(f"{len(values)} scores but {len(clusters)} cluster ids; each score needs its question's id")
    return values, _codes(clusters, "cluster")


def _codes(ids: Sequence[Any], what: str) -> np.ndarray:
    """Consecutive integers for ids, in the ids' own order, so that the order of rows changes nothing."""
    names = list(ids)
    for i, name in enumerate(names):
        if name is None or name == "" or name != name:
            raise DataError(f"the {what} id of score {i} is missing; without it dependent scores would count as independent")
    codes = {name: code for code, name in enumerate(sorted(set(names), key=lambda name: (str(type(name)), name)))}
    return np.array([codes[name] for name in names], dtype=np.int64)


def _binary(values: np.ndarray) -> bool:
    return bool(((values == 0) | (values == 1)).all())


def _resamples(k: int, seed: int, width: int = 1) -> Iterator[np.ndarray]:
    """How often each of k clusters was drawn, in blocks of shape (draws, k)."""
    rng = np.random.default_rng(seed)
    block = max(1, min(DRAWS, _BLOCK // max(k, width)))
    for start in range(0, DRAWS, block):
        yield rng.multinomial(k, np.full(k, 1 / k), size=min(block, DRAWS - start)).astype(float)


def _bootstrap(values: np.ndarray, ids: np.ndarray, seed: int) -> np.ndarray:
    """Means of the resamples, shape (draws,)."""
    k = int(ids.max()) + 1
    sums, counts = np.bincount(ids, values, k), np.bincount(ids, minlength=k).astype(float)
    return np.concatenate([(weights @ sums) / (weights @ counts) for weights in _resamples(k, seed)])


def _estimate(
    value: float,
    draws: np.ndarray,
    values: np.ndarray,
    k: int,
    level: float,
    bounds: tuple[float, float],
    how: str = "cluster bootstrap",
) -> Estimate:
    low, high = (float(q) for q in np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2]))
    bottom, top = bounds
    if high - low < 1e-12 and bottom <= values.min() and values.max() <= top:
        # Clopper and Pearson: the largest share that k clusters can hide when none of them shows it.
        unseen = 1 - (0.5 - level / 2) ** (1 / k)
        low, high, how = value - (value - bottom) * unseen, value + (top - value) * unseen, "clopper-pearson"
    return Estimate(value, min(low, value), max(high, value), len(values), k, level, how)
