"""Intervals and tests for scores of samples that share questions.

The same question asked at another length, or of another method, is not a new observation: whole questions (clusters) are
resampled. Everything is seeded and so gives the same figures again; nothing here ever returns NaN.
"""

from __future__ import annotations

import functools
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

_KEPT = 8_000_000
"""Most numbers of resamples kept for the next estimate over as many clusters."""


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
    scores: Sequence[float],
    groups: Sequence[Any],
    clusters: Sequence[Any],
    level: float = 0.95,
    seed: int = 0,
    strata: Sequence[Any] | None = None,
) -> Estimate:
    """The unweighted mean over groups (lengths, tasks) of their means, as the paper's tables average, clustered over groups.

    `strata` are what the clusters were drawn from apart (the tasks, each with questions of its own): every resample keeps the
    number of clusters of each. A resample that happens to leave a group empty takes that group's own mean. Raises as `mean`,
    and `DataError` for a cluster that lies in two strata.
    """
    values, ids = _checked(scores, clusters, level)
    return _macro(values, ids, groups, strata, level, seed, (0.0, 1.0), "cluster bootstrap")


def paired(
    first: Sequence[float],
    second: Sequence[float],
    clusters: Sequence[Any],
    level: float = 0.95,
    seed: int = 0,
    groups: Sequence[Any] | None = None,
    strata: Sequence[Any] | None = None,
) -> Paired:
    """Two methods on the same samples, in the same order: difference of means, interval and exact McNemar test.

    The interval is a paired cluster bootstrap's, and where that has no width what the clusters leave open, as in `mean`.
    With `groups` the difference is that of the means which `macro_mean` takes. Raises `DataError` for unequal lengths and as
    `mean` and `macro_mean`.
    """
    if len(first) != len(second):
        raise DataError(f"{len(first)} scores of the first method but {len(second)} of the second; pair them by sample")
    a, ids = _checked(first, clusters, level)
    b, _ = _checked(second, clusters, level)
    k, gap, how = int(ids.max()) + 1, a - b, "paired cluster bootstrap"
    if groups is None:
        difference = _estimate(float(gap.mean()), _bootstrap(gap, ids, seed), gap, k, level, (-1.0, 1.0), how)
    else:
        difference = _macro(gap, ids, groups, strata, level, seed, (-1.0, 1.0), how)
    if not (_binary(a) and _binary(b)):
        return Paired(difference, 0, 0, None)
    only_first, only_second = int((gap > 0).sum()), int((gap < 0).sum())
    return Paired(difference, only_first, only_second, mcnemar(only_first, only_second) if k == len(a) else None)


def wilson(right: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share, without continuity correction (Wilson 1927).

    `right` may be a sum of scores in 0..1 instead of a count: such scores vary at most as much as shares do, so the interval
    is then at least as wide as it need be. Raises `DataError` for no samples, and for more right than there are.
    """
    if n < 1 or not 0 <= right <= n:
        raise DataError(f"{right:g} right of {n}: a share needs at least one sample and no more right than there are")
    share = right / n
    z, half = _z(level), half_width(n, share, level)
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    return (0.0 if right == 0 else centre - half), (1.0 if right == n else centre + half)


def newcombe(first: float, its: tuple[float, float], second: float, others: tuple[float, float]) -> tuple[float, float]:
    """The interval of first minus second, two independent values, from the interval of each (Newcombe 1998, method 10)."""
    gap = first - second
    return gap - math.hypot(first - its[0], others[1] - second), gap + math.hypot(its[1] - first, second - others[0])


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


def _macro(
    values: np.ndarray,
    ids: np.ndarray,
    groups: Sequence[Any],
    strata: Sequence[Any] | None,
    level: float,
    seed: int,
    bounds: tuple[float, float],
    how: str,
) -> Estimate:
    for what, given in (("group", groups), ("stratum", strata)):
        if given is not None and len(given) != len(values):
            raise DataError(f"{len(values)} scores but {len(given)} of a {what}; each score needs its {what}")
    group = _codes(groups, "group")
    g, k = int(group.max()) + 1, int(ids.max()) + 1
    sizes: tuple[int, ...] = (k,)
    if strata is not None:
        ids, sizes = _by_stratum(ids, _codes(strata, "stratum"))
    means = np.bincount(group, values, g) / np.bincount(group, minlength=g)
    sums, counts = np.zeros((k, g)), np.zeros((k, g))
    np.add.at(sums, (ids, group), values)
    np.add.at(counts, (ids, group), 1)
    draws = []
    for weights in _resamples(sizes, seed, width=g):
        total = weights @ counts
        draws.append(np.where(total > 0, (weights @ sums) / np.maximum(total, 1), means).mean(axis=1))
    return _estimate(float(means.mean()), np.concatenate(draws), values, k, level, bounds, how)


def _by_stratum(ids: np.ndarray, strata: np.ndarray) -> tuple[np.ndarray, tuple[int, ...]]:
    """Cluster ids renumbered so that those of a stratum follow one another, and the clusters of each stratum."""
    pairs = np.unique(np.stack([strata, ids]), axis=1)
    if pairs.shape[1] > len(np.unique(ids)):
        raise DataError("a cluster lies in two strata; name clusters by what they were drawn from")
    place = np.empty(pairs.shape[1], dtype=np.int64)
    place[pairs[1]] = np.arange(pairs.shape[1])
    return place[ids], tuple(np.bincount(pairs[0]).tolist())


def _resamples(sizes: tuple[int, ...], seed: int, width: int = 1) -> Iterator[np.ndarray]:
    """How often each cluster was drawn, in blocks of shape (draws, clusters); `sizes` are the clusters of each stratum."""
    k = sum(sizes)
    if k * DRAWS <= _KEPT:
        yield from (block.astype(float) for block in _kept(sizes, seed, DRAWS))
    else:
        yield from _drawn(sizes, seed, DRAWS, max(k, width))


@functools.lru_cache(maxsize=4)
def _kept(sizes: tuple[int, ...], seed: int, draws: int) -> list[np.ndarray]:
    """Resamples that the cells of one table share: drawing them takes longer than using them."""
    return [block.astype(np.uint16) for block in _drawn(sizes, seed, draws, sum(sizes))]


def _drawn(sizes: tuple[int, ...], seed: int, draws: int, width: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    block = max(1, min(draws, _BLOCK // width))
    for start in range(0, draws, block):
        n = min(block, draws - start)
        yield np.hstack([rng.multinomial(k, np.full(k, 1 / k), size=n) for k in sizes]).astype(float)


def _bootstrap(values: np.ndarray, ids: np.ndarray, seed: int) -> np.ndarray:
    """Means of the resamples, shape (draws,)."""
    k = int(ids.max()) + 1
    sums, counts = np.bincount(ids, values, k), np.bincount(ids, minlength=k).astype(float)
    return np.concatenate([(weights @ sums) / (weights @ counts) for weights in _resamples((k,), seed)])


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
