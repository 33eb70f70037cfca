"""A scripted engine's answers to a recurrent method: one response a chunk, then the answer."""

from __future__ import annotations

from typing import Any

from pimem.errors import EngineError
from pimem.records import CallKey


def script(*responses: str) -> Any:
    """`down` in place of a response is an engine that fails for good there."""

    def answer(key: CallKey, prompt: str) -> str:
        if key.phase == "update" and responses[key.index] == "down":
            raise EngineError("down", retryable=False)
        return responses[key.index] if key.phase == "update" else "the end"

    return answer
