"""A small workflow, task and engine for tests of the run store, and a process that runs them."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pimem.config import Execution, PiMemSpec, RunSpec, TaskSpec
from pimem.engines.base import EngineInfo
from pimem.errors import EngineError
from pimem.evaluation import evaluate
from pimem.records import Call, CallKey, Completion, Evidence, Sample, Sampling, Trace, Turn
from pimem.store import RunStore
from pimem.tokens import digest

READS = 5
CALLS = READS + 2
"""Calls of one sample: the reads, one merge, one final."""
RUN = RunSpec(PiMemSpec(), task=TaskSpec("stand-in", 100))


class Questions:
    """Samples of 100 tokens; `built` lists the ones that were asked for."""

    data_hash = "questions"

    def __init__(self, ids: tuple[str, ...] = (), count: int = 1 << 30):
        self.ids = ids
        self.count = count
        self.built: list[int] = []

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        for i in range(start, min(start + n, self.count)):
            self.built.append(i)
            name = self.ids[i] if i < len(self.ids) else f"q{i}"
            context = np.arange(i, i + 100, dtype=np.uint32)
            yield Sample(name, f"c{i}", f"What is {i}?", (str(i),), context, (Evidence(3, 5, "gold"),), meta={"i": i})


class Reads:
    """Reads in parallel, a merge, a final answer; the sample fails where a call does."""

    name = "pi_mem"
    version = 1

    def __init__(self) -> None:
        self.prompts = SimpleNamespace(hash="prompts")
        self.tokenizer = SimpleNamespace(hash="tokenizer")

    async def run(self, question: str, context_ids: np.ndarray, engine: Any, recorder: Any) -> Trace:
        trace = Trace(recorder.sample, self.name, question, "failed", context_tokens=len(context_ids))

        async def call(phase: Any, index: int) -> Call:
            key = CallKey(recorder.sample, 1, phase, index)
            prompt = np.concatenate([context_ids, np.array([ord(phase[0]), index], np.uint32)])
            sampling = Sampling(8, temperature=0.7, stop=("</s>",), seed=index)
            return Call(key, digest(prompt), sampling, await engine.generate(prompt, sampling, key))

        try:
            async with asyncio.TaskGroup() as group:
                reads = [group.create_task(call("read", i)) for i in range(READS)]
            turn = Turn(1, "", "", [r.result() for r in reads])
            turn.merges = [await call("merge", 0)]
            trace.turns = [turn]
            trace.last = await call("final", 0)
            trace.status, trace.response = "answered", trace.last.text
        except* EngineError as errors:
            trace.failure = str(errors.exceptions[0])
        return trace


class Counted:
    """Answers by the call's name and notes every call it answers, in memory and in a file that survives it."""

    info = EngineInfo("scripted", "counted", 1 << 20)

    def __init__(self, file: Path | None = None, latency: float = 0.0, kill_at: int = 0):
        self.file, self.latency, self.kill_at = file, latency, kill_at
        self.answered: list[str] = []
        self.running = self.most = 0
        self.fail: dict[str, str] = {}
        """Sample to the message its calls fail with."""

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        if key.sample in self.fail:
            raise EngineError(self.fail[key.sample], retryable=False)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.latency)
        finally:
            self.running -= 1
        if self.kill_at and len(self.answered) + 1 == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.answered.append(str(key))
        if self.file:
            with open(self.file, "a") as file:
                file.write(f"{key}\n")
        return Completion(f"{key}: ünï \ud800", "stop", len(prompt_ids), 3, 1, (1, 2, 3), (-0.1, -1e-300, -0.3))

    async def close(self) -> None:
        pass


def go(root: Path, n: int, engine: Any, *, task: Any = None, workflow: Any = None, **more: Any) -> RunStore:
    return asyncio.run(start(root, n, engine, task=task, workflow=workflow, **more))


async def start(root: Path, n: int, engine: Any, *, task: Any = None, workflow: Any = None, **more: Any) -> RunStore:
    fixed = {"execution": Execution(concurrency=8, inflight_tokens=300), "weights": "w", "progress": "none", **more}
    return await evaluate(RUN, n, engine=engine, root=root, task=task or Questions(), workflow=workflow or Reads(), **fixed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--calls", type=Path)
    parser.add_argument("--n", type=int, default=6)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--kill-at", type=int, default=0)
    args = parser.parse_args()
    store = go(args.root, args.n, Counted(args.calls, args.latency, args.kill_at))
    print(len(store.outcomes))
