"""The order in which calls and samples get through the gate."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest

from pimem.config import Execution
from pimem.errors import ConfigError
from pimem.gate import Gate, GatedEngine
from pimem.records import CallKey, Completion, Phase, Sampling


def key(sample: str, phase: Phase, index: int = 0) -> CallKey:
    return CallKey(sample, 1, phase, index)


class Held:
    """Answers when told to, and keeps the order in which calls came in."""

    info = None

    def __init__(self) -> None:
        self.order: list[str] = []
        self.running = self.most = 0

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        self.order.append(f"{key.sample} {key.phase}{key.index}")
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
        finally:
            self.running -= 1
        return Completion("", "stop", 1, 1)


async def test_merges_before_reads_and_earlier_samples_before_later_ones() -> None:
    gate, engine = Gate(2, 100), Held()
    gated = GatedEngine(engine, gate)
    for sample in ("first", "second"):
        await gate.admit(sample, 10)
        await gate.enter(key(sample, "read"))
    asked = [
        key("second", "read", 0),
        key("second", "read", 1),
        key("first", "read", 1),
        key("second", "merge"),
        key("first", "final"),
        key("first", "read", 2),
    ]
    tasks = [asyncio.create_task(gated.generate(np.zeros(1), Sampling(1), k)) for k in asked]
    await asyncio.sleep(0)
    gate.exit()
    await asyncio.gather(*tasks)
    assert engine.order == ["first final0", "second merge0", "first read1", "first read2", "second read0", "second read1"]


async def test_never_more_calls_than_slots_and_every_slot_comes_back() -> None:
    gate, engine = Gate(3, 100), Held()
    gated = GatedEngine(engine, gate)
    await gate.admit("s", 1)
    tasks = [asyncio.create_task(gated.generate(np.zeros(1), Sampling(1), key("s", "read", i))) for i in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(d, asyncio.CancelledError) for d in done) == len(tasks[::3])
    assert engine.most == 3
    for _ in range(3):
        await asyncio.wait_for(gate.enter(key("s", "read")), 1)


async def test_a_call_cancelled_as_it_is_let_in_gives_its_slot_on() -> None:
    gate = Gate(1, 100)
    await gate.enter(key("s", "read"))
    waiting = asyncio.create_task(gate.enter(key("s", "read", 1)))
    await asyncio.sleep(0)
    gate.exit()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.wait_for(gate.enter(key("s", "read", 2)), 1)


async def test_samples_are_admitted_by_tokens_in_order_and_one_always() -> None:
    gate = Gate(10, 100)
    await asyncio.wait_for(gate.admit("huge", 1_000), 1)
    admitted: list[str] = []

    async def admit(name: str, tokens: int) -> None:
        await gate.admit(name, tokens)
        admitted.append(name)

    tasks = [asyncio.create_task(admit(n, t)) for n, t in (("a", 60), ("b", 40), ("big", 90), ("c", 1))]
    await asyncio.sleep(0)
    assert admitted == []
    gate.leave("huge")
    await asyncio.sleep(0)
    assert admitted == ["a", "b"]
    gate.leave("a")
    await asyncio.sleep(0)
    assert admitted == ["a", "b"]  # c would fit, but the big one comes before it
    gate.leave("b")
    await asyncio.sleep(0)
    assert admitted == ["a", "b", "big", "c"]
    await asyncio.gather(*tasks)


async def test_a_sample_cancelled_as_it_waits_leaves_no_trace() -> None:
    gate = Gate(10, 100)
    await gate.admit("a", 100)
    waiting = asyncio.create_task(gate.admit("b", 50))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.leave("a")
    await asyncio.wait_for(gate.admit("c", 100), 1)


async def test_more_samples_than_slots_are_never_under_way() -> None:
    gate = Gate(2, 10**9)
    await gate.admit("a", 1)
    await gate.admit("b", 1)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(gate.admit("c", 1), 0.01)


async def test_ten_thousand_waiting_calls_pass_quickly() -> None:
    gate, engine = Gate(4, 10**9), Held()
    gated = GatedEngine(engine, gate)
    began = time.process_time()
    await asyncio.gather(*(gated.generate(np.zeros(1), Sampling(1), key("s", "read", i)) for i in range(10_000)))
    assert time.process_time() - began < 2
    assert engine.most == 4


def test_room_for_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency=0"):
        Gate(0, Execution().inflight_tokens)
