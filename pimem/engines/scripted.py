"""A deterministic engine without a model: for tests and demonstrations of control flow. No table or figure is made from it."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Literal

import numpy as np

from pimem.config import EngineSpec, ModelSpec
from pimem.engines.base import EngineInfo, refuse
from pimem.records import CallKey, Completion, Sampling
from pimem.tokens import Tokenizer, digest

Script = Callable[[CallKey, np.ndarray], str]
"""Answers a request from its name and its prompt's ids."""


class Scripted:
    """Answers by a script. `tokenizer` counts and cuts the answers; without one, a token is a whitespace-separated word."""

    def __init__(self, script: Script, window: int = 1 << 20, tokenizer: Tokenizer | None = None, latency: float = 0.0):
        self.script = script
        self.tokenizer = tokenizer
        self.latency = latency
        self.calls = 0
        self.info = EngineInfo("scripted", "scripted", window)

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        refuse(prompt_ids, sampling, self.info.window)
        self.calls += 1
        started = time.time()
        if self.latency:
            await asyncio.sleep(self.latency)
        text, ids, finish = self._cut(self.script(key, prompt_ids), sampling)
        logprobs = tuple(0.0 for _ in ids) if sampling.logprobs else None
        return Completion(text, finish, len(prompt_ids), len(ids), None, ids, logprobs, started, time.time())

    def _cut(self, text: str, sampling: Sampling) -> tuple[str, tuple[int, ...], Literal["stop", "length"]]:
        ends = [text.index(s) + len(s) for s in sampling.stop if s in text]
        if ends:
            text = text[: min(ends)]
        if self.tokenizer is None:
            words = text.split(" ")
            kept = words[: sampling.max_tokens]
            return " ".join(kept), tuple(range(len(kept))), "length" if len(kept) < len(words) else "stop"
        ids = self.tokenizer.encode(text)
        if len(ids) > sampling.max_tokens:
            ids = ids[: sampling.max_tokens]
            return self.tokenizer.decode(ids), tuple(map(int, ids)), "length"
        return text, tuple(map(int, ids)), "stop"

    async def close(self) -> None:
        """Nothing is held."""


async def start(engine: EngineSpec, model: ModelSpec) -> Scripted:
    """An engine whose answers depend on the seed and the prompt alone: a third of the reads say yes in turn 1, none later."""

    def script(key: CallKey, prompt: np.ndarray) -> str:
        name = hashlib.blake2b(f"{engine.seed}/{digest(prompt)}".encode(), digest_size=4).hexdigest()
        if key.phase == "read":
            return f"<check>yes</check> fact {name}" if key.turn == 1 and int(name, 16) % 3 == 0 else "<check>no</check>"
        return rf"\boxed{{{name}}}" if key.phase in ("final", "answer") else f"notes {name}"

    return Scripted(script, model.window)
