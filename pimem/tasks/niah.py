"""Needles in a haystack: RULER's eight variants, MV-NIAH (niah_multivalue) among them.

Each needle is a sentence that names a key and its value; the question asks for the values of one or more keys. The wording is
our own. The haystack grows unit by unit to the largest size whose token count, exact and needles included, is at most the
length. Keys, values and depths depend on the seed and the sample's number, so every length asks the same.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pimem.config import TaskSpec, as_dict, canonical_hash
from pimem.config import build as build_spec
from pimem.errors import ConfigError
from pimem.records import Evidence, Sample
from pimem.schema import check_share
from pimem.tasks import haystacks
from pimem.tasks.base import Built, Draw, check_range, digest
from pimem.tasks.haystacks import Haystack
from pimem.tokens import LongText, Tokenizer

FORMAT = 1
"""Goes up when samples are made differently."""
DEPTHS = 40
"""Needles stand at distinct ones of this many evenly spaced depths, as in RULER."""


@dataclass(frozen=True)
class NiahParams:
    """Parameters of the niah tasks."""

    haystack: Literal["own", "noise", "essays", "hotpotqa"] = "own"
    """own is the variant's, as in RULER; noise repeats a filler line; hotpotqa takes sentences of HotpotQA's paragraphs."""
    split: Literal["all", "train", "eval"] = "all"
    """Which of HotpotQA's paragraphs its haystack may use, so that training and evaluation share none."""
    evidence_within: float = 1.0
    """Share of the haystack, from its start, in which the needles asked for stand, at depths drawn there; others are anywhere.
    GRU-Mem's paper also has 0.1 and 0.2 (Tables 2 and 4)."""

    def __post_init__(self) -> None:
        check_share(self, "evidence_within")


@dataclass(frozen=True)
class Variant:
    """What one of the eight tasks hides and asks for."""

    haystack: str
    """noise, essays or needles."""
    keys: str = "word"
    """Kind of the keys: word or uuid."""
    values: str = "number"
    """Kind of the values: number or uuid."""
    keys_hidden: int = 1
    values_per_key: int = 1
    keys_asked: int = 1


VARIANTS = {
    "niah_single_1": Variant("noise"),
    "niah_single_2": Variant("essays"),
    "niah_single_3": Variant("essays", values="uuid"),
    "niah_multikey_1": Variant("essays", keys_hidden=4),
    "niah_multikey_2": Variant("needles"),
    "niah_multikey_3": Variant("needles", keys="uuid", values="uuid"),
    "niah_multivalue": Variant("essays", values_per_key=4),
    "niah_multiquery": Variant("essays", keys_hidden=4, keys_asked=4),
}
_NOUN = {"number": "number", "uuid": "code"}


@dataclass(frozen=True)
class Needle:
    """One hidden sentence."""

    key: str
    value: str
    text: str
    depth: float
    """Where it stands: 0 is the start, 1 the end of the haystack."""
    asked: bool


def sentence(key: str, value: str, kind: str) -> str:
    """The sentence that hides a value."""
    return f"A secret {_NOUN[kind]} of {key} is {value}."


def ask(keys: list[str], kind: str, several: bool) -> str:
    """The question for the values of `keys`."""
    noun = _NOUN[kind]
    if not several:
        return f"What is the secret {noun} of {keys[0]} that the text mentions?"
    listed = keys[0] if len(keys) == 1 else f"{', '.join(keys[:-1])} and {keys[-1]}"
    return f"What are all the secret {noun}s of {listed} that the text mentions?"


def build(task: TaskSpec, tokenizer: Tokenizer) -> Niah:
    """The variant that `task.name` says. Raises `ConfigError` and `DataError` as `pimem.tasks.base.build`."""
    return Niah(task, tokenizer)


