"""Paragraphs tokenised once, and long contexts put together from their ids.

A context of 25,600 documents is 3.8 million tokens, and a benchmark has 64 of them; their paragraphs are always the same ones.
The ids put together are those of tokenising the whole text: a paragraph takes part only where its tokens were seen to end
exactly at its own edges between two document heads, and the first and last documents of every context are compared.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pimem.config import canonical_hash
from pimem.corpora import Corpus, Paragraph
from pimem.packages import arriving, home
from pimem.tasks.pieces import Assembled
from pimem.tokens import Tokenizer

BETWEEN = "\n\n"
"""Stands between two documents."""
WORTHWHILE = 3200
"""Documents in a context from which on tokenising every paragraph once pays."""
_FORMAT = 1
_NEXT = "Document"
_BATCH = 2000
_COMPARED = 20


def head(number: int) -> str:
    """What stands above a document's title. A context's documents are numbered from 1."""
    return f"{_NEXT} {number}:\n"


class Shown(NamedTuple):
    """Documents as they are shown."""

    text: str
    starts: list[int]
    """Character at which each document begins."""
    bodies: list[int]
    """Character at which each one's paragraph begins, after its number and title."""


def render(corpus: Corpus, documents: Sequence[int], titled: bool = True) -> Shown:
    """Numbered documents as one text, each with its title or without."""
    parts, starts, bodies, at = [], [], [], 0
    for number, index in enumerate(documents, start=1):
        paragraph = corpus.paragraphs[index]
        above = head(number) + _title(paragraph, titled)
        starts.append(at)
        bodies.append(at + len(above))
        parts.append(above + paragraph.text)
        at += len(parts[-1]) + len(BETWEEN)
    return Shown(BETWEEN.join(parts), starts, bodies)


def _title(paragraph: Paragraph, titled: bool) -> str:
    return f"{paragraph.title}\n" if titled else ""


class Blocks:
    """Token ids of title, paragraph and the gap after it, for each paragraph of a corpus."""

    def __init__(self, folder: Path, tokenizer: Tokenizer):
        self._ids = np.load(folder / "ids.npy", mmap_mode="r")
        self._starts = np.load(folder / "starts.npy")
        self._tokenizer = tokenizer
        self._heads: list[np.ndarray] = []

    def assemble(self, documents: list[int], text: str, char_starts: list[int]) -> Assembled | None:
        """`text`, which shows paragraphs `documents`, as ids; None where it must be tokenised whole."""
        sizes = self._starts[np.asarray(documents) + 1] - self._starts[documents]
        if not sizes.all():
            return None
        missing = range(len(self._heads) + 1, len(documents) + 1)
        self._heads += self._tokenizer.encode_many([head(number) for number in missing])
        parts: list[np.ndarray] = []
        for at, number in enumerate(documents[:-1]):
            parts += [self._heads[at], self._ids[self._starts[number] : self._starts[number + 1]]]
        parts.append(self._tokenizer.encode(text[char_starts[-1] :]))
        ids = np.concatenate(parts)
        lengths = np.fromiter((len(part) for part in parts), dtype=np.int64)
        token_starts = np.concatenate([[0], np.cumsum(lengths)])[: 2 * len(documents) : 2]
        made = Assembled(text, ids, self._tokenizer, char_starts, token_starts)
        return made if self._agrees(made) else None

    def _agrees(self, made: Assembled) -> bool:
        stop = made.char_starts[min(_COMPARED, len(made.char_starts) - 1)] + len(_NEXT)
        first = self._tokenizer.encode(made.text[:stop])
        last = self._tokenizer.encode(made.text[made.char_starts[-_COMPARED:][0] :])
        return np.array_equal(first, made.ids[: len(first)]) and np.array_equal(last, made.ids[len(made.ids) - len(last) :])


def load(corpus: Corpus, tokenizer: Tokenizer, make: bool, titled: bool = True) -> Blocks | None:
    """The blocks of `corpus` in this tokenizer's ids, from disk; where they are not there, made if `make`, else None.

    Raises `DataError` where they cannot be written.
    """
    identity = {"format": _FORMAT, "data": corpus.hash, "tokenizer": tokenizer.hash, "head": head(1), "between": BETWEEN}
    identity |= {} if titled else {"titled": False}
    folder = home() / "built" / f"paragraphs-{canonical_hash(identity, length=16)}"
    if not folder.exists():
        if not make:
            return None
        with arriving(folder, 200_000_000, lambda: None, lambda line: None) as work:
            if work is not None:
                _make(corpus, tokenizer, work, titled)
    return _open(folder, tokenizer)


@functools.lru_cache(maxsize=2)
def _open(folder: Path, tokenizer: Tokenizer) -> Blocks:
    return Blocks(folder, tokenizer)


def _make(corpus: Corpus, tokenizer: Tokenizer, folder: Path, titled: bool) -> None:
    before, after = tokenizer.encode(head(1)), tokenizer.encode(_NEXT)
    parts, starts = [], [0]
    for at in range(0, len(corpus.paragraphs), _BATCH):
        batch = corpus.paragraphs[at : at + _BATCH]
        for ids in tokenizer.encode_many([f"{head(1)}{_title(p, titled)}{p.text}{BETWEEN}{_NEXT}" for p in batch]):
            inner = ids[len(before) : len(ids) - len(after)]
            whole = np.array_equal(ids[: len(before)], before) and np.array_equal(ids[len(ids) - len(after) :], after)
            parts.append(inner if whole else inner[:0])
            starts.append(starts[-1] + len(parts[-1]))
    np.save(folder / "ids.npy", np.concatenate(parts))
    np.save(folder / "starts.npy", np.array(starts, dtype=np.int64))
