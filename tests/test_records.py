"""Records: what is written as JSON comes back as it was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pimem.records import (
    Call,
    CallKey,
    Completion,
    Evidence,
    Sample,
    Sampling,
    Trace,
    Turn,
    call_from_json,
    completion_from_json,
    sample_from_json,
    sampling_from_json,
    to_json,
    trace_from_json,
    without_context,
)


def _through_json(record: Any) -> Any:
    return json.loads(json.dumps(to_json(record)))


def test_a_call_key_reads_as_a_path() -> None:
    assert str(CallKey("hotpot/7", 2, "read", 31)) == "hotpot/7/2/read/31"


def test_calls_stand_in_the_order_of_the_algorithm() -> None:
    def call(turn: int, phase: Any, index: int) -> Call:
        return Call(CallKey("s", turn, phase, index), "h", Sampling(1))

    first = Turn(1, "", "m", reads=[call(1, "read", 0), call(1, "read", 1)], merges=[call(1, "merge", 0)])
    second = Turn(2, "m", "m", reads=[call(2, "read", 0), call(2, "read", 1)])
    trace = Trace("s", "pi_mem", "q", "answered", turns=[first, second], last=call(2, "final", 0))
    assert [str(c.key) for c in trace.calls()] == [
        "s/1/read/0",
        "s/1/read/1",
        "s/1/merge/0",
        "s/2/read/0",
        "s/2/read/1",
        "s/2/final/0",
    ]
    assert call(1, "read", 0).text == ""


def test_json_types_of_every_kind() -> None:
    assert to_json(Evidence(1, 3, "x")) == [1, 3, "x"]
    assert to_json({1: (CallKey("s", 0, "answer", 0), None)}) == {"1": [["s", 0, "answer", 0], None]}
    assert _through_json(Sampling(5, stop=("a", "b")))["stop"] == ["a", "b"]


counts = st.integers(0, 1 << 40)
times = st.floats(allow_nan=False, allow_infinity=False)
notes = st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.lists(st.text()), max_size=3)
samplings = st.builds(
    Sampling,
    max_tokens=counts,
    temperature=times,
    top_p=times,
    stop=st.lists(st.text(), max_size=2).map(tuple),
    seed=st.none() | counts,
    logprobs=st.booleans(),
)
completions = st.builds(
    Completion,
    text=st.text(),
    finish=st.sampled_from(["stop", "length"]),
    prompt_tokens=counts,
    generated_tokens=counts,
    cached_tokens=st.none() | counts,
    token_ids=st.none() | st.lists(counts, max_size=3).map(tuple),
    logprobs=st.none() | st.lists(times, max_size=3).map(tuple),
    started=times,
    ended=times,
    extra=notes,
)
keys = st.builds(CallKey, st.text(), counts, st.sampled_from(["read", "merge", "update", "final", "answer"]), counts)
calls = st.builds(
    Call,
    key=keys,
    prompt_hash=st.text(),
    sampling=samplings,
    completion=st.none() | completions,
    check=st.sampled_from([None, "yes", "no", "malformed", "failed"]),
    chunk_hash=st.none() | st.text(),
    attempts=counts,
    error=st.none() | st.text(),
)
turns = st.builds(
    Turn,
    number=counts,
    memory_in=st.text(),
    memory_out=st.text(),
    reads=st.lists(calls, max_size=2),
    selected=st.lists(counts, max_size=3),
    merges=st.lists(calls, max_size=2),
    merge_levels=counts,
)
traces = st.builds(
    Trace,
    sample=st.text(),
    method=st.text(),
    question=st.text(),
    status=st.sampled_from(["answered", "failed"]),
    response=st.text(),
    memory=st.text(),
    turns=st.lists(turns, max_size=2),
    last=st.none() | calls,
    turns_used=counts,
    converged=st.booleans(),
    context_tokens=counts,
    chunks=counts,
    dropped_tokens=counts,
    retrieved=st.lists(counts, max_size=3),
    damaged=counts,
    failure=st.none() | st.text(),
    notes=notes,
)


@given(traces)
def test_a_trace_survives_json(trace: Trace) -> None:
    assert trace_from_json(_through_json(trace)) == trace


@given(calls)
def test_a_call_survives_json(call: Call) -> None:
    back = call_from_json(_through_json(call))
    assert back == call
    assert isinstance(back.key, CallKey)


@given(completions, samplings)
def test_completions_and_samplings_survive_json(completion: Completion, sampling: Sampling) -> None:
    assert completion_from_json(_through_json(completion)) == completion
    assert sampling_from_json(_through_json(sampling)) == sampling
    assert hash(sampling_from_json(_through_json(sampling))) == hash(sampling)


def test_a_sample_without_its_context_reads_back_but_for_it() -> None:
    sample = Sample("a-1", "q", "Where?", ("x",), np.arange(3, dtype=np.uint32), (Evidence(0, 2, "x"),), {"k": 1})
    data = json.loads(json.dumps(to_json(without_context(sample))))
    again = sample_from_json(data)
    assert len(again.context_ids) == 0
    assert replace(again, context_ids=None) == replace(sample, context_ids=None)
