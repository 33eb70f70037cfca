"""Building question sets of reinforcement learning.

Training and evaluation sets share neither questions nor paragraphs, which is checked on the finished text.

`python -m pimem.training.question_sets CONFIG --model FOLDER --out FOLDER` builds one.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pimem import data
from pimem.config import TaskSpec, as_dict, at_least, build, load_yaml
from pimem.corpora import Corpus
from pimem.errors import ConfigError, DataError, nearest
from pimem.records import Sample
from pimem.tasks import base, niah
from pimem.tasks.hotpotqa import split
from pimem.tokens import Tokenizer
from pimem.training.questions import Question, Questions, write
from pimem.training.two_hop import TwoHop

FORMAT = 1
"""Goes up when sets are made differently."""
_MARK = 60
"""Characters by which a sentence is looked up."""
_WORD = re.compile(r"(?<!\S)\S")
_OTHER = {"train": "eval", "eval": "train"}


@dataclass(frozen=True)
class Portion:
    """Questions of one task at one length."""

    task: str
    """hotpotqa, a niah task, or two_hop."""
    questions: int
    """How many."""
    length: int
    """Documents for hotpotqa, tokens for the others."""
    params: dict[str, Any] = field(default_factory=dict)
    """Fields of the task's own parameters; the split is the set's."""

    def __post_init__(self) -> None:
        at_least(self, 1, "questions", "length")
        known = ("hotpotqa", *niah.VARIANTS, TwoHop.name)
        if self.task not in known:
            raise ConfigError(f"task: {self.task!r} is not trained on; {nearest(self.task, known)}")


@dataclass(frozen=True)
class QuestionSet:
    """What a set is made of."""

    portions: tuple[Portion, ...]
    """Its parts. Portions of one task go on where the one before ended, so no question comes twice."""
    part: Literal["train", "eval"] = "train"
    """Which of HotpotQA's paragraphs it may use, which names are made up, and which numbers are drawn."""
    seed: int = 0
    """Of the questions and of their order."""
    most_context: int | None = None
    """Most tokens of a context. A longer one is an error: nothing is ever cut."""
    most_question: int = 1024
    """Most tokens of a question; a longer one is an error."""

    def __post_init__(self) -> None:
        at_least(self, 1, "most_question")
        if not self.portions:
            raise ConfigError("portions: there are none, so the set would be empty; give at least one")


def make(spec: QuestionSet, tokenizer: Tokenizer, folder: str | Path) -> Questions:
    """Builds a set into `folder`, or loads it where the same one is there already.

    Raises `DataError` for a context or question over its limit, text shared with the other part, a folder that holds another
    set or cannot be written, and data that is not here; `ConfigError` for parameters that cannot be.
    """
    tasks = [_task(portion, spec, tokenizer) for portion in spec.portions]
    made_of = {
        "format": FORMAT,
        "spec": as_dict(spec),
        "part": spec.part,
        "tokenizer": tokenizer.hash,
        "data": [t.data_hash for t in tasks],
    }
    return write(Path(folder), made_of, _rows(spec, tasks, tokenizer))


def _rows(spec: QuestionSet, tasks: Sequence[Any], tokenizer: Tokenizer) -> Iterator[tuple[Question, np.ndarray]]:
    """Questions and contexts, in a mixed order that the seed decides."""
    begun: dict[str, int] = {}
    plan: list[tuple[int, int]] = []
    for number, portion in enumerate(spec.portions):
        start = begun.get(portion.task, 0)
        begun[portion.task] = start + portion.questions
        # Asked for here, an impossible number is refused before anything is built.
        tasks[number].samples(portion.questions, start)
        plan += [(number, start + i) for i in range(portion.questions)]
    for at in base.Draw("question set", spec.part, spec.seed).order(len(plan)):
        number, index = plan[at]
        portion, task = spec.portions[number], tasks[number]
        (sample,) = task.samples(1, start=index)
        _check_lengths(spec, sample, tokenizer)
        if _text(portion) == "hotpotqa":
            check_apart(sample.id, tokenizer.decode(sample.context_ids), data.corpus("hotpotqa"), spec.part)
        spans = tuple((e.start, e.end) for e in sample.evidence)
        row = Question(
            id=f"{spec.part}-{sample.id}",
            question=sample.question,
            answers=tuple(sample.answers),
            task=portion.task,
            metric=task.metric,
            seed=_seed(spec),
            source=sample.cluster,
            first=0,
            tokens=len(sample.context_ids),
            evidence=spans,
        )
        yield row, sample.context_ids


