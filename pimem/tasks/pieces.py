"""Long texts put together from pieces that are tokenised once each, and the search for how many of them fill a length.

A million tokens of haystack are the same few sentences, words or lines over and over, so each is tokenised once. The ids put
together are those of tokenising the whole text: no token may cross an edge between two pieces, which is tried on the
characters around every distinct edge and on the first and last pieces of every text; where one does, the text is tokenised
whole.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pimem.tokens import LongText, Tokenizer

_EDGE = 2
_COMPARED = 40
_BATCH = 20_000


@dataclass(eq=False)
class Assembled:
    """A text put together from pieces; `span` as that of `pimem.tokens.LongText`."""

    text: str
    ids: np.ndarray
    """uint32, shape (tokens,)."""
    tokenizer: Tokenizer
    char_starts: list[int]
    """Character at which each piece begins."""
    token_starts: np.ndarray
    """Token at which each piece begins."""

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The token range [first, last) that covers the characters [start, end), which lie within one piece."""
        at = bisect.bisect_right(self.char_starts, start) - 1
        stop = self.char_starts[at + 1] if at + 1 < len(self.char_starts) else len(self.text)
        base = self.char_starts[at]
        first, last = self.tokenizer.encode_long(self.text[base:stop]).span(start - base, end - base)
        return int(self.token_starts[at]) + first, int(self.token_starts[at]) + last


class Pieces:
    """The ids of every piece seen so far."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._ids: dict[str, np.ndarray] = {}
        self._clean: set[tuple[str, str]] = set()

    def sizes(self, pieces: Sequence[str]) -> np.ndarray:
        """Tokens of each piece by itself."""
        self._learn(pieces)
        return np.fromiter((len(self._ids[piece]) for piece in pieces), dtype=np.int64, count=len(pieces))

    def assemble(self, pieces: Sequence[str]) -> Assembled | LongText:
        """The pieces one after the other as a tokenised text; a `LongText` where a token crosses an edge."""
        pieces = [piece for piece in pieces if piece]
        text = "".join(pieces)
        if not pieces or not self._edges_are_clean(pieces):
            return self._tokenizer.encode_long(text)
        sizes = self.sizes(pieces)
        ids = np.concatenate([self._ids[piece] for piece in pieces])
        for few in (pieces[:_COMPARED], pieces[-_COMPARED:]):
            whole = self._tokenizer.encode("".join(few))
            kept = ids[: len(whole)] if few[0] is pieces[0] else ids[len(ids) - len(whole) :]
            if not np.array_equal(whole, kept):
                return self._tokenizer.encode_long(text)
        char_starts = list(itertools.accumulate(map(len, pieces[:-1]), initial=0))
        return Assembled(text, ids, self._tokenizer, char_starts, np.concatenate([[0], np.cumsum(sizes[:-1])]))

    def _learn(self, pieces: Sequence[str]) -> None:
        new = [piece for piece in dict.fromkeys(pieces) if piece not in self._ids]
        for at in range(0, len(new), _BATCH):
            batch = new[at : at + _BATCH]
            self._ids.update(zip(batch, self._tokenizer.encode_many(batch), strict=True))

    def _edges_are_clean(self, pieces: Sequence[str]) -> bool:
        new = {(a[-_EDGE:], b[:_EDGE]) for a, b in itertools.pairwise(pieces)} - self._clean
        edges = sorted(new)
        parts = self._tokenizer.encode_many([part for a, b in edges for part in (a, b, a + b)])
        if not all(np.array_equal(np.concatenate([a, b]), both) for a, b, both in zip(*[iter(parts)] * 3, strict=True)):
            return False
        self._clean |= new
        return True


def cut(parts: Sequence[str], joiner: str) -> list[str]:
    """Parts as the pieces of one text, what joins them put where tokenizers cut: after a line end, else before a blank."""
    if joiner.endswith("\n"):
        return [*(f"{part}{joiner}" for part in parts[:-1]), *parts[-1:]]
    return [*parts[:1], *(f"{joiner}{part}" for part in parts[1:])]


class Units:
    """The endless units of one sample, made and counted as far as they are needed."""

    def __init__(self, source: Iterator[str], joiner: str, pieces: Pieces):
        self._source, self._joiner, self._pieces = source, joiner, pieces
        self._made: list[str] = []
        self._sums = np.zeros(1, dtype=np.int64)

    def first(self, n: int) -> list[str]:
        """The first `n` units."""
        self._made += itertools.islice(self._source, max(0, n - len(self._made)))
        return self._made[:n]

    def tokens(self, n: int) -> int:
        """Tokens of the first `n` units, each with what joins it to the next or last one."""
        if n >= len(self._sums):
            sizes = self._pieces.sizes([joined(unit, self._joiner) for unit in self.first(n)[len(self._sums) - 1 :]])
            self._sums = np.concatenate([self._sums, self._sums[-1] + np.cumsum(sizes)])
        return int(self._sums[n])


def joined(part: str, joiner: str) -> str:
    """A part as it stands inside a text."""
    return f"{part}{joiner}" if joiner.endswith("\n") else f"{joiner}{part}"


class Filled(NamedTuple):
    """How many units fill a length."""

    units: int
    tokens: int
    one_more: int | None
    """Tokens with one unit more, which is over the length; None where there is no further unit."""

    @classmethod
    def of(cls, recipe: dict[str, Any] | None) -> Filled | None:
        """What a kept recipe says; None where it says nothing usable."""
        units, tokens, one_more = ((recipe or {}).get(name) for name in cls._fields)
        if isinstance(units, int) and isinstance(tokens, int) and isinstance(one_more, int | None) and units >= 0:
            return cls(units, tokens, one_more)
        return None


def fill(length: int, count: Callable[[int], int], most: int | None = None) -> Filled:
    """The largest size of at most `most` with `count(size) <= length`; `count` grows with the size.

    Every guess is a line through what was counted. Raises `ValueError` where even size 0 is over the length.
    """
    known = {0: count(0)}
    if known[0] > length:
        raise ValueError(known[0])
    low, high, size = 0, None if most is None else most + 1, 64
    for tries in itertools.count():
        if high is not None and high - low == 1:
            return Filled(low, known[low], known.get(high))
        size = min(max(size, low + 1), high - 1 if high is not None else 8 * low + 64)
        known[size] = count(size)
        low, high = (size, high) if known[size] <= length else (low, size)
        other = high if high in known else max((n for n in known if n < low), default=low)
        rate = (known[other] - known[low]) / (other - low) if other != low else 0.0
        if tries % 8 == 7 and high is not None:
            size = (low + high) // 2
        else:
            size = low + int((length - known[low]) / rate) if rate > 0 else 2 * low + 1
    raise AssertionError("unreachable")


def fill_exactly(
    length: int,
    quick: Callable[[int], int],
    make: Callable[[int], Assembled | LongText],
    most: int | None = None,
    known: Filled | None = None,
) -> tuple[Filled, Assembled | LongText]:
    """`fill` by sums over pieces, and the text; by counts of whole texts where the sums turn out wrong.

    `known` is what an earlier search found. Raises as `fill`.
    """
    if known:
        return known, make(known.units)
    filled = fill(length, quick, most)
    made = make(filled.units)
    if len(made.ids) == filled.tokens:
        return filled, made
    filled = fill(length, lambda size: len(make(size).ids), most)
    return filled, make(filled.units)
