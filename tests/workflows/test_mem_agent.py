"""MemAgent: chunk after chunk, each update rewrites the memory, the last call answers from it."""

from __future__ import annotations

from typing import Any

import pytest

from pimem.config import MemAgentSpec
from pimem.errors import EngineError
from pimem.records import CallKey
from pimem.tokens import digest


def spec(**fields: Any) -> MemAgentSpec:
    return MemAgentSpec(**{"chunk_tokens": 64, "memory_tokens": 32, "answer_tokens": 16, **fields})


def script(failing: tuple[int, ...] = (), memory: str = " memory {index}\n") -> Any:
    def answer(key: CallKey, prompt: str) -> str:
        if key.phase == "update" and key.index in failing:
            raise EngineError("down", retryable=False)
        return memory.format(index=key.index) if key.phase == "update" else "the end"

    return answer


async def test_updates_in_order_each_with_the_memory_before_it(lab: Any) -> None:
    context = lab.chunks("c0", "c1", "c2")
    trace = await lab.run(spec(), script(), context)
    assert lab.asked == [(1, "update", 0), (2, "update", 1), (3, "update", 2), (3, "final", 0)]
    blanks = " " * (64 - lab.size("c0"))
    assert lab.seen[1, "update", 0] == f"update Q=who? M=EMPTY C=c0{blanks}"
    assert lab.seen[2, "update", 1] == f"update Q=who? M=memory 0 C=c1{blanks}"
    assert lab.seen[3, "final", 0] == "final Q=who? M=memory 2"
    assert (trace.status, trace.response, trace.memory) == ("answered", "the end", "memory 2")
    assert (trace.turns_used, trace.chunks, trace.converged) == (3, 3, False)
    assert [(t.memory_in, t.memory_out) for t in trace.turns] == [
        ("", "memory 0"),
        ("memory 0", "memory 1"),
        ("memory 1", "memory 2"),
    ]
    assert [t.reads[0].chunk_hash for t in trace.turns] == [digest(context[i : i + 64]) for i in (0, 64, 128)]
    assert {c.key.phase: c.sampling.max_tokens for c in trace.calls()} == {"update": 32, "final": 16}


async def test_a_failed_update_fails_the_sample_or_keeps_the_memory(lab: Any) -> None:
    trace = await lab.run(spec(), script(failing=(1,)), lab.chunks(*"abc"))
    assert trace.failure == "update call s/2/update/1 failed after 1 attempt(s): down"
    assert (trace.status, trace.memory, len(trace.turns)) == ("failed", "memory 0", 2)
    assert trace.turns[1].reads[0].error == "down"

    trace = await lab.run(spec(on_failure="continue"), script(failing=(1,)), lab.chunks(*"abc"))
    assert (trace.status, trace.damaged, trace.memory) == ("answered", 1, "memory 2")
    assert lab.seen[3, "update", 2].startswith("update Q=who? M=memory 0 C=c")


@pytest.mark.parametrize("chunks", [1, 3])
async def test_all_updates_failed_fails_whatever_the_rule(lab: Any, chunks: int) -> None:
    trace = await lab.run(spec(on_failure="continue"), script(failing=(0, 1, 2)), lab.chunks(*"abc"[:chunks]))
    assert trace.status == "failed"
    assert trace.last is None
    assert trace.failure == f"update call s/{chunks}/update/{chunks - 1} failed after 1 attempt(s): down"


async def test_a_memory_that_tokenises_longer_again_is_cut_and_noted(lab: Any) -> None:
    trace = await lab.run(spec(), script(memory="z" * 80), lab.chunks("a"))
    assert trace.notes["memory_cut"] == lab.size("z" * 80) - 32 > 0
    kept = lab.tokenizer.decode(lab.tokenizer.encode("z" * 80)[:32])
    assert lab.seen[1, "final", 0] == f"final Q=who? M={kept}"
