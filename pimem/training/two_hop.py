"""A synthetic task of two hops: made-up facts that only together answer the question, far apart in prose.

The first fact leads from what is asked about to a person or a thing, the second from there to the answer. Look-alikes of both
stand around them. Names are made up apart for training and evaluation, as in `pimem.training.planted`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pimem.config import canonical_hash
from pimem.errors import ConfigError
from pimem.records import Evidence, Sample
from pimem.tasks import haystacks, niah
from pimem.tasks.base import Draw
from pimem.tokens import LongText, Tokenizer
from pimem.training import planted
from pimem.training.scenes import Part

FORMAT = 1
"""Goes up when samples are made differently."""
DECOYS = 6
"""Look-alikes among the text, first and second facts in turn."""

# first fact | second fact | question | answer; what both facts name is the bridge.
_PATTERNS = """
The {thing} belongs to {name}.|{name} lives in {town}.|In which town does the owner of the {thing} live?|{town}
{name} is the sister of {name2}.|{name} works as a {job}.|What does the sister of {name2} work as?|a {job}
The {job} of {town} is called {name}.|{name} was born in {year}.|In which year was the {job} of {town} born?|{year}
The ship {word} was built by {name}.|{name} came from {town}.|From which town did the builder of the ship {word} come?|{town}
The {thing} is kept by the keeper {name}.|{name} can be reached at {code}.|At which number can the keeper of the {thing} be reached?|{code}
The picture called {word} was painted by {name}.|{name} liked {dish} best.|Which dish did the painter of {word} like best?|{dish}
{name} teaches in {town}.|The {thing} was given to {name} as a present.|What was given as a present to the teacher in {town}?|the {thing}
The road to {town} was laid out by {name}.|{name} died in {year}.|In which year did the person die who laid out the road to {town}?|{year}
"""  # noqa: E501
PATTERNS = [tuple(line.split("|")) for line in _PATTERNS.strip().splitlines()]
_ARTICLE = re.compile("^(?:a|the) ")
_SLOTS = ("name", "name2", "thing", "job", "dish", "town", "word", "code", "year")


@dataclass(frozen=True)
class Chain:
    """Two facts, the question they answer together, and the answer."""

    first: str
    second: str
    question: str
    answer: str
    names: frozenset[str]
    """What the facts are about, so that no look-alike speaks of the same."""


def draw(rng: np.random.Generator, part: Part, pattern: int) -> Chain:
    """A chain of the pattern with this number."""
    fills = {slot: planted._fill(slot.rstrip("2"), rng, part) for slot in _SLOTS}
    first, second, question, answer = (text.format(**fills) for text in PATTERNS[pattern])
    used = frozenset(fills[slot] for slot in ("name", "name2", "thing", "town", "word"))
    return Chain(first[0].upper() + first[1:], second[0].upper() + second[1:], question, answer, used)


class TwoHop:
    """See `pimem.tasks.base.Task`. Contexts of sentences of HotpotQA's `part`, as many as `length` tokens hold.

    Raises `ConfigError` for a length that has no room for the facts, `DataError` where HotpotQA is not here.
    """

    name = "two_hop"
    metric = "sub_em"
    unit = "tokens"

    def __init__(self, length: int, part: Part, seed: int, tokenizer: Tokenizer):
        self._length, self._part, self._seed, self._tokenizer = length, part, seed, tokenizer
        self._haystack = haystacks.hotpotqa(part)
        self.data_hash = canonical_hash([self._haystack.data_hash, FORMAT, _PATTERNS], 64)

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        """Samples `start` to `start + n - 1`, each made when it is asked for."""
        return (self._sample(i) for i in range(start, start + n))

    def facts(self, index: int) -> tuple[Chain, list[str]]:
        """The chain of a sample and the look-alikes around it."""
        rng = np.random.default_rng(int(Draw("two_hop", self._part, self._seed, index).raw(1)[0]))
        pattern = int(rng.integers(len(PATTERNS)))
        chain = draw(rng, self._part, pattern)
        decoys: list[str] = []
        while len(decoys) < DECOYS:
            other = draw(rng, self._part, pattern)
            if not other.names & chain.names and other.answer != chain.answer:
                decoys.append(other.first if len(decoys) % 2 else other.second)
        return chain, decoys

    def _sample(self, index: int) -> Sample:
        chain, decoys = self.facts(index)
        key = f"{self.name} {self._part} {self._seed} {index}"
        lines = [chain.first, chain.second, *decoys]
        depths = Draw("two_hop depths", key).order(niah.DEPTHS)[: len(lines)] / (niah.DEPTHS - 1)
        needles = [niah.Needle("", "", line, float(at), n < 2) for n, (line, at) in enumerate(zip(lines, depths, strict=True))]
        needles.sort(key=lambda needle: needle.depth)
        units = self._units(key, lines)
        long, places = self._tokenised(units, needles)
        while len(long.ids) > self._length:
            if not units:
                raise ConfigError(
                    f"task {self.name}: length {self._length:,} has no room for the facts, {len(long.ids)} tokens"
                )
            units.pop()
            long, places = self._tokenised(units, needles)
        evidence = [
            Evidence(*long.span(at, at + len(needle.text)), needle.text)
            for needle, at in zip(needles, places, strict=True)
            if needle.asked
        ]
        return Sample(
            id=f"{self.name}-{self._length}-{index}",
            cluster=f"{self.name}-{index}",
            question=chain.question,
            answers=tuple(dict.fromkeys((chain.answer, _ARTICLE.sub("", chain.answer)))),
            context_ids=long.ids,
            evidence=tuple(evidence),
            meta={"tokens": len(long.ids), "units": len(units)},
        )

    def _units(self, key: str, lines: list[str]) -> list[str]:
        """About as many sentences as there is room for beside `lines`, one too many rather than too few."""
        room = self._length - sum(len(self._tokenizer.encode(" " + line)) for line in lines)
        units: list[str] = []
        stream = self._haystack.units(key)
        while room > 0:
            batch = list(itertools.islice(stream, 64))
            for unit, ids in zip(batch, self._tokenizer.encode_many([" " + text for text in batch]), strict=True):
                if room <= 0:
                    break
                units.append(unit)
                room -= len(ids)
        return units

    def _tokenised(self, units: list[str], needles: list[niah.Needle]) -> tuple[LongText, list[int]]:
        text, places = niah.assemble(units, needles, self._haystack.joiner)
        return self._tokenizer.encode_long(text), places
