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
from pimem.tasks import blocks
from pimem.tasks.base import Built, Draw, check_range, digest
from pimem.tasks.pieces import Assembled, Filled, Pieces, fill_exactly
from pimem.tokens import LongText, Tokenizer

FORMAT = 1
"""Goes up when samples are made differently."""


@dataclass(frozen=True)
class SquadParams:
    """Parameters of the squad task."""

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
        self._task, self._corpus, self._pieces = task, corpus, Pieces(tokenizer)
        self._usable = [i for i, question in enumerate(corpus.questions) if question.answers and question.paragraphs]
        self._order = Draw("squad questions", task.seed).order(len(self._usable))
        self._articles: dict[str, list[int]] = {}
        for number, paragraph in enumerate(corpus.paragraphs):
            self._articles.setdefault(paragraph.title, []).append(number)
        self._head_sums = np.zeros(1, dtype=np.int64)
        self.data_hash = corpus.hash
        made_by = {"task": as_dict(task) | {"params": as_dict(self._params)}, "format": FORMAT}
        self._built = Built(made_by | {"data": corpus.hash, "tokenizer": tokenizer.hash})

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        check_range(n, start, len(self._usable), self.name)
        return (self._sample(i) for i in range(start, start + n))

    def _sample(self, index: int) -> Sample:
        question = self._corpus.questions[self._usable[self._order[index]]]
        chosen = _Chosen(self._wanted(question))
        most = len(self._corpus.paragraphs) - 1 if self._params.paragraphs == "once" else None
        try:
            filled, long = fill_exactly(
                self._task.length,
                lambda size: self._quick(question, chosen, size),
                lambda size: self._pieces.assemble(self._shown(question, chosen.first(size + 1))),
                most,
                Filled.of(self._built.get(index)),
            )
        except ValueError as error:
            raise ConfigError(
                f"task {self.name}: length {self._task.length:,} has no room for the paragraph of question {question.id}, "
                f"{error} tokens"
            ) from None
        evidence, place = self._evidence(question, chosen.first(filled.units + 1), long)
        meta: dict[str, Any] = {
            **filled._asdict(),
            "documents": filled.units + 1,
            "gold_documents": [place],
            "question_id": question.id,
            "haystack_repeats": filled.units + 1 > len(self._corpus.paragraphs),
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

    def _wanted(self, question: Question) -> Iterator[int]:
        """Endless paragraph numbers in the order in which they are taken in: the gold one, its article's, all the others."""
        gold = question.paragraphs[0]
        article = [p for p in self._articles[self._corpus.paragraphs[gold].title] if p != gold]
        kept = {gold, *article}
        others = [p for p in range(len(self._corpus.paragraphs)) if p not in kept]
        yield gold
        for round_ in itertools.count():
            for part in (article, others):
                yield from (part[i] for i in Draw("squad fill", self._task.seed, question.id, round_).order(len(part)))

    def _places(self, question: Question, n: int) -> np.ndarray:
        """A permutation of the `n` documents taken in."""
        own = () if self._params.order == "constant" else (self._task.seed, question.id)
        return Draw("squad order", *own, n).order(n)

    def _shown(self, question: Question, documents: list[int]) -> list[str]:
        """Heads and paragraphs as pieces, in the order in which they stand."""
        pieces = []
        for number, at in enumerate(self._places(question, len(documents)), start=1):
            pieces += [blocks.head(number), self._body(documents[at])]
        pieces[-1] = pieces[-1].removesuffix(blocks.BETWEEN)
        return pieces

    def _body(self, paragraph: int) -> str:
        return self._corpus.paragraphs[paragraph].text + blocks.BETWEEN

    def _quick(self, question: Question, chosen: _Chosen, size: int) -> int:
        documents = chosen.first(size + 1)
        if len(documents) >= len(self._head_sums):
            sizes = self._pieces.sizes([blocks.head(n) for n in range(len(self._head_sums), len(documents) + 1)])
            self._head_sums = np.concatenate([self._head_sums, self._head_sums[-1] + np.cumsum(sizes)])
        total = int(self._head_sums[len(documents)] + self._pieces.sizes([self._body(p) for p in documents]).sum())
        last = self._body(documents[self._places(question, len(documents))[-1]])
        bare, inner = self._pieces.sizes([last.removesuffix(blocks.BETWEEN), last])
        return total + int(bare) - int(inner)

    def _evidence(self, question: Question, documents: list[int], long: Assembled | LongText) -> tuple[Evidence, int]:
        """The paragraph with the answer, and the number of its document."""
        place = int(np.flatnonzero(self._places(question, len(documents)) == 0)[0])
        pieces = self._shown(question, documents)
        start = sum(map(len, pieces[: 2 * place + 1]))
        text = self._corpus.paragraphs[documents[0]].text
        start += len(text) - len(text.lstrip())
        return Evidence(*long.span(start, start + len(text.strip())), text.strip()), place + 1


class _Chosen:
    """Paragraph numbers, drawn as far as they are needed."""

    def __init__(self, source: Iterator[int]):
        self._source, self._made = source, list[int]()

    def first(self, n: int) -> list[int]:
        self._made += itertools.islice(self._source, max(0, n - len(self._made)))
        return self._made[:n]
