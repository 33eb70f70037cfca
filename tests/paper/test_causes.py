"""Where a wrong answer was lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_gates import CHUNK, trace

from pimem.paper.causes import cause
from pimem.records import Call, CallKey, Evidence, Sample, Sampling, Trace, Turn


def sample(*places: tuple[int, int], answers: tuple[str, ...] = ("Ann",)) -> Sample:
    return Sample("s", "c", "Who?", answers, np.zeros(0, np.uint32), tuple(Evidence(a, b, "gold") for a, b in places))


def pi_mem(selected: list[int], memory: str, chunks: int = 4) -> Trace:
    reads = [Call(CallKey("s", 1, "read", i), "", Sampling(1)) for i in range(chunks)]
    made = Trace("s", "pi_mem", "Who?", "answered", memory=memory, context_tokens=CHUNK * chunks, chunks=chunks)
    made.turns = [Turn(1, "", memory, reads, selected)]
    return made


@pytest.mark.parametrize(
    ("selected", "memory", "wanted"),
    [
        ([1], "", "not selected"),
        ([1, 3], "Bob", "lost in memory"),
        ([1, 3], "It was Ann.", "not used"),
        ([0, 1, 2, 3], "Anne", "lost in memory"),
    ],
)
def test_pi_mem_may_lose_evidence_at_each_of_its_steps(selected: list[int], memory: str, wanted: str) -> None:
    asked = sample((12, 15), (33, 36))
    assert cause(asked, pi_mem(selected, memory), CHUNK, 0.0, "sub_em") == wanted
    assert cause(asked, pi_mem(selected, memory), CHUNK, 1.0, "sub_em") == "right"


def test_part_of_several_values_is_not_all_of_them() -> None:
    asked = sample((12, 15), answers=("11", "12"))
    assert cause(asked, pi_mem([1], "11"), CHUNK, 0.5, "multi_recall") == "lost in memory"
    assert cause(asked, pi_mem([1], "11 12"), CHUNK, 0.5, "multi_recall") == "not used"
    assert cause(sample((12, 15), answers=("yes",)), pi_mem([1], "both are"), CHUNK, 0.0, "sub_em") == "not used"
    assert cause(sample((12, 15), answers=("C",)), pi_mem([1], "five"), CHUNK, 0.0, "accuracy") == "not used"


@pytest.mark.parametrize(
    ("steps", "wanted"),
    [
        (("yes end",), "not read"),
        (("no continue", "no continue"), "not selected"),
        (("no continue", "yes continue"), "lost in memory"),
    ],
)
def test_gru_mem_may_stop_before_its_evidence_or_shut_its_gate_to_it(steps: tuple[str, ...], wanted: str) -> None:
    assert cause(sample((12, 15)), trace("s", steps, 2), CHUNK, 0.0, "sub_em") == wanted


def test_a_step_of_mem_agent_selects_nothing() -> None:
    assert cause(sample((12, 15)), trace("s", ("", ""), 2, "mem_agent"), CHUNK, 0.0, "sub_em") == "lost in memory"


@pytest.mark.parametrize(
    ("method", "more", "chunk", "wanted"),
    [
        ("vanilla", {"dropped_tokens": 20}, None, "not read"),
        ("vanilla", {"dropped_tokens": 8}, None, "not used"),
        ("vanilla", {}, None, "not used"),
        ("rag", {"retrieved": [0, 2]}, CHUNK, "not read"),
        ("rag", {"retrieved": [2, 1]}, CHUNK, "not used"),
        ("rag", {"retrieved": [1]}, CHUNK, "not read"),
    ],
)
def test_what_was_cut_out_or_not_retrieved_was_not_read(
    method: str, more: dict[str, Any], chunk: int | None, wanted: str
) -> None:
    """The evidence lies across the edge of windows 1 and 2, tokens 18 to 22 of 40."""
    made = Trace("s", method, "Who?", "answered", context_tokens=40, **more)
    where = (18, 22) if method == "rag" or more.get("dropped_tokens") == 20 else (12, 15)
    assert cause(sample(where), made, chunk, 0.0, "sub_em") == wanted
    made.status = "failed"
    assert cause(sample(where), made, chunk, 0.0, "sub_em") == "failed"
