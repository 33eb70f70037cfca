"""GRU-Mem: a recurrent memory with two gates in text: one may discard a step's new memory, the other may end the reading."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from pimem.config import GruMemSpec
from pimem.records import Turn
from pimem.tokens import digest
from pimem.workflows.base import Session, Workflow

_STEP = re.compile(
    r"(?P<thinking>.*?)\s*<check>(?P<check>yes|no)</check>\s*<update>(?P<update>.*)</update>\s*<next>(?P<next>continue|end)</next>",
    re.DOTALL,
)
_TAGS = re.compile(r"</?(?:check|update|next)>")


class Step(NamedTuple):
    """What a well-formed response says."""

    update: bool
    """The update gate is open."""
    candidate: str
    """The memory that replaces the old one if it is."""
    end: bool
    """The exit gate says that everything needed has been read."""


class GruMem(Workflow):
    """Algorithm 1 of the GRU-Mem paper.

    A response that does not keep the form changes nothing: the memory stays, the reading goes on, and the trace counts the
    step as malformed. The paper says of such a response only that it is not rewarded.
    """

    name = "gru_mem"
    version = 1
    spec: GruMemSpec

    def check_spec(self) -> None:
        self.check_chunks("gated_update")
        self.check_question(np.zeros(0, np.uint32))

    def check_question(self, question_ids: np.ndarray) -> None:
        spec = self.spec
        sizes = {"question": len(question_ids), "memory": max(spec.memory_tokens, len(self.empty_memory))}
        self.need("gated_update", spec.memory_tokens, {**sizes, "chunk": spec.chunk_tokens})
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
                "gated_update",
                spec.memory_tokens,
                {"question": session.question_ids, "memory": session.memory(spec.memory_tokens), "chunk": chunk},
                chunk_hash=digest(chunk),
            )
            turn.reads = [call]
            if call.error:
                call.check = turn.exit = "failed"
                if spec.on_failure == "fail" or len(chunks) == trace.damaged + 1:
                    session.give_up(call)
                trace.damaged += 1
                continue
            step = parse_step(call.text)
            call.well_formed = step is not None
            if step is None:
                call.check = turn.exit = "malformed"
                continue
            call.check = "yes" if step.update else "no"
            turn.exit = "end" if step.end else "continue"
            if step.update:
                turn.memory_out = trace.memory = step.candidate
            # The gates act in this order: the chunk that ends the reading still counts.
            if step.end and spec.exit_gate:
                trace.converged = True
                break
        parts = {"question": session.question_ids, "memory": session.memory(spec.memory_tokens)}
        await session.last("final", trace.turns_used, "final", spec.answer_tokens, parts)


def parse_step(text: str) -> Step | None:
    """A response's gates and candidate memory, or None where it breaks the form.

    The form: free text without these tags (the thinking, which may be missing), then `<check>yes|no</check>`,
    `<update>...</update>` and `<next>continue|end</next>` in this order, each once, and nothing behind them.
    """
    found = _STEP.fullmatch(text.strip())
    if not found or len(_TAGS.findall(text)) != 6:
        return None
    return Step(found["check"] == "yes", found["update"].strip(), found["next"] == "end")