class Niah:
    """See `pimem.tasks.base.Task`. There are as many samples as are asked for."""

    metric = "multi_recall"
    unit = "tokens"

    def __init__(self, task: TaskSpec, tokenizer: Tokenizer):
        params = build_spec(NiahParams, task.params, f"task {task.name}: params")
        self.name = task.name
        self._task, self._tokenizer, self._variant = task, tokenizer, VARIANTS[task.name]
        if self._variant.haystack == "needles" and params.haystack != "own":
            raise ConfigError(f"task {task.name}: params.haystack: its haystack is made of needles and cannot be replaced")
        self._haystack = self._choose(params)
        self._within = params.evidence_within
        self.data_hash = canonical_hash([self._haystack.data_hash, haystacks.words()[2], FORMAT], 64)
        identity = {"task": as_dict(task) | {"params": as_dict(params)}, "format": FORMAT}
        self._built = Built(identity | {"data": self.data_hash, "tokenizer": tokenizer.hash})

    def _choose(self, params: NiahParams) -> Haystack:
        kind = self._variant.haystack if params.haystack == "own" else params.haystack
        if kind == "noise":
            return haystacks.noise()
        if kind == "essays":
            return haystacks.essays()
        if kind == "hotpotqa":
            return haystacks.hotpotqa(params.split)
        return Haystack("needles", "\n", None, self._other_needles)

    def _other_needles(self, key: str) -> Iterator[str]:
        kind = self._variant.values
        for name, value in zip(self._names("key", key), self._names("value", key), strict=True):
            yield sentence(name, value, kind)

    def _names(self, what: str, key: str, own: bool = False) -> Iterator[str]:
        """Keys or values of a sample: its needles' come first, a haystack of needles goes on after them."""
        variant = self._variant
        kind = variant.keys if what == "key" else variant.values
        first = variant.keys_hidden if what == "key" else variant.keys_hidden * variant.values_per_key
        stream = haystacks.names(kind, f"{what} {key}")
        return itertools.islice(stream, first) if own else itertools.islice(stream, first, None)

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        check_range(n, start, None, self.name)
        return (self._sample(i) for i in range(start, start + n))

    def needles(self, index: int) -> list[Needle]:
        """The needles of a sample, by depth."""
        variant, key = self._variant, self._key(index)
        keys, values = list(self._names("key", key, own=True)), list(self._names("value", key, own=True))
        count = len(values)
        depths = Draw("depths", key).order(DEPTHS)[:count] / (DEPTHS - 1)
        made = []
        for at, (value, depth) in enumerate(zip(values, depths, strict=True)):
            number = at // variant.values_per_key
            text, asked = sentence(keys[number], value, variant.values), number < variant.keys_asked
            made.append(Needle(keys[number], value, text, float(depth) * (self._within if asked else 1.0), asked))
        return sorted(made, key=lambda needle: needle.depth)

    def _key(self, index: int) -> str:
        return f"{self.name} {self._task.seed} {index}"

    def _sample(self, index: int) -> Sample:
        needles = self.needles(index)
        units = _Units(self._haystack.units(self._key(index)))
        known = self._built.get(index)
        size = known.get("units") if known else None
        if not isinstance(size, int) or size < 0:
            size = self._fill(units, needles)
        long, places = self._tokenised(units, needles, size)
        asked = [(needle, place) for needle, place in zip(needles, places, strict=True) if needle.asked]
        evidence = tuple(Evidence(*long.span(at, at + len(needle.text)), needle.text) for needle, at in asked)
        keys = list(dict.fromkeys(needle.key for needle, _ in asked))
        repeats = self._haystack.unit_count
        recipe: dict[str, Any] = {
            "units": size,
            "tokens": len(long.ids),
            "evidence": [[e.start, e.end] for e in evidence],
            "ids": digest(long.ids),
        }
        self._built.keep(index, recipe)
        return Sample(
            id=f"{self.name}-{self._task.length}-{index}",
            cluster=f"{self.name}-{index}",
            question=ask(keys, self._variant.values, several=len(asked) > 1),
            answers=tuple(needle.value for needle, _ in asked),
            context_ids=long.ids,
            evidence=evidence,
            meta={
                "tokens": len(long.ids),
                "units": size,
                "haystack_repeats": bool(repeats and size > repeats),
                "keys": keys,
                "depths": [round(needle.depth, 4) for needle, _ in asked],
            },
        )

    def _tokenised(self, units: _Units, needles: list[Needle], size: int) -> tuple[LongText, list[int]]:
        text, places = assemble(units.first(size), needles, self._haystack.joiner)
        return self._tokenizer.encode_long(text), places

    def _fill(self, units: _Units, needles: list[Needle]) -> int:
        """The largest number of units with which the context keeps its length, found by exact counts of whole contexts.

        Each count is followed by a step over single units' counts, which lands on the right size or beside it.
        """
        length, joiner = self._task.length, self._haystack.joiner

        @functools.cache
        def whole(size: int) -> int:
            return len(self._tokenised(units, needles, size)[0].ids)

        def single(at: int) -> int:
            return max(1, len(self._tokenizer.encode(joiner + units.at(at))))

        if whole(0) > length:
            raise ConfigError(
                f"task {self.name}: length {length:,} has no room for the {len(needles)} needles alone, {whole(0)} tokens"
            )
        low, high, size = 0, None, 0
        for tries in itertools.count():
            size = _step(size, length - whole(size), single)
            if high is not None and (tries >= 8 or not low < size < high):
                size = min(max(size, low + 1), high - 1) if tries < 8 else (low + high) // 2
            size = max(size, low + 1)
            if whole(size) <= length:
                low = size
            else:
                high = size
            if high is not None and high - low == 1:
                return low
        raise AssertionError("unreachable")


class _Units:
    """The units of one sample, made as far as they are needed."""

    def __init__(self, source: Iterator[str]):
        self._source, self._made = source, list[str]()

    def first(self, n: int) -> list[str]:
        self._made += itertools.islice(self._source, max(0, n - len(self._made)))
        return self._made[:n]

    def at(self, index: int) -> str:
        self.first(index + 1)
        return self._made[index]


def _step(size: int, room: int, single: Callable[[int], int]) -> int:
    """Units after adding (or taking away) as many as `room` tokens hold; far steps are estimated from a stretch of units."""
    stretch = 256
    while room > 0:
        costs = [single(at) for at in range(size, size + stretch)]
        if sum(costs) * 8 < room:
            return size + room * stretch // sum(costs)
        for cost in costs:
            if cost > room:
                return size
            room -= cost
            size += 1
    while room < 0 and size > 0:
        size -= 1
        room += single(size)
    return size


def assemble(units: list[str], needles: list[Needle], joiner: str) -> tuple[str, list[int]]:
    """Units and needles as one text, and the character at which each needle begins. `needles` are sorted by depth."""
    parts: list[str] = []
    marks: list[int] = []
    at = 0
    for needle in needles:
        slot = round(needle.depth * len(units))
        parts += [*units[at:slot], needle.text]
        marks.append(len(parts) - 1)
        at = slot
    parts += units[at:]
    starts = list(itertools.accumulate((len(part) + len(joiner) for part in parts), initial=0))
    return joiner.join(parts), [starts[mark] for mark in marks]
