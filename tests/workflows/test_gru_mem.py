"""GRU-Mem: what the two gates do, and what a response without the form does not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from step_script import script

from pimem.config import GruMemSpec, MemAgentSpec
from pimem.records import to_json, trace_from_json
from pimem.workflows.gru_mem import Step, parse_step


def spec(**fields: Any) -> GruMemSpec:
    return GruMemSpec(**{"chunk_tokens": 64, "memory_tokens": 60, "answer_tokens": 16, **fields})


def said(check: str, memory: str, then: str = "continue") -> str:
    return f"I think.\n<check>{check}</check>\n<update>{memory}</update>\n<next>{then}</next>"


async def test_a_closed_update_gate_discards_the_candidate(lab: Any) -> None:
    steps = [said("yes", " one "), said("no", "noise"), said("yes", "one two")]
    trace = await lab.run(spec(), script(*steps), lab.chunks("c0", "c1", "c2"))
    assert lab.asked == [(1, "update", 0), (2, "update", 1), (3, "update", 2), (3, "final", 0)]
    assert lab.seen[1, "update", 0].startswith("update Q=who? M=EMPTY C=c0 ")
    assert lab.seen[3, "update", 2].startswith("update Q=who? M=one C=c2 ")
    assert lab.seen[3, "final", 0] == "final Q=who? M=one two"
    assert [(t.memory_in, t.memory_out) for t in trace.turns] == [("", "one"), ("one", "one"), ("one", "one two")]
    assert [t.reads[0].check for t in trace.turns] == ["yes", "no", "yes"]
    assert [t.exit for t in trace.turns] == ["continue"] * 3
    assert (trace.status, trace.response, trace.memory, trace.converged) == ("answered", "the end", "one two", False)


async def test_the_exit_gate_ends_after_its_own_update(lab: Any) -> None:
    steps = [said("no", "x"), said("yes", "found", "end"), said("yes", "never read")]
    trace = await lab.run(spec(), script(*steps), lab.chunks(*"abc"))
    assert lab.asked == [(1, "update", 0), (2, "update", 1), (2, "final", 0)]
    assert (trace.turns_used, trace.chunks, trace.converged, trace.memory) == (2, 3, True, "found")
    assert [t.exit for t in trace.turns] == ["continue", "end"]


async def test_an_exit_gate_that_is_off_is_noted_and_not_obeyed(lab: Any) -> None:
    steps = [said("yes", "a", "end"), said("yes", "a b", "end")]
    trace = await lab.run(spec(exit_gate=False), script(*steps), lab.chunks(*"ab"))
    assert (trace.turns_used, trace.converged, trace.memory) == (2, False, "a b")
    assert [t.exit for t in trace.turns] == ["end", "end"]


async def test_a_malformed_step_changes_nothing_and_is_counted(lab: Any) -> None:
    steps = [said("yes", "kept"), "<check>yes</check><update>cut off at the bud", said("maybe", "x", "end"), said("no", "x")]
    trace = await lab.run(spec(), script(*steps), lab.chunks(*"abcd"))
    assert (trace.status, trace.memory, trace.turns_used, trace.damaged) == ("answered", "kept", 4, 0)
    assert [t.reads[0].check for t in trace.turns] == ["yes", "malformed", "malformed", "no"]
    assert [t.exit for t in trace.turns] == ["continue", "malformed", "malformed", "continue"]
    assert [t.reads[0].well_formed for t in trace.turns] == [True, False, False, True]
    assert trace_from_json(to_json(trace)) == trace


async def test_a_failed_step_fails_the_sample_or_keeps_the_memory(lab: Any) -> None:
    steps = [said("yes", "kept"), "down", said("no", "x")]
    trace = await lab.run(spec(), script(*steps), lab.chunks(*"abc"))
    assert (trace.status, len(trace.turns)) == ("failed", 2)
    assert trace.failure == "update call s/2/update/1 failed after 1 attempt(s): down"
    trace = await lab.run(spec(on_failure="continue"), script(*steps), lab.chunks(*"abc"))
    assert (trace.status, trace.damaged, trace.memory) == ("answered", 1, "kept")
    assert (trace.turns[1].reads[0].check, trace.turns[1].exit, trace.turns[1].reads[0].well_formed) == (
        "failed",
        "failed",
        None,
    )
    trace = await lab.run(spec(on_failure="continue"), script("down", "down"), lab.chunks(*"ab"))
    assert (trace.status, trace.last) == ("failed", None)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (said("yes", "a\nb", "end"), Step(True, "a\nb", True)),
        ("<check>no</check><update></update><next>continue</next>\n", Step(False, "", False)),
        ("<update>a</update><check>yes</check><next>end</next>", None),
        ("<check>Yes</check><update>a</update><next>end</next>", None),
        ("<check>yes</check><update>a</update><next>stop</next>", None),
        ("<check>yes</check><update>a</update><next>end</next> and more", None),
        ("<check>yes</check> so <update>a</update><next>end</next>", None),
        ("<check>no</check>" + said("yes", "a"), None),
        (said("yes", "a <update>b</update> c"), None),
        (said("yes", "a") + said("yes", "a"), None),
        ("", None),
    ],
)
def test_the_form_is_strict(text: str, step: Step | None) -> None:
    assert parse_step(text) == step


MEMORIES = st.lists(st.text("abc xyz", min_size=0, max_size=12), min_size=1, max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(memories=MEMORIES)
async def test_gates_always_open_and_never_ending_are_mem_agent(lab: Any, memories: list[str]) -> None:
    context = lab.chunks(*(f"c{i}" for i in range(len(memories))))
    gated = await lab.run(spec(), script(*(said("yes", m) for m in memories)), context)
    prompts = dict(lab.seen)
    plain_spec = MemAgentSpec(chunk_tokens=64, memory_tokens=60, answer_tokens=16)
    plain = await lab.run(plain_spec, script(*memories), context)
    assert [t.memory_out for t in gated.turns] == [t.memory_out for t in plain.turns]
    # The two phases read alike in the set of these tests, so the prompts are the same too.
    assert prompts == lab.seen


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(memories=MEMORIES)
async def test_an_update_gate_that_never_opens_leaves_the_memory_empty(lab: Any, memories: list[str]) -> None:
    context = lab.chunks(*(f"c{i}" for i in range(len(memories))))
    trace = await lab.run(spec(), script(*(said("no", m) for m in memories)), context)
    assert trace.memory == ""
    assert {t.memory_out for t in trace.turns} == {""}
    assert lab.seen[len(memories), "final", 0] == "final Q=who? M=EMPTY"


def test_the_shipped_sets_have_room_for_it(tiny_tokenizer: Path) -> None:
    from pimem.config import SamplingSpec
    from pimem.prompts import PromptSet
    from pimem.tokens import Tokenizer
    from pimem.workflows import base

    for name in ("default", "small", "trained"):
        made = base.build(GruMemSpec(), PromptSet.load(name), Tokenizer.load(tiny_tokenizer), 16_384, SamplingSpec())
        assert made.template("gated_update").slots
