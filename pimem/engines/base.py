"""The one protocol all engines speak, and the one place that builds them.

An engine turns token ids into a completion. It knows nothing of chunks, memories or turns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pimem.config import EngineSpec, ModelSpec
from pimem.errors import ConfigError, EngineError, nearest
from pimem.records import CallKey, Completion, Sampling


@dataclass(frozen=True)
class EngineInfo:
    """What a started engine says of itself."""

    kind: str
    model: str
    window: int
    """Most prompt plus generated tokens of one request."""
    takes_ids: bool = True
    """False where the server accepts only text; its completions then carry `prompt_as_text`."""
    details: dict[str, Any] = field(default_factory=dict)
    """Versions, dtype, device, KV capacity: for the manifest."""


@runtime_checkable
class Engine(Protocol):
    """Contract (tests/engines/test_contract.py): thread of one event loop, any number of requests at once.

    `generate` raises `EngineError` (retryable or not) and nothing else; it refuses, before any work, an empty prompt and a
    prompt that leaves no room for `max_tokens` in the window. The same prompt, sampling and seed give the same tokens
    whatever else is running. Cancelling the awaiting task frees the request. `close` is idempotent and leaves no
    process behind.
    """

    @property
    def info(self) -> EngineInfo: ...

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion: ...

    async def close(self) -> None: ...


def refuse(prompt_ids: np.ndarray, sampling: Sampling, window: int) -> None:
    """Raises `EngineError`, not retryable, for a request that no engine could serve."""
    if len(prompt_ids) == 0:
        raise EngineError("the prompt is empty", retryable=False)
    if sampling.max_tokens < 1:
        raise EngineError(f"max_tokens={sampling.max_tokens}; at least one token must be generated", retryable=False)
    if len(prompt_ids) + sampling.max_tokens > window:
        raise EngineError(
            f"{len(prompt_ids):,} prompt tokens and {sampling.max_tokens:,} to generate exceed the window of {window:,}",
            retryable=False,
        )


_ENGINES = {
    "transformers": "pimem.engines.transformers_engine",
    "vllm": "pimem.engines.vllm_engine",
    "openai_api": "pimem.engines.openai_api",
    "scripted": "pimem.engines.scripted",
}


def check_kind(kind: str) -> None:
    """Raises `ConfigError` for an unknown kind of engine."""
    if kind not in _ENGINES:
        raise ConfigError(f"unknown engine {kind!r}; {nearest(kind, _ENGINES)}")


async def build(engine: EngineSpec, model: ModelSpec) -> Engine:
    """Starts the engine that `engine.kind` names; its module, and so its heavy imports, are loaded only now.

    Raises `ConfigError` for an unknown kind, `EngineError` or `DataError` where it cannot start.
    """
    check_kind(engine.kind)
    try:
        module = import_module(_ENGINES[engine.kind])
    except ModuleNotFoundError as error:
        raise EngineError(
            f"engine {engine.kind} needs the package {error.name}, which is not installed; `pimem doctor` says how to get it",
            retryable=False,
        ) from error
    return await module.start(engine, model)
