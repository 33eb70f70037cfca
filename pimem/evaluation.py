"""The evaluation loop: makes what a run's store lacks, and nothing twice.

A call is in the store before its workflow sees it, and a sample is done once its trace is on disk. Whatever ends a run (an
error, Ctrl-C, `kill -9`, the power), the same call of `evaluate` goes on where it stopped and ends with the same traces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Protocol

import numpy as np

from pimem import provenance
from pimem.config import EngineSpec, Execution, RunSpec, as_dict
from pimem.engines.base import Engine, EngineInfo
from pimem.errors import BudgetError, ConfigError, DataError, EngineError, StoreError
from pimem.gate import Gate, GatedEngine
from pimem.progress import Counts, Kind, Progress
from pimem.records import CallKey, Completion, Sample, Sampling, Trace
from pimem.store import Known, RunStore
from pimem.tokens import digest
from pimem.workflows.base import SampleRecorder, Workflow

WAIT_SECONDS = 1.0
"""How often samples that another process is at are looked after, once nothing else is left to do."""


class Task(Protocol):
    """What the loop needs of a task."""

    data_hash: str

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]: ...


class JournalEngine:
    """An engine that answers from a store what was asked before, and stores what it has to ask.

    A stored call counts only if prompt and sampling are the same; otherwise it is stale, and made anew.
    """

    def __init__(self, engine: Engine, store: RunStore, counts: Counts):
        self.engine = engine
        self.store = store
        self.counts = counts
        self._known: dict[str, dict[CallKey, list[Known]]] = {}

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    async def begin(self, sample: str) -> None:
        """Loads the calls of a sample that are in the store. To be called before its workflow runs."""
        self._known[sample] = await asyncio.to_thread(self.store.calls, sample)

    def end(self, sample: str) -> None:
        self._known.pop(sample, None)

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        counts, prompt = self.counts, digest(prompt_ids)
        if known := self._known.get(key.sample, {}).get(key):
            for call in known:
                if call.prompt_hash == prompt and call.sampling == sampling:
                    counts.replayed += 1
                    return call.completion
            counts.stale += 1
        try:
            completion = await self.engine.generate(prompt_ids, sampling, key)
        except EngineError:
            counts.errors += 1
            raise
        counts.calls += 1
        counts.prompt_tokens += completion.prompt_tokens
        counts.cached_tokens += completion.cached_tokens or 0
        counts.generated_tokens += completion.generated_tokens
        self.store.add_call(key, prompt, sampling, completion)
        return completion

    async def close(self) -> None:
        await self.engine.close()


def identity(workflow: Workflow, task: Task, weights: str) -> dict[str, Any]:
    """What decides a run's answers beside its specification; the tokenizer's hash covers the chat template."""
    return {
        "prompts": workflow.prompts.hash,
        "tokenizer": workflow.tokenizer.hash,
        "weights": weights,
        "workflow": workflow.version,
        "data": task.data_hash,
    }


async def evaluate(
    run: RunSpec,
    n: int,
    *,
    engine: Engine,
    execution: Execution,
    root: str | Path,
    task: Task,
    workflow: Workflow,
    weights: str,
    engine_spec: EngineSpec | None = None,
    retry_failed: bool = True,
    progress: Kind | None = None,
) -> RunStore:
    """Brings the first `n` samples of a run through and returns its store, complete and open to read.

    `weights` is the hash of what answers (`models.fingerprint`). Samples that are through are skipped; those that failed in
    an earlier call are tried again unless `retry_failed` is off; a sample that fails now is stored as failed and the others
    go on. Samples that another process is at are waited for. `progress`: how it is shown; None finds out. The engine is
    left open.

    Raises `StoreError` where the store cannot be written (a full disk) or is another run's; `ConfigError`, `DataError` as
    the task and the workflow do; `BudgetError` where no sample at all fits the window.
    """
    if n < 1:
        raise ConfigError(f"n={n}: at least one sample is needed")
    began = monotonic()
    store = await asyncio.to_thread(RunStore.create, root, run, identity(workflow, task, weights))
    try:
        loop = _Loop(run, n, engine, execution, task, workflow, store, retry_failed, progress)
        for line in store.news:
            loop.progress.say(line)
        if loop.todo:
            origin = await asyncio.to_thread(provenance.collect)
            store.session = lambda: {
                "engine": {"spec": as_dict(engine_spec) if engine_spec else None, "info": asdict(engine.info)},
                "execution": as_dict(execution),
                "provenance": origin,
            }
        store.counts = loop.counts
        await loop.run()
        manifest = store.manifest()
        if loop.counts.answered or loop.counts.failed or manifest is None or manifest["n"] < n:
            store.write_manifest(n, last={**asdict(loop.counts), "seconds": round(monotonic() - began, 3)})
        if len(loop.over_budget) == n:
            raise loop.over_budget[0]
    finally:
        store.close()
    return store


class _Loop:
    """One call of `evaluate`."""

    def __init__(
        self,
        run: RunSpec,
        n: int,
        engine: Engine,
        execution: Execution,
        task: Task,
        workflow: Workflow,
        store: RunStore,
        retry_failed: bool,
        progress: Kind | None,
    ):
        self.n, self.task, self.workflow, self.store, self.retry_failed = n, task, workflow, store, retry_failed
        self.before = dict(store.outcomes)
        self.todo = [i for i in range(n) if not self.through(i)]
        self.counts = Counts(total=n, before=n - len(self.todo))
        self.gate = Gate(execution.concurrency, execution.inflight_tokens)
        self.engine = JournalEngine(GatedEngine(engine, self.gate), store, self.counts)
        self.progress = Progress(f"{run.method.method} on {run.task.name}-{run.task.length}", self.counts, kind=progress)
        self.over_budget: list[BudgetError] = []
        self.indices: dict[str, int] = {}

    def through(self, index: int) -> bool:
        """Whether a sample is answered, or has failed in a way that is not to be tried again now."""
        outcome = self.store.outcomes.get(index)
        if outcome is None or outcome.status == "answered":
            return outcome is not None
        return not self.retry_failed or outcome != self.before.get(index)

    async def run(self) -> None:
        ticking = asyncio.create_task(self._tick())
        stopped: BaseException | None = None
        try:
            async with asyncio.TaskGroup() as group:
                await self._feed(group)
        except BaseExceptionGroup as errors:
            # The others were cancelled because of the first one.
            stopped = _first(errors)
        finally:
            ticking.cancel()
            self.progress.close()
        if stopped:
            raise stopped

    async def _feed(self, group: asyncio.TaskGroup) -> None:
        """Claims, builds and admits one sample after another; the next one is ready while it waits for room."""
        waiting = self.todo
        while waiting:
            busy = []
            for index in waiting:
                sample = await asyncio.to_thread(self._take, index)
                if isinstance(sample, Sample):
                    if self.indices.setdefault(sample.id, index) != index:
                        raise DataError(f"samples {self.indices[sample.id]} and {index} have the same id {sample.id!r}")
                    await self.gate.admit(sample.id, len(sample.context_ids))
                    group.create_task(self._answer(index, sample))
                elif sample == "busy":
                    busy.append(index)
                else:
                    self.counts.before += 1
            waiting = busy
            if waiting:
                await asyncio.sleep(WAIT_SECONDS)

    def _take(self, index: int) -> Sample | Literal["busy", "through"]:
        if not self.store.claim(index):
            return "busy"
        if self.through(index):
            self.store.release(index)
            return "through"
        # The whole range is asked for, so that a task with fewer samples says so before any work.
        for sample in self.task.samples(self.n - index, start=index):
            return sample
        raise DataError(f"the task has no sample {index}; ask for at most {index} samples")

    async def _answer(self, index: int, sample: Sample) -> None:
        try:
            trace = await self._trace(sample)
            await self.store.add_trace(index, sample, trace)
            if trace.status == "answered":
                self.counts.answered += 1
            else:
                self.counts.failed += 1
        finally:
            self.engine.end(sample.id)
            self.store.release(index)
            self.gate.leave(sample.id)

    async def _trace(self, sample: Sample) -> Trace:
        await self.engine.begin(sample.id)
        recorder = SampleRecorder(sample.id)
        try:
            return await self.workflow.run(sample.question, sample.context_ids, self.engine, recorder)
        except BudgetError as error:
            self.over_budget.append(error)
            failed = Trace(sample.id, self.workflow.name, sample.question, "failed", failure=str(error))
            failed.context_tokens = len(sample.context_ids)
            return failed
        except ConfigError as error:
            raise ConfigError(f"sample {sample.id}: {error}") from error

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(min(self.progress.interval, 1.0))
            self.progress.tick()


def _first(error: BaseException) -> BaseException:
    """The error that ended a group of tasks; one of the store before any other."""
    leaves: list[BaseException] = []

    def collect(e: BaseException) -> None:
        for part in e.exceptions if isinstance(e, BaseExceptionGroup) else ():
            collect(part)
        if not isinstance(e, BaseExceptionGroup):
            leaves.append(e)

    collect(error)
    return next((e for e in leaves if isinstance(e, StoreError)), leaves[0])
