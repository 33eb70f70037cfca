"""Texts in which needles are hidden: an endless sequence of units, and how they are joined.

A unit is what a haystack grows by: a line of filler, a sentence, a line of the same make as the needles.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pimem import data
from pimem.config import canonical_hash
from pimem.tasks.base import Draw
from pimem.tasks.hotpotqa import split

NOISE = (
    "The harbour is quiet in the morning. Boats lie along the wall. A gull walks over the stones. "
    "Somebody opens a window and closes it. Then the tide turns."
)
"""The line that the noise haystack repeats."""

_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+")


@dataclass(frozen=True)
class Haystack:
    """Where the text around the needles comes from."""

    data_hash: str
    """Digest of its content."""
    joiner: str
    """What stands between two units."""
    unit_count: int | None
    """Units before they repeat; None where they never do."""
    units: Callable[[str], Iterator[str]]
    """Endless units for a sample key; the same key gives the same ones."""


def noise() -> Haystack:
    """One filler line over and over."""

    def units(key: str) -> Iterator[str]:
        while True:
            yield NOISE

    return Haystack(canonical_hash(NOISE), "\n", 1, units)


def essays() -> Haystack:
    """The fetched essays, sentence by sentence from a place of the sample's own, over again when they end.

    Raises `DataError` where they are not here.
    """
    digest = data.content_hash("essays")
    parts = _essay_sentences(digest)

    def units(key: str) -> Iterator[str]:
        at = int(Draw("essay start", key).raw(1)[0] % len(parts))
        while True:
            yield parts[at % len(parts)]
            at += 1

    return Haystack(digest, " ", len(parts), units)


@cache
def _essay_sentences(digest: str) -> list[str]:
    return [part for raw in _SENTENCE_END.split(data.text("essays")) if (part := raw.strip())]


def hotpotqa(part: str) -> Haystack:
    """Sentences of HotpotQA's paragraphs (of one split), the paragraphs in an order of the sample's own.

    Raises `DataError` where the set is not here.
    """
    corpus = data.corpus("hotpotqa")
    numbers = split(corpus, part).paragraphs

    def units(key: str) -> Iterator[str]:
        order = Draw("hotpotqa haystack", key).order(len(numbers))
        while True:
            for i in order:
                yield from (s for raw in corpus.paragraphs[numbers[i]].sentences if (s := raw.strip()))

    count = sum(bool(s.strip()) for i in numbers for s in corpus.paragraphs[i].sentences)
    return Haystack(canonical_hash([corpus.hash, part]), " ", count, units)


def _plain_words(name: str) -> tuple[str, ...]:
    """The plain lower-case words of one of the wonderwords package's lists, sorted."""
    raw = resources.files("wonderwords.assets").joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return tuple(sorted({word for line in raw.splitlines() if re.fullmatch(r"[a-z]{3,}", word := line.strip())}))


@cache
def words() -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Adjectives, nouns and a digest of both."""
    lists = [_plain_words(name) for name in ("adjectivelist", "nounlist")]
    return lists[0], lists[1], canonical_hash(lists)


@cache
def vocabulary() -> tuple[tuple[str, ...], str]:
    """Nouns, adjectives and verbs, each word once and sorted, and a digest of them."""
    merged = tuple(sorted({word for name in ("adjectivelist", "nounlist", "verblist") for word in _plain_words(name)}))
    return merged, canonical_hash(merged)


def names(kind: str, key: str) -> Iterator[str]:
    """Endless names or values for a key, no two equal: `word` (adjective-noun), `number` (7 digits) or `uuid`."""
    adjectives, nouns, _ = words()
    draw, seen = Draw(kind, key), set()
    while True:
        high, low = (int(v) for v in draw.raw(2))
        if kind == "word":
            made = f"{adjectives[high % len(adjectives)]}-{nouns[low % len(nouns)]}"
        elif kind == "number":
            made = str(1_000_000 + high % 9_000_000)
        else:
            made = str(uuid.UUID(int=high << 64 | low, version=4))
        if made not in seen:
            seen.add(made)
            yield made
