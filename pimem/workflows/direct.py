"""Vanilla and YaRN: the model alone over as much of the context as fits, in one call or in two.

YaRN is the same over a model whose window is extended (`ModelSpec.yarn`). LongBench v2's variants are fields: without the
context, and with a first call that thinks step by step.
"""

from __future__ import annotations

import numpy as np

from pimem.config import DirectSpec
from pimem.errors import BudgetError
from pimem.workflows.base import Session, Workflow


class Vanilla(Workflow):
    """Direct inference. A context beyond the room keeps its head and tail; the trace says how much is gone."""

    name = "vanilla"
    version = 2
    spec: DirectSpec

    @property
    def _first(self) -> tuple[str, int]:
        """The phase of the call that sees the context, and what it may generate."""
        if self.spec.reasoning_tokens:
            return "reason", self.spec.reasoning_tokens
        return ("answer" if self.spec.context == "whole" else "closed_book"), self.spec.answer_tokens

    def check_spec(self) -> None:
        self.check_question(np.zeros(0, np.uint32))

    def check_question(self, question_ids: np.ndarray) -> None:
        spec, size = self.spec, len(question_ids)
        phase, room = self._first
        context = {"context": 1} if spec.context == "whole" else {}
        self.need(phase, room, {"question": size, **context})
        if spec.reasoning_tokens:
            self.need("conclude", spec.answer_tokens, {"question": size, "reasoning": spec.reasoning_tokens})
        if spec.context == "whole" and self._room(size) < 1:
            raise BudgetError(
                f"{self.name}: prompt_tokens={spec.prompt_tokens:,} leaves no token for the context beside the "
                f"{self.template(phase).tokens:,} of the prompt text and the {size:,} of the question; give more"
            )

    def _room(self, question_tokens: int) -> int:
        """Most tokens of the context."""
        phase, generated = self._first
        most = self.window - generated
        if self.spec.prompt_tokens:
            most = min(most, self.spec.prompt_tokens)
        return most - self.template(phase).asking(question_tokens)

    async def _run(self, session: Session, context_ids: np.ndarray) -> None:
        spec, trace = self.spec, session.trace
        parts = {"question": session.question_ids}
        if spec.context == "none":
            trace.notes["context"] = "not shown"
        else:
            parts["context"] = self._cut(context_ids, len(session.question_ids))
            trace.dropped_tokens = len(context_ids) - len(parts["context"])
        phase, room = self._first
        if spec.reasoning_tokens:
            call = trace.reasoning = await session.call("reason", 0, 0, phase, room, parts)
            if call.error:
                session.give_up(call)
            # What was generated within its budget may tokenise a little longer again.
            thought = self.tokenizer.encode(call.text.strip())[: spec.reasoning_tokens]
            session.note_ending(call, "reasoning")
            phase, room, parts = "conclude", spec.answer_tokens, {"question": session.question_ids, "reasoning": thought}
        await session.last("answer", 0, phase, room, parts)
        assert trace.last is not None
        session.note_ending(trace.last, "answer")

    def _cut(self, ids: np.ndarray, question_tokens: int) -> np.ndarray:
        room = self._room(question_tokens)
        if len(ids) <= room or self.spec.cut == "context":
            return head_and_tail(ids, room)
        before, after = self._around(question_tokens)
        head = min(max((before + room + after) // 2 - before, 0), room)
        return np.concatenate([ids[:head], ids[len(ids) - (room - head) :]])

    def _around(self, question_tokens: int) -> tuple[int, int]:
        """Tokens of the prompt before and behind the context, the question among them."""
        template = self.template(self._first[0])
        at = template.slots.index("context")
        before = sum(map(len, template.pieces[: at + 1])) + question_tokens * template.slots[:at].count("question")
        return before, template.asking(question_tokens) - before


class Yarn(Vanilla):
    """Direct inference in a window that YaRN extends."""

    name = "yarn"


def head_and_tail(ids: np.ndarray, room: int) -> np.ndarray:
    """At most `room` >= 1 ids: all of them, or the first half (rounded up) and the last half of the room."""
    if len(ids) <= room:
        return ids
    head = (room + 1) // 2
    return np.concatenate([ids[:head], ids[len(ids) - (room - head) :]])
