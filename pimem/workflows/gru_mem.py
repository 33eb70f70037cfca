"""GRU-Mem: a recurrent memory with two gates in text: one may discard a step's new memory, the other may end the reading."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pimem.config import GruMemSpec
from pimem.records import Call, Turn
from pimem.workflows.base import Session
from pimem.workflows.recurrent import Recurrent

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


class GruMem(Recurrent):
    """Algorithm 1 of the GRU-Mem paper.

    A response that does not keep the form changes nothing: the memory stays, the reading goes on, and the trace counts the
    step as malformed. The paper says of such a response only that it is not rewarded.
    """

    name = "gru_mem"
    version = 1
    spec: GruMemSpec

    step_phase = "gated_update"

    def lost(self, turn: Turn, call: Call) -> None:
        call.check = turn.exit = "failed"

    def take(self, session: Session, turn: Turn, call: Call, state: Any) -> bool:
        step = parse_step(call.text)
        call.well_formed = step is not None
        if step is None:
            call.check = turn.exit = "malformed"
            return True
        call.check = "yes" if step.update else "no"
        turn.exit = "end" if step.end else "continue"
        if step.update:
            turn.memory_out = session.trace.memory = step.candidate
        # The gates act in this order: the chunk that ends the reading still counts.
        session.trace.converged = step.end and self.spec.exit_gate
        return not session.trace.converged


def parse_step(text: str) -> Step | None:
    """A response's gates and candidate memory, or None where it breaks the form.

    The form: free text without these tags (the thinking, which may be missing), then `<check>yes|no</check>`,
    `<update>...</update>` and `<next>continue|end</next>` in this order, each once, and nothing behind them.
    """
    found = _STEP.fullmatch(text.strip())
    if not found or len(_TAGS.findall(text)) != 6:
        return None
    return Step(found["check"] == "yes", found["update"].strip(), found["next"] == "end")
