"""What recurrent methods share: chunks are read one after the other, each step may rewrite one memory, the last call answers.

What a step's response says, and what beside question and memory its prompt shows, is the method's.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from pimem.records import Call, Turn
from pimem.tokens import digest
from pimem.workflows.base import Session, Workflow


class Recurrent(Workflow):
    """A turn a chunk; `spec` has chunk_tokens, memory_tokens (of a step's response), answer_tokens and on_failure."""

    step_phase: ClassVar[str] = "update"
    final_phase: ClassVar[str] = "final"

    def check_spec(self) -> None:
        self.check_chunks(self.step_phase)
        self.check_question(np.zeros(0, np.uint32))

    def check_question(self, question_ids: np.ndarray) -> None:
        sizes = {"question": len(question_ids), **self.room()}
        self.need(self.step_phase, self.spec.memory_tokens, {**sizes, "chunk": self.spec.chunk_tokens})
        self.need(self.final_phase, self.spec.answer_tokens, sizes)

    def room(self) -> dict[str, int]:
        """Most tokens of each part of a prompt beside question and chunk."""
        return {"memory": max(self.spec.memory_tokens, len(self.empty_memory))}

    def start(self, session: Session) -> Any:
        """What a sample needs to remember beside its trace; handed to `parts` and `take`."""
        return None

    def parts(self, session: Session, state: Any) -> dict[str, np.ndarray]:
        """The parts of the next prompt but for the chunk."""
        return {"question": session.question_ids, "memory": session.memory(self.spec.memory_tokens)}

    @abstractmethod
    def take(self, session: Session, turn: Turn, call: Call, state: Any) -> bool:
        """Takes in a step's response; whether the reading goes on."""

    def lost(self, turn: Turn, call: Call) -> None:
        """Notes in the trace what a step without a response leaves open."""

    async def _run(self, session: Session, context_ids: np.ndarray) -> None:
        spec, trace = self.spec, session.trace
        chunks = self.chunks(context_ids)
        trace.chunks = len(chunks)
        state = self.start(session)
        for index, chunk in enumerate(chunks):
            turn = Turn(index + 1, memory_in=trace.memory, memory_out=trace.memory, recalled=trace.recalled)
            trace.turns.append(turn)
            trace.turns_used = turn.number
            call = await session.call(
                "update",
                turn.number,
                index,
                self.step_phase,
                spec.memory_tokens,
                {**self.parts(session, state), "chunk": chunk},
                chunk_hash=digest(chunk),
            )
            turn.reads = [call]
            # What was recalled has been shown.
            trace.recalled = None
            if call.error:
                self.lost(turn, call)
                if spec.on_failure == "fail" or len(chunks) == trace.damaged + 1:
                    session.give_up(call)
                trace.damaged += 1
            elif not self.take(session, turn, call, state):
                break
        await session.last("final", trace.turns_used, self.final_phase, spec.answer_tokens, self.parts(session, state))
