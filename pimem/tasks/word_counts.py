"""RULER's two tasks of counting: common words of a numbered list, and frequent words of a coded text.

common_words: in a shuffled numbered list ten words stand 30 times and the others 3 times (6 and 1 below 4,096 tokens).
frequent_words: made-up words whose counts fall with the square of their rank (a zeta distribution, alpha 2); the first rank is
dots, the next three are asked for. Parameters are RULER's, the wording is our own, and no worked example comes first.
"""

from __future__ import annotations

import itertools
import math
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pimem.config import TaskSpec, as_dict, canonical_hash
from pimem.errors import ConfigError
from pimem.records import Evidence, Sample
from pimem.tasks import haystacks
from pimem.tasks.base import Built, Draw, check_range, digest
from pimem.tasks.pieces import Assembled, Filled, Pieces, cut, fill_exactly, joined
from pimem.tokens import LongText, Tokenizer

FORMAT = 1
"""Goes up when samples are made differently."""
COMMON = 10
"""Common words of a list, all asked for."""
DOTS = "..."
"""The first rank of a coded text: noise."""
FREQUENT = 3
"""Coded words asked for: ranks 2 to 4."""
SHOWN = 512
"""Most places kept of one answer: a coded text says it tens of thousands of times, so these stand evenly among them all."""
_JOINER = " "
_SHORT = 4096
_FEWEST_OTHERS = 10
_FEWEST_CODED = 74  # From here on rank 4 stands more often than rank 5.


@dataclass(frozen=True)
class Listed:
    """The words of one sample before they are shuffled, for any size of it."""

    words: list[str]
    """By rank."""
    counts: Callable[[int], np.ndarray]
    """Size to how often each of the first words stands there."""
    asked: slice
    """Ranks asked for."""
    most: int | None
    """The largest size; None where there is none."""


def build(task: TaskSpec, tokenizer: Tokenizer) -> WordCounts:
    """common_words or frequent_words, as `task.name` says. Raises `ConfigError` as `pimem.tasks.base.build`."""
    return WordCounts(task, tokenizer)


