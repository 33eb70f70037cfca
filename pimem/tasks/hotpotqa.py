"""Long-context HotpotQA: a two-hop question whose own paragraphs stand among thousands of others, in random order.

The setting of RULER's HotpotQA task as memory agents are evaluated on it (section 4 of the paper): n documents drawn from the
paragraphs of the dev set, the gold ones always among them.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pimem import data
from pimem.config import TaskSpec, as_dict
from pimem.config import build as build_spec
from pimem.corpora import Corpus, Question
from pimem.errors import ConfigError
from pimem.records import Evidence, Sample
from pimem.schema import check_share
from pimem.tasks import blocks, splits
from pimem.tasks.base import Built, Draw, check_range, digest
from pimem.tasks.blocks import Shown
from pimem.tasks.blocks import render as render
from pimem.tasks.pieces import Assembled, Filled, fill
from pimem.tasks.splits import Pool, gold
from pimem.tokens import LongText, Tokenizer

FORMAT = 1
"""Goes up when samples are made differently."""
EVALUATION_SHARE = 0.39
"""Part of the paragraphs kept for evaluation by the split: of HotpotQA's 66,635 about 26,000, enough for 25,600 documents."""

WORTHWHILE_TOKENS = 200_000
"""From this length on a search for as many documents as fill it counts paragraphs tokenised once."""


@dataclass(frozen=True)
class HotpotQAParams:
    """Parameters of the hotpotqa task."""

    split: Literal["all", "train", "eval"] = "all"
    """all: every question over every paragraph, as in the paper; train and eval share neither questions nor paragraphs."""
    unit: Literal["documents", "tokens"] = "documents"
    """What the length counts: documents, as memory agents are evaluated, or tokens, as in RULER (its task qa_2)."""
    order: Literal["sample", "constant"] = "sample"
    """constant: a question's own paragraphs take the same places in every context of as many documents, as in the released
    data."""
    evidence_within: float = 1.0
    """Share of the documents, from the first on, among which all gold ones stand, at places drawn there. GRU-Mem's paper has
    0.1 and 0.2, too (Tables 2 and 4)."""

    def __post_init__(self) -> None:
        check_share(self, "evidence_within")


@functools.lru_cache(maxsize=6)
def split(corpus: Corpus, name: str) -> Pool:
    """The part of HotpotQA that `name` stands for (`pimem.tasks.splits`).

    A question's own paragraphs stay together, with every other paragraph under one of their titles.
    """
    titles = splits.titled(corpus)
    units = {q.id: {n for p in q.paragraphs for n in titles[corpus.paragraphs[p].title]} for q in corpus.questions}
    return splits.part(corpus, name, EVALUATION_SHARE, units)


def build(task: TaskSpec, tokenizer: Tokenizer) -> HotpotQA:
    """The task over the fetched data set. Raises `ConfigError` and `DataError` as `pimem.tasks.base.build`."""
    return HotpotQA(task, tokenizer, data.corpus("hotpotqa"))


