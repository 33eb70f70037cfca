"""Needles in a haystack: RULER's eight variants, MV-NIAH (niah_multivalue) among them.

Each needle is a sentence that names a key and its value; the question asks for the values of one or more keys. The wording is
our own. The haystack grows unit by unit to the largest size whose token count, exact and needles included, is at most the
length. Keys, values and depths depend on the seed and the sample's number, so every length asks the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pimem.config import TaskSpec, as_dict, canonical_hash
from pimem.config import build as build_spec
from pimem.errors import ConfigError
from pimem.records import Sample
from pimem.schema import check_share
from pimem.tasks import haystacks
from pimem.tasks.base import Built, Draw, check_range, digest
from pimem.tasks.haystacks import Haystack
from pimem.tasks.needles import Needle, hide
from pimem.tasks.needles import assemble as assemble
from pimem.tasks.pieces import Filled, Pieces
from pimem.tokens import Tokenizer

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
    essays: Literal["repeated", "once"] = "repeated"
    """What becomes of a length that is more than the essays: they repeat, or the text ends with them, short of the length, as
    in the released data."""
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
        own_essays = params.haystack == "essays" or (params.haystack == "own" and self._variant.haystack == "essays")
        if params.essays == "once" and not own_essays:
            raise ConfigError(f"task {task.name}: params.essays: its haystack is not made of essays")
        self._most = self._haystack.unit_count if params.essays == "once" else None
        self._pieces = Pieces(tokenizer)
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
        key, needles = self._key(index), self.needles(index)
        repeats = self._haystack.unit_count
        # A haystack that never repeats would only fill the memory with pieces.
        pieces = self._pieces if repeats else Pieces(self._tokenizer)
        known = Filled.of(self._built.get(index))
        try:
            hidden = hide(needles, self._haystack, key, self._task.length, pieces, self._most, known)
        except ConfigError as error:
            raise ConfigError(f"task {self.name}: {error}") from None
        asked = [needle for needle in needles if needle.asked]
        keys = list(dict.fromkeys(needle.key for needle in asked))
        ids, filled = hidden.long.ids, hidden.filled._asdict() | {"tokens": len(hidden.long.ids)}
        recipe: dict[str, Any] = {**filled, "evidence": [[e.start, e.end] for e in hidden.evidence], "ids": digest(ids)}
        self._built.keep(index, recipe)
        return Sample(
            id=f"{self.name}-{self._task.length}-{index}",
            cluster=f"{self.name}-{index}",
            question=ask(keys, self._variant.values, several=len(asked) > 1),
            answers=tuple(needle.value for needle in asked),
            context_ids=ids,
            evidence=hidden.evidence,
            meta={
                **filled,
                "haystack_repeats": bool(repeats and hidden.filled.units > repeats),
                "keys": keys,
                "depths": [round(needle.depth, 4) for needle in asked],
            },
        )
