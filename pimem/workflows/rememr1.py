"""ReMemR1: a recurrent memory that may, with each step, ask for one of the memories it has overwritten."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pimem.config import ReMemR1Spec
from pimem.records import Turn
from pimem.tokens import Tokenizer, digest
from pimem.workflows.base import Session, Workflow

_UPDATE = re.compile(r"<update>(.*)</update>", re.DOTALL)
_RECALL = re.compile(r"<recall>(.*?)</recall>", re.DOTALL)


class Step(NamedTuple):
    """What a response says."""

    memory: str | None
    """The new memory; None where it has none."""
    query: str | None
    """What to look for among the memories."""
    well_formed: bool


class ReMemR1(Workflow):
    """Each response holds one new memory and may hold one recall query; the memory found stands in the next prompt.

    A response that does not keep the form is counted as malformed. With `memory: update` it changes nothing and recalls
    nothing. With `memory: response` whatever is left of it without recall tags is the new memory, as the released code has it.
    """

    name = "rememr1"
    version = 1
    spec: ReMemR1Spec

    def check_spec(self) -> None:
        self.check_chunks("recall_update")
        self.check_question(np.zeros(0, np.uint32))

    def check_question(self, question_ids: np.ndarray) -> None:
        spec = self.spec
        sizes = {
            "question": len(question_ids),
            "recalled": max(spec.memory_tokens, len(self._no_recall)),
            "memory": max(spec.memory_tokens, len(self.empty_memory)),
        }
        self.need("recall_update", spec.memory_tokens, {**sizes, "chunk": spec.chunk_tokens})
        self.need("recall_final", spec.answer_tokens, sizes)

    @property
    def _no_recall(self) -> np.ndarray:
        return self.tokenizer.encode(self.prompts.empty_recall)

    async def _run(self, session: Session, context_ids: np.ndarray) -> None:
        spec, trace = self.spec, session.trace
        chunks = self.chunks(context_ids)
        trace.chunks = len(chunks)
        memories = Memories(self.tokenizer)
        for index, chunk in enumerate(chunks):
            turn = Turn(index + 1, memory_in=trace.memory, memory_out=trace.memory, recalled=trace.recalled)
            trace.turns.append(turn)
            trace.turns_used = index + 1
            call = await session.call(
                "update",
                index + 1,
                index,
                "recall_update",
                spec.memory_tokens,
                {**self._parts(session, memories), "chunk": chunk},
                chunk_hash=digest(chunk),
            )
            turn.reads = [call]
            trace.recalled = None
            if call.error:
                if spec.on_failure == "fail" or len(chunks) == trace.damaged + 1:
                    session.give_up(call)
                trace.damaged += 1
                continue
            step = parse_step(call.text, spec.memory)
            call.well_formed, turn.query = step.well_formed, step.query
            if spec.recall_from == "earlier" and step.query:
                trace.recalled = memories.search(step.query)
            if step.memory is not None:
                turn.memory_out = trace.memory = step.memory
                memories.add(turn.number, step.memory)
            if spec.recall_from == "all" and step.query:
                trace.recalled = memories.search(step.query)
        await session.last("final", trace.turns_used, "recall_final", spec.answer_tokens, self._parts(session, memories))

    def _parts(self, session: Session, memories: Memories) -> dict[str, np.ndarray]:
        limit, recalled = self.spec.memory_tokens, session.trace.recalled
        return {
            "question": session.question_ids,
            "recalled": self._no_recall if recalled is None else memories.ids[recalled][:limit],
            "memory": session.memory(limit),
        }


def parse_step(text: str, memory: str = "update") -> Step:
    """A response's new memory and recall query; `memory` as in `ReMemR1Spec`.

    The form: one `<update>...</update>`, at most one `<recall>...</recall>` that is not blank and stands outside of it, other
    text anywhere around them. Without it there is no update, and under `memory="update"` no query either.
    """
    queries = [query.strip() for query in _RECALL.findall(text)]
    rest = _RECALL.sub("", text)
    update = _UPDATE.search(rest)
    tags = [text.count(tag) for tag in ("<update>", "</update>", "<recall>", "</recall>")]
    inside = update is not None and update[0] not in text
    well_formed = tags in ([1, 1, 0, 0], [1, 1, 1, 1]) and update is not None and all(queries) and not inside
    if memory == "response":
        return Step(rest.strip(), next(filter(None, queries), None), well_formed)
    if not well_formed or update is None:
        return Step(None, None, False)
    return Step(update[1].strip(), queries[0] if queries else None, True)


class Memories:
    """The distinct memories so far, searched by the cosine of TF-IDF weights over the tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self.ids: dict[int, np.ndarray] = {}
        """Token ids of each memory by the number of the turn that wrote it first."""
        self._known: set[str] = set()

    def add(self, turn: int, memory: str) -> None:
        """Keeps a memory that is not blank and not there yet."""
        if memory and memory not in self._known:
            self._known.add(memory)
            self.ids[turn] = self._tokenizer.encode(memory)

    def search(self, query: str) -> int | None:
        """Turn of the memory nearest to `query`, the latest of equals; None where none has a token in common with it."""
        scores = similarities(self._tokenizer.encode(query), list(self.ids.values()))
        if not len(scores) or not scores.max() > 0:
            return None
        return list(self.ids)[int(np.flatnonzero(scores == scores.max())[-1])]


def similarities(query: np.ndarray, documents: Sequence[np.ndarray]) -> np.ndarray:
    """Cosine of `query` with each document, float64 of shape (documents,); 0 where they share no token.

    Weights are counts times ln((1 + n) / (1 + df)) + 1 over the n documents, of which df hold the token.
    """
    counted = [np.unique(ids, return_counts=True) for ids in documents]
    if not counted:
        return np.zeros(0)
    vocabulary, found = np.unique(np.concatenate([tokens for tokens, _ in counted]), return_counts=True)
    rarity = np.log((1 + len(documents)) / (1 + found)) + 1

    asked = np.zeros(len(vocabulary))
    tokens, counts = np.unique(query[np.isin(query, vocabulary)], return_counts=True)
    at = np.searchsorted(vocabulary, tokens)
    asked[at] = counts * rarity[at]
    length = np.linalg.norm(asked)
    scores = np.zeros(len(documents))
    for i, (tokens, counts) in enumerate(counted):
        at = np.searchsorted(vocabulary, tokens)
        weights = counts * rarity[at]
        if shared := float(weights @ asked[at]):
            scores[i] = shared / (length * np.linalg.norm(weights))
    return scores
