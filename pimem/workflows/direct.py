"""Vanilla: one call over as much of the context as the window holds."""

from __future__ import annotations

import numpy as np

from pimem.config import VanillaSpec
from pimem.workflows.base import Session, Workflow


class Vanilla(Workflow):
    """Direct inference. A context beyond the window keeps its head and tail in equal parts; the trace says how much is gone."""

    name = "vanilla"
    version = 1
    spec: VanillaSpec

    def check_spec(self) -> None:
        self.check_question(np.zeros(0, np.uint32))

    def check_question(self, question_ids: np.ndarray) -> None:
        self.need("answer", self.spec.answer_tokens, {"question": len(question_ids), "context": 1})

    async def _run(self, session: Session, context_ids: np.ndarray) -> None:
        room = self.window - self.template("answer").asking(len(session.question_ids)) - self.spec.answer_tokens
        kept = head_and_tail(context_ids, room)
        session.trace.dropped_tokens = len(context_ids) - len(kept)
        parts = {"question": session.question_ids, "context": kept}
        await session.last("answer", 0, "answer", self.spec.answer_tokens, parts)


def head_and_tail(ids: np.ndarray, room: int) -> np.ndarray:
    """At most `room` >= 1 ids: all of them, or the first half (rounded up) and the last half of the room."""
    if len(ids) <= room:
        return ids
    head = (room + 1) // 2
    return np.concatenate([ids[:head], ids[len(ids) - (room - head) :]])
