"""Vanilla: all of the context, or exactly as much of its head and tail as fits; LongBench v2's variants; malformed answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.config import VanillaSpec, YarnSpec
from pimem.errors import BudgetError, ConfigError, EngineError
from pimem.workflows.direct import head_and_tail

SPEC = VanillaSpec(answer_tokens=16)


def answer(key: Any, prompt: str) -> str:
    return "Paris"


async def test_a_context_that_fits_is_shown_whole(lab: Any) -> None:
    context = lab.tokenizer.encode("The quick brown fox.")
    trace = await lab.run(SPEC, answer, context)
    assert lab.seen == {(0, "answer", 0): "answer Q=who? C=The quick brown fox."}
    assert (trace.status, trace.response, trace.dropped_tokens, trace.turns_used) == ("answered", "Paris", 0, 0)
    assert trace.last.sampling.max_tokens == 16


@pytest.mark.parametrize("room", [1, 2, 7, 10])
async def test_the_cut_fills_the_window_to_the_token(lab: Any, room: int) -> None:
    own = lab.build(SPEC).template("answer").tokens
    lab.window = own + lab.size("who?") + 16 + room
    context = np.concatenate([lab.tokenizer.encode(c) for c in "abcdefghijklmnopqrstuvwxyz"])
    assert len(context) == 26
    trace = await lab.run(SPEC, answer, context)
    head, tail = (room + 1) // 2, room // 2
    kept = "abcdefghijklmnopqrstuvwxyz"[:head] + "abcdefghijklmnopqrstuvwxyz"[26 - tail :]
    assert lab.seen[0, "answer", 0] == f"answer Q=who? C={kept}"
    assert trace.dropped_tokens == 26 - room
    assert trace.context_tokens == 26
    assert trace.last.completion.prompt_tokens + 16 == lab.window


@given(st.integers(1, 60), st.integers(1, 60))
def test_head_and_tail_keep_exactly_the_room(count: int, room: int) -> None:
    ids = np.arange(count, dtype=np.uint32)
    kept = head_and_tail(ids, room)
    assert len(kept) == min(count, room)
    dropped = sorted(set(range(count)) - set(kept.tolist()))
    assert not dropped or dropped == list(range(dropped[0], dropped[-1] + 1))
    assert kept[0] == 0
    assert room == 1 or kept[-1] == count - 1


LETTERS = "abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("spec", [VanillaSpec, YarnSpec])
async def test_yarn_asks_what_vanilla_asks(lab: Any, spec: Any) -> None:
    trace = await lab.run(spec(answer_tokens=16), answer, lab.tokenizer.encode("The quick brown fox."))
    assert lab.seen == {(0, "answer", 0): "answer Q=who? C=The quick brown fox."}
    assert trace.method == spec().method


@pytest.mark.parametrize("most", [41, 42, 45])
async def test_a_cut_of_the_prompt_keeps_as_much_of_its_head_as_of_its_tail(lab: Any, most: int) -> None:
    """LongBench v2 cuts the rendered prompt: what stands before the context is part of the head that is kept."""
    spec = VanillaSpec(answer_tokens=16, prompt_tokens=most, cut="prompt")
    context = np.concatenate([lab.tokenizer.encode(c) for c in LETTERS])
    template = lab.build(spec).template("answer")
    whole = template.fill(question=lab.tokenizer.encode("who?"), context=context)
    trace = await lab.run(spec, answer, context)
    wanted = np.concatenate([whole[: most // 2], whole[len(whole) - (most - most // 2) :]])
    assert len(whole) > most
    assert trace.last.completion.prompt_tokens == most
    assert trace.dropped_tokens == len(whole) - most
    shown = lab.tokenizer.decode(wanted)
    assert lab.seen[0, "answer", 0] in shown


async def test_a_cap_on_the_prompt_counts_where_the_window_is_larger(lab: Any) -> None:
    context = np.concatenate([lab.tokenizer.encode(c) for c in LETTERS])
    own = lab.build(SPEC).template("answer").tokens + lab.size("who?")
    await lab.run(VanillaSpec(answer_tokens=16, prompt_tokens=own + 4), answer, context)
    assert lab.seen[0, "answer", 0] == "answer Q=who? C=abyz"
    with pytest.raises(BudgetError, match=r"leaves no token for the context"):
        await lab.run(VanillaSpec(answer_tokens=16, prompt_tokens=own), answer, context)


async def test_without_the_context_only_the_question_is_shown(lab: Any) -> None:
    trace = await lab.run(VanillaSpec(context="none"), answer, lab.tokenizer.encode("The fox."))
    assert lab.seen == {(0, "answer", 0): "closed Q=who?"}
    assert trace.notes == {"context": "not shown"}
    with pytest.raises(ConfigError, match="no prompt for thinking without a context"):
        VanillaSpec(context="none", reasoning_tokens=5)


def thinking(thought: str, said: str = "Paris") -> Any:
    return lambda key, prompt: thought if key.phase == "reason" else said


async def test_thinking_comes_first_and_the_answer_rests_on_it_without_the_context(lab: Any) -> None:
    spec = VanillaSpec(answer_tokens=16, reasoning_tokens=40)
    trace = await lab.run(spec, thinking(" The fox is quick. "), lab.tokenizer.encode("The fox."))
    assert lab.seen == {
        (0, "reason", 0): "reason Q=who? C=The fox.",
        (0, "answer", 0): "conclude Q=who? R=The fox is quick.",
    }
    assert [call.key.phase for call in trace.calls()] == ["reason", "answer"]
    assert [call.sampling.max_tokens for call in trace.calls()] == [40, 16]
    assert (trace.response, trace.notes) == ("Paris", {})


async def test_thinking_that_fails_fails_the_sample_and_makes_no_second_call(lab: Any) -> None:
    def down(key: Any, prompt: str) -> str:
        raise EngineError("down", retryable=False)

    trace = await lab.run(VanillaSpec(reasoning_tokens=9), down, lab.tokenizer.encode("The fox."))
    assert (trace.status, trace.failure) == ("failed", "reason call s/0/reason/0 failed after 1 attempt(s): down")
    assert lab.asked == [(0, "reason", 0)]


@pytest.mark.parametrize(
    ("thought", "said", "notes"),
    [
        ("", "Paris", {"reasoning_empty": True}),
        ("a b c d", "Paris", {"reasoning_cut_off": True}),
        ("a", "", {"answer_empty": True}),
        ("a", "a b c", {"answer_cut_off": True}),
    ],
)
async def test_the_trace_says_of_a_response_that_it_is_empty_or_cut_off(lab: Any, thought: str, said: str, notes: Any) -> None:
    spec = VanillaSpec(answer_tokens=2, reasoning_tokens=3)
    trace = await lab.run(spec, thinking(thought, said), lab.tokenizer.encode("The fox."))
    assert (trace.status, trace.notes) == ("answered", notes)
