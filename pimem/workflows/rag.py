"""RAG: Okapi BM25 over windows of this one context, the best of them in front of the model."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Sequence

import numpy as np

from pimem.config import RagSpec
from pimem.errors import ConfigError
from pimem.tokens import windows
from pimem.workflows.base import Session, Workflow


class Rag(Workflow):
    """The retrieval baseline (supplement, section 2.1). Windows without room behind better ones are left out and noted."""

    name = "rag"
    version = 2
    spec: RagSpec

    def check_spec(self) -> None:
        if self.spec.top < 1:
            raise ConfigError(f"rag: top={self.spec.top}; at least one window must be retrieved")
        windows(0, self.spec.chunk_tokens)
        self.check_question(np.zeros(0, np.uint32))

    def check_question(self, question_ids: np.ndarray) -> None:
        head, tail = self._around(1)
        passage = len(head) + self.spec.chunk_tokens + len(tail)
        self.need("retrieved", self.spec.answer_tokens, {"question": len(question_ids), "one passage": passage})

    async def _run(self, session: Session, context_ids: np.ndarray) -> None:
        spec, trace = self.spec, session.trace
        chunks = self.chunks(context_ids)
        trace.chunks = len(chunks)
        ranked = await asyncio.to_thread(self._rank, trace.question, chunks)
        room = self.window - self.template("retrieved").asking(len(session.question_ids)) - spec.answer_tokens
        between = self.tokenizer.encode("\n\n")
        used = 0
        for number, index in enumerate(ranked[: spec.top], start=1):
            head, tail = self._around(number)
            used += len(head) + len(chunks[index]) + len(tail) + (len(between) if trace.retrieved else 0)
            if used > room:
                trace.notes["retrieved_without_room"] = len(ranked[: spec.top]) - len(trace.retrieved)
                break
            trace.retrieved.append(index)
        shown: list[np.ndarray] = []
        for number, index in enumerate(trace.retrieved if spec.order == "score" else sorted(trace.retrieved), start=1):
            head, tail = self._around(number)
            shown += [*([between] if shown else []), head, chunks[index], tail]
        parts = {"question": session.question_ids, "context": np.concatenate(shown)}
        await session.last("answer", 0, "retrieved", spec.answer_tokens, parts)
        assert trace.last is not None
        session.note_ending(trace.last, "answer")

    def _around(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The ids of what the prompt set shows before and behind the passage of this number."""
        before, after = self.prompts.passage.replace("{label}", str(number)).split("{text}")
        return self.tokenizer.encode(before), self.tokenizer.encode(after)

    def _rank(self, question: str, chunks: list[np.ndarray]) -> list[int]:
        """Window indices by descending score; equal scores keep the order of the text."""
        # bm25s tries JAX as it is imported, and JAX takes most of a GPU's memory as it is tried.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import bm25s

        words = [self.tokenizer.decode(chunk).lower().split() for chunk in chunks]
        asked = question.lower().split()
        if not any(set(asked) & set(window) for window in words):
            return list(range(len(chunks)))
        if self.spec.bm25 == "okapi":
            return [int(i) for i in np.argsort(-okapi(asked, words), kind="stable")]
        # Lucene's form of Okapi's inverse document frequency never turns negative; the original does for words that
        # stand in half of the windows.
        index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        index.index(words, show_progress=False)
        scores = index.get_scores(asked)
        return [int(i) for i in np.argsort(-scores, kind="stable")]


def okapi(
    asked: Sequence[str], windows: Sequence[Sequence[str]], k1: float = 1.5, b: float = 0.75, floor: float = 0.25
) -> np.ndarray:
    """Okapi BM25 with its own inverse document frequency, shape (windows,): what the released baseline retrieves by.

    A word of more than half of the windows has a negative one, which `floor` times the mean over all words takes the place of.
    A word asked for twice counts twice.
    """
    counts = [Counter(window) for window in windows]
    holding = Counter(word for count in counts for word in count)
    number = len(windows)
    weight = {word: np.log(number - n + 0.5) - np.log(n + 0.5) for word, n in holding.items()}
    instead = floor * sum(weight.values()) / len(weight)
    lengths = np.array([len(window) for window in windows])
    spread = k1 * (1 - b + b * lengths / lengths.mean())
    scores = np.zeros(number)
    for word in asked:
        if word in weight:
            found = np.array([count[word] for count in counts])
            scores += (weight[word] if weight[word] >= 0 else instead) * found * (k1 + 1) / (found + spread)
    return scores
