"""MemAgent: chunks are read one after the other, each call rewrites the memory, the last call answers from it."""

from __future__ import annotations

import numpy as np

from pimem.config import MemAgentSpec
from pimem.records import Turn
from pimem.tokens import digest
from pimem.workflows.base import Session, Workflow


class MemAgent(Workflow):
    """The recurrent baseline; the whole response of an update is the new memory."""

    name = "mem_agent"
    version = 1
    spec: MemAgentSpec

    def check_spec(self) -> None:
        self.check_chunks("update")
        self.check_question(np.zeros(0, np.uint32))

    def check_question(self, question_ids: np.ndarray) -> None:
        spec = self.spec
        sizes = {"question": len(question_ids), "memory": max(spec.memory_tokens, len(self.empty_memory))}
        self.need("update", spec.memory_tokens, {**sizes, "chunk": spec.chunk_tokens})
        self.need("final", spec.answer_tokens, sizes)

    async def _run(self, session: Session, context_ids: np.ndarray) -> None:
        spec, trace = self.spec, session.trace
        chunks = self.chunks(context_ids)
        trace.chunks = len(chunks)
        for index, chunk in enumerate(chunks):
            turn = Turn(index + 1, memory_in=trace.memory, memory_out=trace.memory)
            trace.turns.append(turn)
            trace.turns_used = index + 1
            call = await session.call(
                "update",
                index + 1,
                index,
                "update",
                spec.memory_tokens,
                {"question": session.question_ids, "memory": session.memory(spec.memory_tokens), "chunk": chunk},
                chunk_hash=digest(chunk),
            )
            turn.reads = [call]
            if call.error:
                if spec.on_failure == "fail" or len(chunks) == trace.damaged + 1:
                    session.give_up(call)
                trace.damaged += 1
                continue
            turn.memory_out = trace.memory = call.text.strip()
        parts = {"question": session.question_ids, "memory": session.memory(spec.memory_tokens)}
        await session.last("final", trace.turns_used, "final", spec.answer_tokens, parts)
