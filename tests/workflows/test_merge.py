"""A merge too long for the window: groups of neighbours, level by level, always to an end."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pimem.config import PiMemSpec
from pimem.errors import EngineError
from pimem.records import CallKey

YES, NO = "<check>yes</check>", "<check>no</check>"


def spec(**fields: Any) -> PiMemSpec:
    sizes = {"chunk_tokens": 64, "memory_tokens": 40, "read_tokens": 8, "answer_tokens": 8}
    return PiMemSpec(**{**sizes, "max_turns": 1, **fields})


def shown(lab: Any, label: str, text: str) -> int:
    return lab.size(f"[{label}] {text}")


def room_for(lab: Any, tokens: int) -> None:
    """Sets the window so that a merge has room for exactly `tokens` tokens of memory and observations."""
    workflow = lab.build(spec())
    lab.window = workflow.template("merge").tokens + lab.size("who?") + 40 + tokens


def script(text: str, merged: str = "m{index}") -> Any:
    def answer(key: CallKey, prompt: str) -> str:
        if key.phase == "read":
            return f"{YES}{text}" if key.turn == 1 else NO
        return merged.format(index=key.index)

    return answer


async def test_what_just_fits_is_merged_at_once_and_one_token_less_is_not(lab: Any) -> None:
    text = "z" * 150
    one = shown(lab, "1", YES + text)
    fits = lab.size("EMPTY") + 3 * one + 2 * lab.size("\n\n")
    room_for(lab, fits)
    trace = await lab.run(spec(), script(text), lab.chunks("a", "b", "c"))
    assert (len(trace.turns[0].merges), trace.turns[0].merge_levels) == (1, 0)
    room_for(lab, fits - 1)
    trace = await lab.run(spec(), script(text), lab.chunks("a", "b", "c"))
    assert (trace.status, len(trace.turns[0].merges), trace.turns[0].merge_levels) == ("answered", 2, 1)
    assert lab.seen[1, "merge", 0] == f"merge Q=who? M=EMPTY O=[1] {YES}{text}\n\n[2] {YES}{text}"
    assert lab.seen[1, "merge", 1] == f"merge Q=who? M=EMPTY O=[1-2] m0\n\n[3] {YES}{text}"
    assert trace.memory == "m1"


async def test_two_levels(lab: Any) -> None:
    text, merged = "z" * 150, "y" * 149 + "{index}"
    one = max(shown(lab, "1", YES + text), shown(lab, "1-2", merged.format(index=0)))
    # Two fit together, with the memory or without; three never do.
    room_for(lab, lab.size("EMPTY") + 2 * one + lab.size("\n\n"))
    trace = await lab.run(spec(), script(text, merged), lab.chunks(*"abcdefg"))
    assert trace.status == "answered"
    turn = trace.turns[0]
    # 7 -> 2+2+2+1 -> 2+2 -> the last with the memory.
    assert turn.merge_levels == 2
    assert [c.key.index for c in turn.merges] == list(range(6))
    labels = [[part.split("]")[0] for part in lab.seen[1, "merge", i].split("[")[1:]] for i in range(6)]
    assert labels == [["1", "2"], ["3", "4"], ["5", "6"], ["1-2", "3-4"], ["5-6", "7"], ["1-4", "5-7"]]
    assert trace.memory == merged.format(index=5)
    assert lab.seen[1, "merge", 3] == f"merge Q=who? M=EMPTY O=[1-2] {merged.format(index=0)}\n\n[3-4] {merged.format(index=1)}"


async def test_only_the_last_merge_sees_the_memory(lab: Any) -> None:
    text = "z" * 150

    def answer(key: CallKey, prompt: str) -> str:
        if key.phase == "read":
            return YES + text if key.turn == 2 or key.index == 0 else NO
        return f"notes{key.turn}{key.index}"

    room_for(lab, lab.size("notes10") + 2 * shown(lab, "1", YES + text) + lab.size("\n\n"))
    trace = await lab.run(spec(max_turns=2), answer, lab.chunks(*"abc"))
    assert lab.seen[2, "merge", 0].startswith("merge Q=who? M=EMPTY O=[1] ")
    assert lab.seen[2, "merge", 1].startswith("merge Q=who? M=notes10 O=[1-2] notes20")
    assert trace.memory == "notes21"


async def test_one_observation_beyond_the_room_fails_with_numbers(lab: Any) -> None:
    room_for(lab, 200)
    trace = await lab.run(spec(), script("z" * 400), lab.chunks("a"))
    assert trace.status == "failed"
    size = shown(lab, "1", YES + "z" * 400)
    room = 200 - lab.size("EMPTY")
    assert trace.failure.startswith(f"merge: one observation of {size} tokens does not fit the {room} tokens")
    assert trace.turns[0].reads[0].text == YES + "z" * 400


async def test_no_two_together_fails_with_numbers(lab: Any) -> None:
    text = "z" * 150
    one = shown(lab, "1", YES + text)
    room = lab.size("EMPTY") + 2 * one - 1
    room_for(lab, room)
    trace = await lab.run(spec(), script(text), lab.chunks("a", "b"))
    assert trace.status == "failed"
    assert f"{2 * one + lab.size(chr(10) * 2)} tokens of observations and {lab.size('EMPTY')} of memory" in trace.failure
    assert f"do not fit the {room} that a merge has room for" in trace.failure
    assert "lower read_tokens or memory_tokens" in trace.failure


async def test_failed_partial_merges(lab: Any) -> None:
    text = "z" * 150
    room_for(lab, lab.size("EMPTY") + 2 * shown(lab, "1", YES + text) + lab.size("\n\n"))

    def failing(*places: int) -> Any:
        def answer(key: CallKey, prompt: str) -> str:
            if key.phase == "merge" and key.index in places:
                raise EngineError("down", retryable=False)
            return script(text)(key, prompt)

        return answer

    trace = await lab.run(spec(), failing(1), lab.chunks(*"abcd"))
    assert trace.failure == "merge call s/1/merge/1 failed after 1 attempt(s): down"
    assert [c.text for c in trace.turns[0].merges] == ["m0", ""]
    trace = await lab.run(spec(on_failure="continue"), failing(1), lab.chunks(*"abcd"))
    assert (trace.status, trace.damaged) == ("answered", 1)
    assert lab.seen[1, "merge", 2] == "merge Q=who? M=EMPTY O=[1-2] m0"
    trace = await lab.run(spec(on_failure="continue"), failing(0, 1), lab.chunks(*"abcd"))
    assert (trace.status, trace.failure) == ("failed", "merge: every partial merge came back empty or failed")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=80)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    merged=st.lists(st.integers(0, 90), min_size=1, max_size=6),
    room=st.integers(50, 400),
)
def test_any_sizes_give_a_memory_or_a_reason(lab: Any, sizes: list[int], merged: list[int], room: int) -> None:
    def answer(key: CallKey, prompt: str) -> str:
        if key.phase == "read":
            return YES + "z" * sizes[key.index]
        return "y" * merged[key.index % len(merged)]

    room_for(lab, room)
    lab.window = max(lab.window, 230)
    trace = asyncio.run(lab.run(spec(), answer, lab.chunks(*["c"] * len(sizes))))
    merges = trace.turns[0].merges
    # A tree whose inner nodes have two children or more has fewer inner nodes than leaves; one more for the last.
    assert len(merges) <= len(sizes)
    assert [c.key.index for c in merges] == list(range(len(merges)))
    if trace.status == "answered":
        assert trace.memory == merges[-1].text == lab.recorder.told[-2][0].text
        assert (trace.turns[0].merge_levels == 0) == (len(merges) == 1)
    else:
        assert trace.failure.startswith("merge: ")
