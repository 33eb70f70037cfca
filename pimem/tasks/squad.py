"""RULER's question answering over SQuAD (its task qa_1): one paragraph among many holds the answer.

Questions that their paragraph does not answer are left out, as in RULER. The rest of the paragraph's article goes into the
context first, then the rest of the set; where a length is more than all of it, paragraphs stand there again, but never the one
with the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pimem import data
from pimem.config import TaskSpec, as_dict
from pimem.config import build as build_spec
from pimem.corpora import Corpus, Question
from pimem.errors import ConfigError
from pimem.records import Evidence, Sample
from pimem.tasks import articles, blocks
from pimem.tasks.base import Built, Draw, check_range, digest
from pimem.tasks.blocks import Shown
from pimem.tasks.pieces import Assembled, Filled, fill
from pimem.tokens import LongText, Tokenizer

FORMAT = 2
"""Goes up when samples are made differently."""


@dataclass(frozen=True)
class SquadParams:
    """Parameters of the squad task."""

    split: Literal["all", "train", "eval"] = "all"
    """all articles; or eval, the ones that no model is trained on here, or train, the others."""
    paragraphs: Literal["repeated", "once"] = "repeated"
    """What becomes of a length that is more than all paragraphs: they repeat, or the text ends with them, short of it."""
    order: Literal["sample", "constant"] = "sample"
    """constant: the paragraph with the answer takes the same place in every context of as many documents, as in the released
    data."""


def build(task: TaskSpec, tokenizer: Tokenizer) -> Squad:
    """The task over the fetched data set. Raises `ConfigError` and `DataError` as `pimem.tasks.base.build`."""
    return Squad(task, tokenizer, data.corpus("squad"))


class Squad:
    """See `pimem.tasks.base.Task`. The same questions in the same order at every length."""

    name = "squad"
    metric = "sub_em"
    unit = "tokens"

    def __init__(self, task: TaskSpec, tokenizer: Tokenizer, corpus: Corpus):
        self._params = build_spec(SquadParams, task.params, "task squad: params")
        self._task, self._corpus, self._tokenizer = task, corpus, tokenizer
        self._pool = articles.split(corpus, self._params.split)
        self._usable = [i for i in self._pool.questions if corpus.questions[i].answers and corpus.questions[i].paragraphs]
        self._order = Draw("squad questions", task.seed).order(len(self._usable))
        self._articles: dict[str, list[int]] = {}
        for number in self._pool.paragraphs:
            self._articles.setdefault(corpus.paragraphs[number].title, []).append(number)
        self.data_hash = corpus.hash
        made_by = {"task": as_dict(task) | {"params": as_dict(self._params)}, "format": FORMAT}
        self._built = Built(made_by | {"data": corpus.hash, "tokenizer": tokenizer.hash})

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        check_range(n, start, len(self._usable), self.name)
        return (self._sample(i) for i in range(start, start + n))

    def _sample(self, index: int) -> Sample:
        question = self._corpus.questions[self._usable[self._order[index]]]
        chosen = _Chosen(self._wanted(question))
        most = len(self._pool.paragraphs) - 1 if self._params.paragraphs == "once" else None
        filled = Filled.of(self._built.get(index))
        if filled is None:
            try:
                filled = fill(self._task.length, lambda size: len(self._made(question, chosen, size)[0].ids), most)
            except ValueError as error:
                raise ConfigError(
                    f"task {self.name}: length {self._task.length:,} has no room for the paragraph of question {question.id}, "
                    f"{error} tokens"
                ) from None
        long, shown, place = self._made(question, chosen, filled.units)
        text = self._corpus.paragraphs[question.paragraphs[0]].text
        start = shown.bodies[place] + len(text) - len(text.lstrip())
        evidence = Evidence(*long.span(start, start + len(text.strip())), text.strip())
        meta: dict[str, Any] = {
            **filled._asdict(),
            "tokens": len(long.ids),
            "documents": filled.units + 1,
            "gold_documents": [place + 1],
            "question_id": question.id,
            "haystack_repeats": filled.units + 1 > len(self._pool.paragraphs),
        }
        self._built.keep(index, meta | {"evidence": [[evidence.start, evidence.end]], "ids": digest(long.ids)})
        return Sample(
            id=f"{self.name}-{self._task.length}-{index}",
            cluster=question.id,
            question=question.question,
            answers=question.answers,
            context_ids=long.ids,
            evidence=(evidence,),
            meta=meta,
        )

    def _made(self, question: Question, chosen: _Chosen, size: int) -> tuple[Assembled | LongText, Shown, int]:
        """The context with `size` paragraphs beside the gold one, and which of its documents that is, from 0."""
        documents, places = chosen.first(size + 1), self._places(question, size + 1)
        shown_documents = [documents[at] for at in places]
        shown = blocks.render(self._corpus, shown_documents, titled=False)
        made = blocks.load(self._corpus, self._tokenizer, make=True, titled=False)
        together = made.assemble(shown_documents, shown.text, shown.starts) if made else None
        return together or self._tokenizer.encode_long(shown.text), shown, int(np.flatnonzero(places == 0)[0])

    def _wanted(self, question: Question) -> Iterator[int]:
        """Endless paragraph numbers in the order in which they are taken in: the gold one, its article's, all the others."""
        gold = question.paragraphs[0]
        article = [p for p in self._articles[self._corpus.paragraphs[gold].title] if p != gold]
        kept = {gold, *article}
        others = [p for p in self._pool.paragraphs if p not in kept]
        yield gold
        for round_ in itertools.count():
            for part in (article, others):
                yield from (part[i] for i in Draw("squad fill", self._task.seed, question.id, round_).order(len(part)))

    def _places(self, question: Question, n: int) -> np.ndarray:
        """A permutation of the `n` documents taken in."""
        own = () if self._params.order == "constant" else (self._task.seed, question.id)
        return Draw("squad order", *own, n).order(n)


class _Chosen:
    """Paragraph numbers, drawn as far as they are needed."""

    def __init__(self, source: Iterator[int]):
        self._source, self._made = source, list[int]()

    def first(self, n: int) -> list[int]:
        self._made += itertools.islice(self._source, max(0, n - len(self._made)))
        return self._made[:n]
