"""Lines hidden in a haystack that grows until it fills a length."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pimem.errors import ConfigError
from pimem.records import Evidence
from pimem.tasks.haystacks import Haystack
from pimem.tasks.pieces import Assembled, Filled, Pieces, Units, cut, fill_exactly, joined
from pimem.tokens import LongText


@dataclass(frozen=True)
class Needle:
    """One hidden line."""

    key: str
    value: str
    text: str
    depth: float
    """Where it stands: 0 is the start, 1 the end of the haystack."""
    asked: bool


@dataclass(frozen=True)
class Hidden:
    """Needles in a haystack of the right size."""

    long: Assembled | LongText
    filled: Filled
    evidence: tuple[Evidence, ...]
    """The needles that are asked for, by depth."""


def hide(
    needles: Sequence[Needle], haystack: Haystack, key: str, length: int, pieces: Pieces, most: int | None, known: Filled | None
) -> Hidden:
    """The needles, sorted by depth, in as many units of the haystack as fill `length` tokens, of at most `most`.

    Raises `ConfigError` where the needles alone are too long.
    """
    joiner = haystack.joiner
    units = Units(haystack.units(key), joiner, pieces)

    def quick(size: int) -> int:
        parts = [needle.text for needle in needles]
        total = units.tokens(size) + int(pieces.sizes([joined(part, joiner) for part in parts]).sum())
        at_end = joiner.endswith("\n")
        slots = [round(needle.depth * size) for needle in needles]
        free = slots[-1] == size if at_end else slots[0] == 0
        outer = parts[-1 if at_end else 0] if free else units.first(size)[-1 if at_end else 0]
        bare, inner = pieces.sizes([outer, joined(outer, joiner)])
        return total + int(bare) - int(inner)

    def make(size: int) -> Assembled | LongText:
        return pieces.assemble(cut(mixed(units.first(size), needles)[0], joiner))

    try:
        filled, long = fill_exactly(length, quick, make, most, known)
    except ValueError as error:
        raise ConfigError(f"length {length:,} has no room for the {len(needles)} needles alone, {error} tokens") from None
    _, places = assemble(units.first(filled.units), needles, joiner)
    asked = [(needle, at) for needle, at in zip(needles, places, strict=True) if needle.asked]
    evidence = tuple(Evidence(*long.span(at, at + len(needle.text)), needle.text) for needle, at in asked)
    return Hidden(long, filled, evidence)


def mixed(units: list[str], needles: Sequence[Needle]) -> tuple[list[str], list[int]]:
    """Units with the needles, sorted by depth, among them, and the number of each needle."""
    parts: list[str] = []
    marks: list[int] = []
    at = 0
    for needle in needles:
        slot = round(needle.depth * len(units))
        parts += [*units[at:slot], needle.text]
        marks.append(len(parts) - 1)
        at = slot
    return parts + units[at:], marks


def assemble(units: list[str], needles: Sequence[Needle], joiner: str) -> tuple[str, list[int]]:
    """Units and needles as one text, and the character at which each needle begins. `needles` are sorted by depth."""
    parts, marks = mixed(units, needles)
    starts = list(itertools.accumulate((len(part) + len(joiner) for part in parts), initial=0))
    return joiner.join(parts), [starts[mark] for mark in marks]
