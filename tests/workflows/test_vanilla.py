"""Vanilla: all of the context, or exactly as much of its head and tail as the window holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.config import VanillaSpec
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
