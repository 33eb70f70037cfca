"""RULER's variable tracking: a number is handed from variable to variable in lines far apart; all that hold it are asked for.

One chain of four hops in repeated filler, as in RULER; the wording is our own, and there is no worked example before the text.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pimem.config import TaskSpec, as_dict, canonical_hash
from pimem.config import build as build_spec
from pimem.errors import ConfigError
from pimem.records import Sample
from pimem.tasks import haystacks
from pimem.tasks.base import Built, Draw, check_range, digest
from pimem.tasks.needles import Needle, hide
from pimem.tasks.pieces import Filled, Pieces
from pimem.tokens import Tokenizer

FORMAT = 1
"""Goes up when samples are made differently."""
HOPS = 4
"""Times the number is handed on, so one more variable holds it."""
LETTERS = 5
"""Capital letters of a variable's name."""
_PLACES = 1000


@dataclass(frozen=True)
class VariableTrackingParams:
    """Parameters of the variable_tracking task."""

    tell_count: bool = False
    """Say in the question how many variables there are to name; the released evaluation does so for one method alone."""


def build(task: TaskSpec, tokenizer: Tokenizer) -> VariableTracking:
    """The task. Raises `ConfigError` as `pimem.tasks.base.build`."""
    return VariableTracking(task, tokenizer)


class VariableTracking:
    """See `pimem.tasks.base.Task`. Variables, number and places are the same at every length."""

    name = "variable_tracking"
    metric = "multi_recall"
    unit = "tokens"

    def __init__(self, task: TaskSpec, tokenizer: Tokenizer):
        self._params = build_spec(VariableTrackingParams, task.params, f"task {task.name}: params")
        self._task, self._pieces = task, Pieces(tokenizer)
        self._haystack = haystacks.noise()
        self.data_hash = canonical_hash([self._haystack.data_hash, FORMAT], 64)
        identity = {"task": as_dict(task) | {"params": as_dict(self._params)}, "data": self.data_hash}
        self._built = Built(identity | {"tokenizer": tokenizer.hash})

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        check_range(n, start, None, self.name)
        return (self._sample(i) for i in range(start, start + n))

    def needles(self, index: int) -> list[Needle]:
        """The assignments of a sample in the order in which they follow from one another and stand in the text."""
        key = f"{self.name} {self._task.seed} {index}"
        value = str(10_000 + int(Draw("value", key).raw(1)[0]) % 90_000)
        held = list(itertools.islice(variables(key), HOPS + 1))
        depths = sorted(Draw("places", key).order(_PLACES)[: HOPS + 1] / (_PLACES - 1))
        right = [value, *held[:-1]]
        return [
            Needle(name, value, f"SET {name} = {source}", float(depth), True)
            for name, source, depth in zip(held, right, depths, strict=True)
        ]

    def _sample(self, index: int) -> Sample:
        needles = self.needles(index)
        known = Filled.of(self._built.get(index))
        try:
            hidden = hide(needles, self._haystack, self.name, self._task.length, self._pieces, None, known)
        except ConfigError as error:
            raise ConfigError(f"task {self.name}: {error}") from None
        value = needles[0].value
        question = f"Which variables have the value {value}, whether set to it or to a variable that has it? Name all."
        if self._params.tell_count:
            question += f" There are {len(needles)} of them."
        ids, filled = hidden.long.ids, hidden.filled._asdict()
        recipe: dict[str, Any] = {**filled, "evidence": [[e.start, e.end] for e in hidden.evidence], "ids": digest(ids)}
        self._built.keep(index, recipe)
        return Sample(
            id=f"{self.name}-{self._task.length}-{index}",
            cluster=f"{self.name}-{index}",
            question=question,
            answers=tuple(needle.key for needle in needles),
            context_ids=ids,
            evidence=hidden.evidence,
            meta={**filled, "depths": [round(needle.depth, 4) for needle in needles]},
        )


def variables(key: str) -> Iterator[str]:
    """Endless names of variables for a key, no two equal."""
    draw, seen = Draw("variable", key), set()
    while True:
        name = "".join(string.ascii_uppercase[int(v) % 26] for v in draw.raw(LETTERS))
        if name not in seen:
            seen.add(name)
            yield name
