"""An engine that is started only when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from pimem.config import EngineSpec, ModelSpec
from pimem.engines.base import Engine, EngineInfo, build, check_kind
from pimem.errors import EngineError, PimemError
from pimem.records import CallKey, Completion, Sampling


class LazyEngine:
    """An engine that starts at the first request, so that a run that is complete never loads a model.

    Until then `info` says what the specification says. A start that failed is not tried again; it ends the run, and so does an
    engine that is gone: samples that nobody could answer would otherwise be counted as wrong ones.
    """

    def __init__(self, start: Callable[[], Any], info: EngineInfo):
        self._start = start
        self._info = info
        self._engine: Engine | None = None
        self._failure: PimemError | None = None
        self._lock = asyncio.Lock()

    @classmethod
    def of(cls, engine: EngineSpec, model: ModelSpec) -> LazyEngine:
        """The engine of a specification. Raises `ConfigError` for an unknown kind."""
        check_kind(engine.kind)
        return cls(lambda: build(engine, model), EngineInfo(engine.kind, model.path, model.window))

    @property
    def info(self) -> EngineInfo:
        return self._engine.info if self._engine else self._info

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        engine = self._engine or await self._started()
        try:
            return await engine.generate(prompt_ids, sampling, key)
        except EngineError as error:
            if error.gone:
                raise PimemError(f"the engine has ended: {error}") from error
            raise

    async def _started(self) -> Engine:
        async with self._lock:
            if self._failure:
                raise self._failure
            if self._engine is None:
                try:
                    self._engine = await self._start()
                except PimemError as error:
                    # A workflow would take an engine's error for a failed request and ask again.
                    self._failure = PimemError(f"the engine did not start: {error}")
                    raise self._failure from error
            return self._engine

    async def close(self) -> None:
        if self._engine:
            await self._engine.close()
