"""RAG: Okapi BM25 over windows of this one context, the best of them in front of the model in descending score."""

from __future__ import annotations

import asyncio
import os

import numpy as np

from pimem.config import RagSpec
from pimem.errors import ConfigError
from pimem.tokens import windows
from pimem.workflows.base import Session, Workflow


class Rag(Workflow):
    """The retrieval baseline (supplement, section 2.1). Windows without room behind better ones are left out and noted."""

    name = "rag"
    version = 1
    spec: RagSpec

    def check_spec(self) -> None:
        if self.spec.top < 1:
            raise ConfigError(f"rag: top={self.spec.top}; at least one window must be retrieved")
        windows(0, self.spec.chunk_tokens)
        self.check_question(np.zeros(0, np.uint32))

    def check_question(self, question_ids: np.ndarray) -> None:
        self.need("retrieved", self.spec.answer_tokens, {"question": len(question_ids), "one passage": self.spec.chunk_tokens})

    async def _run(self, session: Session, context_ids: np.ndarray) -> None:
        spec, trace = self.spec, session.trace
        chunks = self.chunks(context_ids)
        trace.chunks = len(chunks)
        ranked = await asyncio.to_thread(self._rank, trace.question, chunks)
        room = self.window - self.template("retrieved").asking(len(session.question_ids)) - spec.answer_tokens
        between = self.tokenizer.encode("\n\n")
        passages: list[np.ndarray] = []
        for index in ranked[: spec.top]:
            more = [between, chunks[index]] if passages else [chunks[index]]
            if sum(map(len, passages)) + sum(map(len, more)) > room:
                trace.notes["retrieved_without_room"] = len(ranked[: spec.top]) - len(trace.retrieved)
                break
            passages += more
            trace.retrieved.append(index)
        parts = {"question": session.question_ids, "context": np.concatenate(passages)}
        await session.last("answer", 0, "retrieved", spec.answer_tokens, parts)

    def _rank(self, question: str, chunks: list[np.ndarray]) -> list[int]:
        """Window indices by descending score; equal scores keep the order of the text."""
        # bm25s tries JAX as it is imported, and JAX takes most of a GPU's memory as it is tried.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
        import bm25s

        words = [self.tokenizer.decode(chunk).lower().split() for chunk in chunks]
        asked = question.lower().split()
        if not any(set(asked) & set(window) for window in words):
            return list(range(len(chunks)))
        # Lucene's form of Okapi's inverse document frequency never turns negative; the original does for words that
        # stand in half of the windows.
        index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        index.index(words, show_progress=False)
        scores = index.get_scores(asked)
        return [int(i) for i in np.argsort(-scores, kind="stable")]
