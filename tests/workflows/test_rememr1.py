"""ReMemR1: new memories, recall by TF-IDF, where the recalled memory is shown, and responses without the form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from step_script import script

from pimem.config import MemAgentSpec, ReMemR1Spec
from pimem.records import to_json, trace_from_json
from pimem.workflows.rememr1 import Memories, Step, parse_step, similarities


def spec(**fields: Any) -> ReMemR1Spec:
    return ReMemR1Spec(**{"chunk_tokens": 64, "memory_tokens": 60, "answer_tokens": 16, **fields})


def said(memory: str, query: str | None = None) -> str:
    return f"I think.\n<update>{memory}</update>" + (f"\n<recall>{query}</recall>" if query else "")


async def test_a_recalled_memory_stands_in_the_next_prompt_and_only_there(lab: Any) -> None:
    steps = [said("red fox"), said("blue owl"), said("green eel", "the fox"), said("last", "owl blue")]
    trace = await lab.run(spec(), script(*steps), lab.chunks("c0", "c1", "c2", "c3"))
    assert lab.asked == [(1, "update", 0), (2, "update", 1), (3, "update", 2), (4, "update", 3), (4, "final", 0)]
    assert lab.seen[1, "update", 0].startswith("update Q=who? R=NONE M=EMPTY C=c0 ")
    assert lab.seen[3, "update", 2].startswith("update Q=who? R=NONE M=blue owl C=c2 ")
    assert lab.seen[4, "update", 3].startswith("update Q=who? R=red fox M=green eel C=c3 ")
    assert lab.seen[4, "final", 0] == "final Q=who? R=blue owl M=last"
    assert [t.query for t in trace.turns] == [None, None, "the fox", "owl blue"]
    assert [t.recalled for t in trace.turns] == [None, None, None, 1]
    assert (trace.recalled, trace.memory, trace.status, trace.turns_used) == (2, "last", "answered", 4)
    assert all(t.reads[0].well_formed for t in trace.turns)
    assert trace_from_json(to_json(trace)) == trace


@pytest.mark.parametrize(("recall_from", "recalled", "shown"), [("all", 2, "fox fox fox"), ("earlier", 1, "fox and owl")])
async def test_the_memory_just_written_is_searched_or_not(lab: Any, recall_from: str, recalled: int, shown: str) -> None:
    steps = [said("fox and owl"), said("fox fox fox", "fox"), said("x")]
    trace = await lab.run(spec(recall_from=recall_from), script(*steps), lab.chunks(*"abc"))
    assert trace.turns[2].recalled == recalled
    assert lab.seen[3, "update", 2].startswith(f"update Q=who? R={shown} M=fox fox fox C=c ")


@pytest.mark.parametrize("recall_from", ["all", "earlier"])
async def test_nothing_is_recalled_where_nothing_is_there_or_shares_a_token(lab: Any, recall_from: str) -> None:
    steps = [said("", "fox"), said("owl", "1234567"), said("x")]
    trace = await lab.run(spec(recall_from=recall_from), script(*steps), lab.chunks(*"abc"))
    assert [t.recalled for t in trace.turns] == [None, None, None]
    assert " R=NONE " in lab.seen[3, "update", 2]


async def test_the_memory_is_the_update_or_the_response_without_its_recall(lab: Any) -> None:
    steps = [said("fox", "fox"), said("owl")]
    trace = await lab.run(spec(memory="response"), script(*steps), lab.chunks(*"ab"))
    assert [t.memory_out for t in trace.turns] == ["I think.\n<update>fox</update>", "I think.\n<update>owl</update>"]
    trace = await lab.run(spec(), script(*steps), lab.chunks(*"ab"))
    assert [t.memory_out for t in trace.turns] == ["fox", "owl"]


async def test_a_malformed_step_changes_nothing_and_is_counted(lab: Any) -> None:
    steps = [said("fox"), "<update>cut off", said("owl") + said("eel"), "none <recall>fox</recall>"]
    trace = await lab.run(spec(), script(*steps), lab.chunks(*"abcd"))
    assert [t.memory_out for t in trace.turns] == ["fox"] * 4
    assert [t.reads[0].well_formed for t in trace.turns] == [True, False, False, False]
    assert [t.query for t in trace.turns] == [None] * 4
    assert (trace.recalled, trace.status, trace.damaged) == (None, "answered", 0)
    trace = await lab.run(spec(memory="response"), script(*steps), lab.chunks(*"abcd"))
    assert [t.memory_out for t in trace.turns][1::2] == ["<update>cut off", "none"]
    assert [t.reads[0].well_formed for t in trace.turns] == [True, False, False, False]
    assert (trace.turns[3].query, trace.recalled) == ("fox", 1)


async def test_a_failed_step_fails_the_sample_or_keeps_the_memory_and_recalls_nothing(lab: Any) -> None:
    steps = [said("fox", "fox"), "down", said("owl")]
    trace = await lab.run(spec(), script(*steps), lab.chunks(*"abc"))
    assert (trace.status, len(trace.turns), trace.turns[1].recalled) == ("failed", 2, 1)
    trace = await lab.run(spec(on_failure="continue"), script(*steps), lab.chunks(*"abc"))
    assert (trace.status, trace.damaged, trace.memory) == ("answered", 1, "owl")
    assert lab.seen[3, "update", 2].startswith("update Q=who? R=NONE M=fox C=c ")
    trace = await lab.run(spec(on_failure="continue"), script("down", "down"), lab.chunks(*"ab"))
    assert (trace.status, trace.last) == ("failed", None)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("<update>a\nb</update>", Step("a\nb", None, True)),
        ("<recall> q </recall> so <update> a </update>", Step("a", "q", True)),
        ("<update></update>", Step("", None, True)),
        ("no tags", Step(None, None, False)),
        ("<update>a</update><update>b</update>", Step(None, None, False)),
        ("<update>a</update><recall>q</recall><recall>r</recall>", Step(None, None, False)),
        ("<update>a</update><recall> </recall>", Step(None, None, False)),
        ("<update>a</update><recall>q", Step(None, None, False)),
        ("<update>a<recall>q</recall></update>", Step(None, None, False)),
        ("</update>a<update>", Step(None, None, False)),
    ],
)
def test_the_form_is_strict(text: str, step: Step) -> None:
    assert parse_step(text) == step


def test_similarities_by_hand() -> None:
    """Three documents over tokens 1 to 3; token 9 is known to none and has no weight."""
    documents = [np.array([1, 1, 2]), np.array([2, 3]), np.array([3])]
    idf = {1: math.log(4 / 2) + 1, 2: math.log(4 / 3) + 1, 3: math.log(4 / 3) + 1}
    query = {1: idf[1], 2: idf[2]}
    first = {1: 2 * idf[1], 2: idf[2]}
    length = math.hypot(*query.values())
    expected = [
        (query[1] * first[1] + query[2] * first[2]) / (length * math.hypot(*first.values())),
        query[2] * idf[2] / (length * math.hypot(idf[2], idf[3])),
        0.0,
    ]
    assert similarities(np.array([1, 2, 9]), documents) == pytest.approx(expected, rel=1e-12)
    assert similarities(np.array([9]), documents).tolist() == [0, 0, 0]
    assert similarities(np.array([1]), []).tolist() == []


TOKENS = st.lists(st.integers(0, 5), min_size=1, max_size=8).map(np.array)


@given(documents=st.lists(TOKENS, min_size=1, max_size=6), data=st.data())
def test_a_document_is_nearest_to_itself(documents: list[np.ndarray], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(documents) - 1))
    scores = similarities(documents[at], documents)
    assert scores[at] == pytest.approx(1)
    assert scores.max() <= 1 + 1e-12
    assert scores.min() >= 0


def test_memories_are_kept_once_under_their_first_turn(shared_tokenizer: Any) -> None:
    memories = Memories(shared_tokenizer)
    assert memories.search("fox") is None
    for turn, text in enumerate(["fox", "owl", "", "fox"], 1):
        memories.add(turn, text)
    assert list(memories.ids) == [1, 2]
    assert memories.search("fox") == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20)
@given(texts=st.lists(st.text("abc xyz", min_size=0, max_size=12), min_size=1, max_size=5))
async def test_without_queries_its_memories_are_mem_agents(lab: Any, texts: list[str]) -> None:
    context = lab.chunks(*(f"c{i}" for i in range(len(texts))))
    one = await lab.run(spec(), script(*(said(t) for t in texts)), context)
    two = await lab.run(MemAgentSpec(chunk_tokens=64, memory_tokens=60, answer_tokens=16), script(*texts), context)
    assert [t.memory_out for t in one.turns] == [t.memory_out for t in two.turns]
    assert one.recalled is None