class WordCounts:
    """See `pimem.tasks.base.Task`. The words asked for are the same at every length.

    Where a list of common words would need more words than there are, every word stands there more often, in the same ratio,
    and `meta["times"]` says how many times RULER's numbers.
    """

    metric = "multi_recall"
    unit = "tokens"

    def __init__(self, task: TaskSpec, tokenizer: Tokenizer):
        if task.params:
            raise ConfigError(f"task {task.name}: params: it has none, got {', '.join(task.params)}; leave them out")
        self.name = task.name
        self._task, self._pieces = task, Pieces(tokenizer)
        self._numbered = task.name == "common_words"
        self._number_sums = np.zeros(1, dtype=np.int64)
        self.data_hash = canonical_hash([haystacks.vocabulary()[1] if self._numbered else DOTS, FORMAT], 64)
        self._built = Built({"task": as_dict(task), "data": self.data_hash, "tokenizer": tokenizer.hash})

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        check_range(n, start, None, self.name)
        return (self._sample(i) for i in range(start, start + n))

    def _sample(self, index: int) -> Sample:
        key = f"{self.name} {self._task.seed} {index}"
        recipe = self._built.get(index) or {}
        times = recipe.get("times")
        if not isinstance(times, int) or times < 1:
            times, recipe = self._times(key), {}
        listed = self._listed(key, times)
        try:
            filled, long = fill_exactly(
                self._task.length,
                lambda size: self._quick(key, listed, size),
                lambda size: self._made(key, listed, size)[0],
                listed.most,
                Filled.of(recipe),
            )
        except ValueError as error:
            raise ConfigError(
                f"task {self.name}: length {self._task.length:,} is too short for counts that differ, {error} tokens"
            ) from None
        evidence = self._evidence(long, key, listed, filled.units)
        answers = tuple(listed.words[listed.asked])
        meta: dict[str, Any] = {**filled._asdict(), "times": times}
        self._built.keep(index, meta | {"evidence": [[e.start, e.end] for e in evidence], "ids": digest(long.ids)})
        return Sample(
            id=f"{self.name}-{self._task.length}-{index}",
            cluster=f"{self.name}-{index}",
            question=self._question(),
            answers=answers,
            context_ids=long.ids,
            evidence=tuple(evidence),
            meta=meta | {"occurrences": listed.counts(filled.units)[listed.asked].tolist()},
        )

    def _question(self) -> str:
        if self._numbered:
            return f"Which {COMMON} words stand most often in the numbered list? Name all {COMMON}."
        return f"Which {FREQUENT} coded words stand most often in the text, not counting the dots? Name all {FREQUENT}."

    def _times(self, key: str) -> int:
        """How many times RULER's numbers of repetitions it takes for the vocabulary to reach the length."""
        for times in itertools.count(1):
            listed = self._listed(key, times)
            if listed.most is None or self._quick(key, listed, listed.most) > self._task.length:
                return times
        raise AssertionError("unreachable")

    def _listed(self, key: str, times: int) -> Listed:
        if not self._numbered:
            # A search looks at sizes up to eight times the length, and a rank's number is at most the root of the size.
            made = itertools.islice(coded(key), 3 * math.isqrt(self._task.length) + 16)
            return Listed([DOTS, *made], zeta_counts, slice(1, 1 + FREQUENT), None)
        vocabulary = haystacks.vocabulary()[0]
        often, seldom = (6, 1) if self._task.length < _SHORT else (30, 3)
        words = [vocabulary[i] for i in Draw("words", key).order(len(vocabulary))]

        def counts(size: int) -> np.ndarray:
            return np.repeat([often * times, seldom * times], [COMMON, _FEWEST_OTHERS + size])

        return Listed(words, counts, slice(0, COMMON), len(words) - COMMON - _FEWEST_OTHERS)

    def _ranks(self, key: str, listed: Listed, size: int) -> np.ndarray:
        """The rank of each word of the text, in the order in which they stand."""
        counts = listed.counts(size)
        ranks = np.repeat(np.arange(len(counts)), counts)
        return ranks[Draw("shuffle", key, len(ranks)).order(len(ranks))]

    def _quick(self, key: str, listed: Listed, size: int) -> int:
        counts = listed.counts(size)
        sizes = self._pieces.sizes([joined(word, _JOINER) for word in listed.words[: len(counts)]])
        total, entries = int(counts @ sizes), int(counts.sum())
        if self._numbered:
            total += self._numbers(entries)
            outer = "1."
        else:
            outer = listed.words[self._ranks(key, listed, size)[0]]
        bare, inner = self._pieces.sizes([outer, joined(outer, _JOINER)])
        return total + int(bare) - int(inner)

    def _numbers(self, n: int) -> int:
        """Tokens of the numbers 1 to n of a list."""
        if n >= len(self._number_sums):
            sizes = self._pieces.sizes([f" {i}." for i in range(len(self._number_sums), n + 1)])
            self._number_sums = np.concatenate([self._number_sums, self._number_sums[-1] + np.cumsum(sizes)])
        return int(self._number_sums[n])

    def _made(self, key: str, listed: Listed, size: int) -> tuple[Assembled | LongText, list[str], np.ndarray]:
        """The text, its pieces and the rank of each word."""
        ranks = self._ranks(key, listed, size)
        parts = [listed.words[rank] for rank in ranks]
        if self._numbered:
            parts = [part for number, word in enumerate(parts, start=1) for part in (f"{number}.", word)]
        pieces = cut(parts, _JOINER)
        return self._pieces.assemble(pieces), pieces, ranks

    def _evidence(self, long: Assembled | LongText, key: str, listed: Listed, size: int) -> list[Evidence]:
        """Where the words asked for stand, in order."""
        ranks = self._ranks(key, listed, size)
        lengths = np.array([len(word) for word in listed.words])[ranks] + len(_JOINER)
        if self._numbered:
            digits = np.char.str_len(np.arange(1, len(ranks) + 1).astype(str))
            lengths += digits + len(".") + len(_JOINER)
        ends = np.cumsum(lengths) - len(_JOINER)
        found = []
        for rank in range(len(listed.words))[listed.asked]:
            places = np.flatnonzero(ranks == rank)
            word = listed.words[rank]
            for at in places[:: -(-len(places) // SHOWN)]:
                end = int(ends[at])
                found.append(Evidence(*long.span(end - len(word), end), word))
        return sorted(found)


def zeta_counts(size: int) -> np.ndarray:
    """How often each rank stands in a coded text of about `size` words more than the fewest, alpha 2."""
    n = size + _FEWEST_CODED
    ranks = np.arange(1, math.isqrt(n) + 1)
    counts = np.floor(n / (ranks**2 * (math.pi**2 / 6))).astype(np.int64)
    return counts[counts > 0]


def coded(key: str) -> Iterator[str]:
    """Endless made-up words of six letters for a key, no two equal."""
    draw, seen = Draw("coded", key), set()
    while True:
        word = "".join(string.ascii_lowercase[int(v) % 26] for v in draw.raw(6))
        if word not in seen:
            seen.add(word)
            yield word