class HotpotQA:
    """See `pimem.tasks.base.Task`. The same questions in the same order at every length; a longer context contains the
    documents of a shorter one, in another order."""

    name = "hotpotqa"
    metric = "sub_em"

    def __init__(self, task: TaskSpec, tokenizer: Tokenizer, corpus: Corpus):
        params = build_spec(HotpotQAParams, task.params, "task hotpotqa: params")
        self._task, self._tokenizer, self._corpus = task, tokenizer, corpus
        self.unit: str = params.unit
        self._params, self._pool = params, split(corpus, params.split)
        available = len(self._pool.paragraphs)
        wanted = task.length if params.unit == "documents" else available
        if wanted > available:
            raise ConfigError(
                f"task hotpotqa: {task.length:,} documents are asked for and there are {available:,} in split {params.split!r}"
            )
        first = self._first(wanted)
        usable = [i for i in self._pool.questions if 0 < len(gold(corpus.questions[i])) <= first]
        if len(usable) < len(self._pool.questions):
            share = "" if params.evidence_within == 1 else f", the first {params.evidence_within:.0%} of {task.length},"
            raise ConfigError(
                f"task hotpotqa: {first} documents{share} cannot hold the gold paragraphs of every question; 2 can"
            )
        self._order = Draw("hotpotqa questions", task.seed).order(len(usable))
        self._usable = usable
        self.data_hash = corpus.hash
        made_by = {"task": as_dict(task) | {"params": as_dict(params)}, "format": FORMAT}
        self._built = Built(made_by | {"data": corpus.hash, "tokenizer": tokenizer.hash})

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        check_range(n, start, len(self._usable), f"{self.name} of length {self._task.length}")
        return (self._sample(i) for i in range(start, start + n))

    def _sample(self, index: int) -> Sample:
        question = self._corpus.questions[self._usable[self._order[index]]]
        size, filled = self._size(index, question)
        documents = self._documents(question, size)
        shown = render(self._corpus, documents)
        long = self._tokenised(documents, shown)
        evidence = []
        for at, end in self._gold_characters(question, documents, shown.bodies):
            evidence.append(Evidence(*long.span(at, end), shown.text[at:end]))
        place = {paragraph: number for number, paragraph in enumerate(documents)}
        meta: dict[str, Any] = {
            "tokens": len(long.ids),
            "documents": len(documents),
            "gold_documents": sorted(place[p] + 1 for p in gold(question)),
            "question_id": question.id,
            "kind": question.kind,
            **filled,
        }
        recipe = {**meta, "evidence": [[e.start, e.end] for e in evidence], "ids": digest(long.ids)}
        self._built.keep(index, recipe)
        return Sample(
            id=f"hotpotqa-{self._task.length}-{index}",
            cluster=question.id,
            question=question.question,
            answers=question.answers,
            context_ids=long.ids,
            evidence=tuple(evidence),
            meta=meta,
        )

    def _size(self, index: int, question: Question) -> tuple[int, dict[str, Any]]:
        """How many documents the context has, and what was found where the length counts tokens."""
        length = self._task.length
        if self.unit == "documents":
            return length, {}
        least = len(gold(question))
        filled = Filled.of(self._built.get(index))
        if filled is None:
            try:
                filled = fill(length, lambda n: self._tokens(question, n + least), len(self._pool.paragraphs) - least)
            except ValueError as error:
                raise ConfigError(
                    f"task hotpotqa: length {length:,} has no room for the gold paragraphs of question {question.id}, "
                    f"{error} tokens"
                ) from None
        if filled.one_more is None:
            raise ConfigError(
                f"task hotpotqa: {length:,} tokens are asked for, split {self._params.split!r} has {filled.tokens:,}"
            )
        size = filled.units + least
        if self._first(size) < least:
            raise ConfigError(
                f"task hotpotqa: {length:,} tokens are {size} documents, of which the first {self._params.evidence_within:.0%} "
                f"cannot hold the {least} gold paragraphs of question {question.id}; ask for more tokens"
            )
        return size, filled._asdict()

    def _first(self, documents: int) -> int:
        """Among how many documents, from the first on, the gold ones stand."""
        # 0.29 of 100 documents are 29, whatever floating point makes of it.
        return math.floor(round(self._params.evidence_within * documents, 6))

    def _tokens(self, question: Question, size: int) -> int:
        documents = self._documents(question, size)
        return len(self._tokenised(documents, render(self._corpus, documents)).ids)

    def _documents(self, question: Question, length: int) -> list[int]:
        """Paragraph numbers in the order they are shown: gold, the question's own others, then others of the pool."""
        seed = self._task.seed
        pool = self._pool.paragraphs
        first = gold(question)
        members = set(pool)
        own = [p for p in question.paragraphs if p in members and p not in first]
        chosen = (first + own)[:length]
        constant = self._params.order == "constant"
        if constant and len(chosen) == len(first + own):
            # As they came with the question, so that gold and distractors take turns at the constant places.
            chosen.sort(key=question.paragraphs.index)
        taken = set(chosen)
        if len(chosen) < length:
            fill = (pool[i] for i in Draw("hotpotqa fill", seed, question.id).order(len(pool)))
            chosen += itertools.islice((p for p in fill if p not in taken), length - len(chosen))
        key = (length,) if constant else (seed, question.id, length)
        order = Draw("hotpotqa order", *key).order(length).tolist()
        if self._params.evidence_within < 1:
            golden = [i for i in order if chosen[i] in first]
            places = Draw("hotpotqa gold places", *key).order(max(self._first(length), len(first)))[: len(first)].tolist()
            at, others = dict(zip(places, sorted(golden), strict=True)), (i for i in order if i not in golden)
            order = [at[place] if place in at else next(others) for place in range(length)]
        return [chosen[i] for i in order]

    def _tokenised(self, documents: list[int], shown: Shown) -> LongText | Assembled:
        """The context's ids: put together from paragraphs tokenised once where many are asked for, else tokenised whole."""
        many = len(documents) >= blocks.WORTHWHILE or (self.unit == "tokens" and self._task.length >= WORTHWHILE_TOKENS)
        made = blocks.load(self._corpus, self._tokenizer, make=many)
        together = made.assemble(documents, shown.text, shown.starts) if made else None
        return together or self._tokenizer.encode_long(shown.text)

    def _gold_characters(self, question: Question, documents: list[int], bodies: list[int]) -> list[tuple[int, int]]:
        """Character ranges of the supporting sentences, in order; of the whole paragraph where no sentence of it is named."""
        place = {paragraph: number for number, paragraph in enumerate(documents)}
        ranges = set()
        for paragraph, sentence in question.support:
            sentences = self._corpus.paragraphs[paragraph].sentences
            if not 0 <= sentence < len(sentences) or not sentences[sentence].strip():
                sentences, sentence = ("".join(sentences),), 0
            before = "".join(sentences[:sentence])
            body = sentences[sentence]
            at = bodies[place[paragraph]] + len(before) + len(body) - len(body.lstrip())
            ranges.add((at, at + len(body.strip())))
        return sorted(ranges)
