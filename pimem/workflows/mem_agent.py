"""MemAgent: chunks are read one after the other, each call rewrites the memory, the last call answers from it."""

from __future__ import annotations

from typing import Any

from pimem.config import MemAgentSpec
from pimem.records import Call, Turn
from pimem.workflows.base import Session
from pimem.workflows.recurrent import Recurrent


class MemAgent(Recurrent):
    """The recurrent baseline; the whole response of an update is the new memory."""

    name = "mem_agent"
    version = 1
    spec: MemAgentSpec

    def take(self, session: Session, turn: Turn, call: Call, state: Any) -> bool:
        turn.memory_out = session.trace.memory = call.text.strip()
        return True