def _seed(spec: QuestionSet) -> int:
    """Seed of the tasks: never one that an evaluation run would name."""
    return int(base.Draw("questions", spec.part, spec.seed).raw(1)[0] >> np.uint64(33)) + (1 << 31)


def _text(portion: Portion) -> str:
    """What a portion's contexts are made of: hotpotqa, noise, needles or essays."""
    if portion.task not in niah.VARIANTS:
        return "hotpotqa"
    own = niah.VARIANTS[portion.task].haystack
    if own == "needles":
        return own
    named = str(portion.params.get("haystack", "own" if own == "noise" else "hotpotqa"))
    return own if named == "own" else named


def _task(portion: Portion, spec: QuestionSet, tokenizer: Tokenizer) -> Any:
    where = f"portion {portion.task} of length {portion.length}"
    if "split" in portion.params:
        raise ConfigError(f"{where}: params.split: the split is the set's, {spec.part!r}; leave it out")
    if portion.task == TwoHop.name:
        if portion.params:
            raise ConfigError(f"{where}: params: {', '.join(portion.params)}: this task has none; leave them out")
        return TwoHop(portion.length, spec.part, _seed(spec), tokenizer)
    params, text = dict(portion.params), _text(portion)
    if text == "essays":
        raise ConfigError(f"{where}: params.haystack: the essays are what evaluation reads; train on hotpotqa or noise")
    if text == "hotpotqa":
        params["split"] = spec.part
        if portion.task != "hotpotqa":
            params["haystack"] = text
    return base.build(TaskSpec(portion.task, portion.length, _seed(spec), params), tokenizer)


def _check_lengths(spec: QuestionSet, sample: Sample, tokenizer: Tokenizer) -> None:
    context, question = len(sample.context_ids), len(tokenizer.encode(sample.question))
    if spec.most_context is not None and context > spec.most_context:
        raise DataError(
            f"question {sample.id}: its context has {context:,} tokens, {context - spec.most_context:,} more than the "
            f"{spec.most_context:,} of most_context; shorten the portion's length or raise the limit (nothing is cut)"
        )
    if question > spec.most_question:
        raise DataError(
            f"question {sample.id}: it has {question:,} tokens, {question - spec.most_question:,} more than the "
            f"{spec.most_question:,} of most_question; raise the limit (nothing is cut)"
        )


def check_apart(name: str, text: str, corpus: Corpus, part: str) -> None:
    """Raises `DataError` where `text` holds a sentence of a paragraph that is kept for the other part.

    Sentences that both parts have, and those of fewer than 60 characters, are not looked for.
    """
    foreign = _foreign(corpus, part)
    for match in _WORD.finditer(text):
        for sentence, title in foreign.get(text[match.start() : match.start() + _MARK], ()):
            if text.startswith(sentence, match.start()):
                raise DataError(
                    f"question {name}: its context shares a paragraph with the {_OTHER[part]} part ({title!r}: "
                    f"{sentence[:_MARK]!r}...); a {part} set may use the {part} split alone"
                )


@functools.lru_cache(maxsize=2)
def _foreign(corpus: Corpus, part: str) -> dict[str, list[tuple[str, str]]]:
    """Sentences that only the other part has, with the titles of their paragraphs, by their first characters."""

    def sentences(which: str) -> Iterator[tuple[str, str]]:
        for number in split(corpus, which).paragraphs:
            paragraph = corpus.paragraphs[number]
            yield from ((s, paragraph.title) for raw in paragraph.sentences if len(s := raw.strip()) >= _MARK)

    own = {sentence for sentence, _ in sentences(part)}
    found: dict[str, list[tuple[str, str]]] = {}
    for sentence, title in sentences(_OTHER[part]):
        if sentence not in own:
            found.setdefault(sentence[:_MARK], []).append((sentence, title))
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Builds a set of questions from a YAML file."""
    import argparse

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="folder of the model whose tokenizer cuts the contexts")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    made = make(build(QuestionSet, load_yaml(args.config), str(args.config)), Tokenizer.load(args.model), args.out)
    print(f"{len(made)} questions, {made.manifest['tokens']:,} tokens in {args.out}")


if __name__ == "__main__":
    main()
