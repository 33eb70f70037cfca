"""What every workflow shares: budgets before calls, retries, seeds, what the recorder is told."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from pimem.config import GruMemSpec, MemAgentSpec, PiMemSpec, RagSpec, ReMemR1Spec, SamplingSpec, VanillaSpec
from pimem.errors import BudgetError, ConfigError, EngineError
from pimem.records import CallKey
from pimem.tokens import digest
from pimem.workflows import base
from pimem.workflows.base import SampleRecorder, request_seed

SIZES = {"memory_tokens": 20, "answer_tokens": 10}
PI_MEM = PiMemSpec(chunk_tokens=64, read_tokens=30, **SIZES)
MEM_AGENT = MemAgentSpec(chunk_tokens=64, **SIZES)
VANILLA = VanillaSpec(answer_tokens=10)
RAG = RagSpec(chunk_tokens=64, answer_tokens=10)
GRU_MEM = GruMemSpec(chunk_tokens=64, **SIZES)
REMEMR1 = ReMemR1Spec(chunk_tokens=64, **SIZES)
ALL = [PI_MEM, MEM_AGENT, GRU_MEM, REMEMR1, VANILLA, RAG]


def need(lab: Any, spec: Any) -> tuple[str, int]:
    """The phase that needs the widest window without a question, and that window."""
    phases = ("read", "update", "gated_update", "recall_update", "answer", "retrieved")
    own = {phase: lab.build(spec).template(phase).tokens for phase in phases}
    return {
        "pi_mem": ("read", own["read"] + 20 + 64 + 30),
        "mem_agent": ("update", own["update"] + 20 + 64 + 20),
        "gru_mem": ("gated_update", own["gated_update"] + 20 + 64 + 20),
        "rememr1": ("recall_update", own["recall_update"] + 2 * 20 + 64 + 20),
        "vanilla": ("answer", own["answer"] + 1 + 10),
        "rag": ("retrieved", own["retrieved"] + 64 + 10),
    }[spec.method]


def ok(key: CallKey, prompt: str) -> str:
    return "<check>yes</check> x" if key.phase == "read" and key.turn == 1 else "<check>no</check>"


@pytest.mark.parametrize("spec", ALL, ids=lambda s: s.method)
def test_a_window_one_token_too_small_is_refused_before_anything_runs(lab: Any, spec: Any) -> None:
    phase, total = need(lab, spec)
    lab.window = total
    lab.build(spec)
    lab.window = total - 1
    with pytest.raises(
        BudgetError, match=rf"{spec.method}: a {phase} call needs {total} tokens \(prompt text \d+, .*, 1 more than"
    ):
        lab.build(spec)


@pytest.mark.parametrize("spec", ALL, ids=lambda s: s.method)
async def test_a_question_too_long_is_refused_before_any_call(lab: Any, spec: Any) -> None:
    phase, total = need(lab, spec)
    question = "Is it? " * 5
    lab.window = total + lab.size(question.strip())
    trace = await lab.run(spec, ok, lab.chunks("a", "b"), question)
    assert trace.status == "answered"
    lab.window -= 1
    with pytest.raises(
        BudgetError, match=rf"a {phase} call needs .*question {lab.size(question.strip())}.*shorten the question"
    ):
        await lab.run(spec, ok, lab.chunks("a", "b"), question)
    assert lab.engine.calls == 0


@pytest.mark.parametrize("spec", ALL, ids=lambda s: s.method)
async def test_an_empty_question_or_context_is_refused(lab: Any, spec: Any) -> None:
    with pytest.raises(ConfigError, match="the context is empty"):
        await lab.run(spec, ok, np.zeros(0, np.uint32))
    with pytest.raises(ConfigError, match="the question is empty"):
        await lab.run(spec, ok, lab.chunks("a"), " \n")


@pytest.mark.parametrize(
    "spec",
    [PiMemSpec(chunk_tokens=9), MemAgentSpec(chunk_tokens=9), GruMemSpec(chunk_tokens=9), ReMemR1Spec(chunk_tokens=9)],
    ids=lambda s: s.method,
)
def test_chunks_shorter_than_the_prompt_around_them_are_refused(lab: Any, spec: Any) -> None:
    phase = need(lab, next(s for s in ALL if s.method == spec.method))[0]
    own = lab.build(PI_MEM).template(phase).tokens
    with pytest.raises(
        ConfigError, match=rf"chunk_tokens=9 is less than the {own} tokens of the {phase} prompt itself.*at least {own}"
    ):
        lab.build(spec)


def test_every_phase_of_pi_mem_is_checked(lab: Any) -> None:
    lab.window = 300
    for fields, phase in [({"answer_tokens": 280}, "final"), ({"read_tokens": 280}, "read"), ({"memory_tokens": 140}, "merge")]:
        sizes = {"chunk_tokens": 64, "read_tokens": 4, "memory_tokens": 4, "answer_tokens": 4, **fields}
        with pytest.raises(BudgetError, match=rf"a {phase} call needs"):
            lab.build(PiMemSpec(**sizes))
    lab.build(PiMemSpec(chunk_tokens=64, read_tokens=4, memory_tokens=140, answer_tokens=4, merge=False))


async def flaky(lab: Any, failures: int, retryable: bool = True) -> Any:
    left = {"n": failures}

    def script(key: CallKey, prompt: str) -> str:
        if left["n"]:
            left["n"] -= 1
            raise EngineError(f"busy, {left['n']} to go", retryable=retryable)
        return "fine"

    return await lab.run(VANILLA, script, lab.chunks("a"))


async def test_retries_are_counted_and_bounded(lab: Any) -> None:
    trace = await flaky(lab, 2)
    assert (trace.status, trace.last.attempts, trace.last.error, lab.engine.calls) == ("answered", 3, None, 3)
    trace = await flaky(lab, 3)
    assert (trace.status, trace.last.attempts, lab.engine.calls) == ("failed", 3, 3)
    assert trace.failure == "answer call s/0/answer/0 failed after 3 attempt(s): busy, 0 to go"
    lab.retries = 0
    assert (await flaky(lab, 1)).last.attempts == 1


async def test_what_cannot_help_is_not_tried_again(lab: Any) -> None:
    trace = await flaky(lab, 1, retryable=False)
    assert (trace.status, trace.last.attempts, lab.engine.calls) == ("failed", 1, 1)


async def test_the_wait_before_a_retry_doubles(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def remember(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(base, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(asyncio, "sleep", remember)
    lab.retries = 3
    assert (await flaky(lab, 3)).status == "answered"
    assert waits == [0.5, 1.0, 2.0]


async def test_an_engine_that_breaks_its_contract_is_not_taken_for_a_failed_call(lab: Any) -> None:
    def script(key: CallKey, prompt: str) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lab.run(PI_MEM, script, lab.chunks("a", "b"))


@pytest.mark.parametrize("spec", ALL, ids=lambda s: s.method)
async def test_the_recorder_is_told_of_every_call_with_its_prompt(lab: Any, spec: Any) -> None:
    trace = await lab.run(spec, ok, lab.chunks("a", "b"))
    told = lab.recorder.told
    assert {c.key for c, _ in told} == {c.key for c in trace.calls()}
    assert len(told) == len(trace.calls()) == lab.engine.calls
    for call, ids in told:
        assert call.prompt_hash == digest(ids)
        assert call.completion.prompt_tokens == len(ids)


async def test_the_recorder_is_told_of_failed_calls(lab: Any) -> None:
    await flaky(lab, 9)
    assert [(c.error, c.completion) for c, _ in lab.recorder.told] == [("busy, 6 to go", None)]


def test_a_recorder_that_keeps_nothing_names_the_sample() -> None:
    assert SampleRecorder("hotpot/3").sample == "hotpot/3"


async def test_seeds_follow_from_run_seed_and_key(lab: Any) -> None:
    lab.sampling = SamplingSpec(temperature=0.7, top_p=0.9, seed=5)
    one = await lab.run(PI_MEM, ok, lab.chunks("a", "b"))
    seeds = {c.key: c.sampling.seed for c in one.calls()}
    assert len(set(seeds.values())) == len(seeds) == 6
    assert seeds == {key: request_seed(5, key) for key in seeds}
    assert {(c.sampling.temperature, c.sampling.top_p) for c in one.calls()} == {(0.7, 0.9)}
    lab.sampling = SamplingSpec(temperature=0.0, seed=5)
    assert {c.sampling.seed for c in (await lab.run(PI_MEM, ok, lab.chunks("a"))).calls()} == {None}


def test_a_request_seed_is_pinned_and_31_bits() -> None:
    # A change here would make every sampled run unrepeatable.
    assert request_seed(0, CallKey("s", 1, "read", 2)) == 931420860
    many = [request_seed(seed, CallKey("s", 1, "read", i)) for seed in range(20) for i in range(20)]
    assert len(set(many)) == 400
    assert min(many) >= 0
    assert max(many) < 1 << 31


async def test_context_ids_may_be_of_any_integer_type(lab: Any) -> None:
    context = lab.chunks("a", "b")
    one = await lab.run(PI_MEM, ok, context)
    two = await lab.run(PI_MEM, ok, context.astype(np.int64))
    assert [c.prompt_hash for c in one.calls()] == [c.prompt_hash for c in two.calls()]
