"""Samples of RULER's tasks built and checked against what they say of themselves."""

from __future__ import annotations

import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pimem.config import TaskSpec
from pimem.errors import DataError, PimemError, nearest
from pimem.records import Sample
from pimem.tasks.base import RULER, Task, build
from pimem.tokens import Tokenizer

LENGTHS = (8192, 65_536, 1_048_576)
"""Tokens that the command line checks unless told otherwise."""
_PLACES = 6


@dataclass(frozen=True)
class Checked:
    """One sample that was built."""

    task: str
    """RULER's name."""
    asked: int
    """Tokens."""
    made: int
    """Tokens."""
    one_more: int | None
    """Tokens with one unit more."""
    seconds: float
    """Wall time of building."""
    cpu_seconds: float
    """Processor time of building, over all threads."""
    memory: int
    """Most bytes that the process held while building."""
    evidence: tuple[tuple[int, int], ...]
    """Token ranges of the evidence."""
    faults: tuple[str, ...]
    """What does not hold; empty for a sound sample."""


def check(names: Sequence[str], lengths: Sequence[int], seed: int, tokenizer: Tokenizer) -> Iterator[Checked]:
    """Builds and checks one sample of each task and length; a task or sample that cannot be made has its error as a fault.

    `names` are RULER's; none means all. Raises `DataError` for an unknown one.
    """
    for name in names:
        if name not in RULER:
            raise DataError(f"unknown RULER task {name!r}; {nearest(name, RULER)}")
    tokenizer.encode("The first call makes the tokenizer ready.")
    for name in names or RULER:
        ours = RULER[name]
        params = {"unit": "tokens"} if ours == "hotpotqa" else {}
        for length in lengths:
            yield _one(name, TaskSpec(ours, length, seed, params), tokenizer)


def _one(name: str, spec: TaskSpec, tokenizer: Tokenizer) -> Checked:
    _forget_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    try:
        task = build(spec, tokenizer)
        (sample,) = task.samples(1)
    except PimemError as error:
        return Checked(name, spec.length, 0, None, 0.0, 0.0, _peak(), (), (str(error),))
    spent = time.perf_counter() - wall, time.process_time() - cpu
    memory = _peak()
    places = tuple((e.start, e.end) for e in sample.evidence)
    faults = tuple(verify(sample, task, spec.length, tokenizer))
    return Checked(name, spec.length, len(sample.context_ids), sample.meta.get("one_more"), *spent, memory, places, faults)


def verify(sample: Sample, task: Task, length: int, tokenizer: Tokenizer) -> Iterator[str]:
    """What does not hold of a sample whose `length` counts tokens."""
    ids = sample.context_ids
    text = tokenizer.decode(ids)
    if not np.array_equal(tokenizer.encode_long(text).ids, ids):
        yield "the ids are not those of tokenising the text"
    one_more = sample.meta.get("one_more")
    if not len(ids) <= length < (one_more or 0):
        yield f"{len(ids):,} tokens do not fill {length:,} to within one unit, with which there would be {one_more}"
    if not sample.evidence:
        yield "there is no evidence"
    for e in sample.evidence:
        if e.text not in tokenizer.decode(ids[e.start : e.end]):
            yield f"tokens {e.start} to {e.end} do not hold their evidence {e.text[:60]!r}"
    said = " ".join(e.text for e in sample.evidence)
    if task.metric == "multi_recall" and (missing := [answer for answer in sample.answers if answer not in said]):
        yield f"answers that no evidence holds: {missing}"
    if task.name == "squad" and not any(answer in said for answer in sample.answers):
        yield "no answer stands in the paragraph that should hold it"
    yield from _OWN.get(task.name, _nothing)(sample, text)


def _nothing(sample: Sample, text: str) -> Iterator[str]:
    yield from ()


def _chain(sample: Sample, text: str) -> Iterator[str]:
    """Follows the assignments through the text."""
    held = set(re.findall(r"\d{5}", sample.question))
    found = []
    for name, source in re.findall(r"^SET (\w+) = (\w+)$", text, re.MULTILINE):
        if source in held:
            held.add(name)
            found.append(name)
    if tuple(found) != sample.answers:
        yield f"the assignments give {found}, the answers are {list(sample.answers)}"


def _counts(sample: Sample, text: str) -> Iterator[str]:
    """Counts the words of the text."""
    n = len(sample.answers)
    ranked = Counter(re.findall(r"[a-z]+", text)).most_common(n + 1)
    if {word for word, _ in ranked[:n]} != set(sample.answers) or ranked[n - 1][1] == ranked[n][1]:
        yield f"the text's most frequent words are {ranked}, the answers are {list(sample.answers)}"


_OWN: dict[str, Callable[[Sample, str], Iterator[str]]] = {
    "variable_tracking": _chain,
    "common_words": _counts,
    "frequent_words": _counts,
}


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _peak() -> int:
    """Most bytes held since `_forget_peak`, or since the process began where the system does not forget."""
    try:
        return int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) * 1024
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


HEADER = f"{'task':16} {'asked':>9} {'made':>9} {'+1 unit':>9} {'s':>6} {'cpu s':>6} {'MB':>6}  evidence (first tokens)"
"""Stands over the lines of `line`."""


def line(one: Checked) -> str:
    """A checked sample as a row under `HEADER`, its faults below it."""
    places = ", ".join(f"{start:,}" for start, _ in one.evidence[:_PLACES])
    more = f" and {len(one.evidence) - _PLACES:,} more" if len(one.evidence) > _PLACES else ""
    numbers = f"{one.asked:9,} {one.made:9,} {one.one_more or 0:9,} {one.seconds:6.2f} {one.cpu_seconds:6.2f}"
    row = f"{one.task:16} {numbers} {one.memory / 1e6:6.0f}  {places}{more}"
    return "\n".join([row, *(f"  FAILED: {fault}" for fault in one.faults)])
