"""Who may call the engine next, and which samples are under way.

Samples are admitted by the tokens of their contexts, so that one sample's turns end (and its keys and values stay cached)
before many others begin. Among calls, those that a sample waits for alone (merges, updates, answers) go before reads, and
reads of samples admitted earlier before later ones.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque

import numpy as np

from pimem.engines.base import Engine, EngineInfo
from pimem.errors import ConfigError
from pimem.records import CallKey, Completion, Sampling


class Gate:
    """At most `calls` requests at a time, over samples of at most `tokens` context tokens together; one sample always gets in.

    For one event loop. Waiting costs nothing, and letting the next call in takes O(log of those waiting).
    """

    def __init__(self, calls: int, tokens: int):
        if calls < 1 or tokens < 1:
            raise ConfigError(f"execution: concurrency={calls} and inflight_tokens={tokens} must be at least 1")
        self._free = calls
        self._calls = calls
        self._tokens = tokens
        self._used = 0
        self._number = itertools.count()
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []
        self._admitted: dict[str, tuple[int, int]] = {}
        self._queue: deque[tuple[str, int, asyncio.Future[None]]] = deque()

    async def admit(self, sample: str, tokens: int) -> None:
        """Returns once the sample fits, first come, first served; `leave` must follow.

        More samples than calls are never under way: they could only wait.
        """
        if not self._queue and self._fits(tokens):
            self._enter(sample, tokens)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((sample, tokens, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.leave(sample)
            raise

    def leave(self, sample: str) -> None:
        self._used -= self._admitted.pop(sample)[1]
        while self._queue and (self._queue[0][2].done() or self._fits(self._queue[0][1])):
            name, tokens, future = self._queue.popleft()
            if not future.done():
                self._enter(name, tokens)
                future.set_result(None)

    def _fits(self, tokens: int) -> bool:
        return not self._admitted or (self._used + tokens <= self._tokens and len(self._admitted) < self._calls)

    def _enter(self, sample: str, tokens: int) -> None:
        self._admitted[sample] = next(self._number), tokens
        self._used += tokens

    async def enter(self, key: CallKey) -> None:
        """Returns once the call may be made; `exit` must follow."""
        if self._free:
            self._free -= 1
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        order = self._admitted[key.sample][0] if key.sample in self._admitted else -1
        heapq.heappush(self._waiting, (key.phase == "read", order, next(self._number), future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.exit()
            raise

    def exit(self) -> None:
        """Ends a call and lets the most urgent one in."""
        while self._waiting:
            future = heapq.heappop(self._waiting)[3]
            if not future.done():
                future.set_result(None)
                return
        self._free += 1


class GatedEngine:
    """An engine behind a gate."""

    def __init__(self, engine: Engine, gate: Gate):
        self.engine = engine
        self.gate = gate

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        await self.gate.enter(key)
        try:
            return await self.engine.generate(prompt_ids, sampling, key)
        finally:
            self.gate.exit()

    async def close(self) -> None:
        await self.engine.close()
