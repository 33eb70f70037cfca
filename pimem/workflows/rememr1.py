"""ReMemR1: a recurrent memory that may, with each step, ask for one of the memories it has overwritten."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pimem.config import ReMemR1Spec
from pimem.records import Call, Turn
from pimem.tokens import Tokenizer
from pimem.workflows.base import Session
from pimem.workflows.recurrent import Recurrent

_UPDATE = re.compile(r"<update>(.*)</update>", re.DOTALL)
_RECALL = re.compile(r"<recall>(.*?)</recall>", re.DOTALL)


class Step(NamedTuple):
    """What a response says."""

    memory: str | None
    """The new memory; None where it has none."""
    query: str | None
    """What to look for among the memories."""
    well_formed: bool


class ReMemR1(Recurrent):
    """Each response holds one new memory and may hold one recall query; the memory found stands in the next prompt.

    A response that does not keep the form is counted as malformed. With `memory: update` it changes nothing and recalls
    nothing. With `memory: response` whatever is left of it without recall tags is the new memory, as the released code has it.
    """

    name = "rememr1"
    version = 1
    spec: ReMemR1Spec

    step_phase = "recall_update"
    final_phase = "recall_final"

    def room(self) -> dict[str, int]:
        return {"recalled": max(self.spec.memory_tokens, len(self._no_recall)), **super().room()}

    @property
    def _no_recall(self) -> np.ndarray:
        return self.tokenizer.encode(self.prompts.empty_recall)

    def start(self, session: Session) -> Memories:
        return Memories(self.tokenizer)

    def parts(self, session: Session, state: Memories) -> dict[str, np.ndarray]:
        recalled = session.trace.recalled
        shown = self._no_recall if recalled is None else state.ids[recalled][: self.spec.memory_tokens]
        return {"recalled": shown, **super().parts(session, state)}

    def take(self, session: Session, turn: Turn, call: Call, state: Memories) -> bool:
        spec, trace = self.spec, session.trace
        step = parse_step(call.text, spec.memory)
        call.well_formed, turn.query = step.well_formed, step.query
        if spec.recall_from == "earlier" and step.query:
            trace.recalled = state.search(step.query)
        if step.memory is not None:
            turn.memory_out = trace.memory = step.memory
            state.add(turn.number, step.memory)
        if spec.recall_from == "all" and step.query:
            trace.recalled = state.search(step.query)
        return True


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
