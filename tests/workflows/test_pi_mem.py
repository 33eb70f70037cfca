"""PI-Mem, step by step against Algorithm 1 and equations 1 and 2."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.config import PiMemSpec, method_spec
from pimem.engines.base import EngineInfo
from pimem.errors import EngineError
from pimem.records import CallKey, Completion
from pimem.tokens import digest
from pimem.workflows.pi_mem import parse_check

YES, NO = "<check>yes</check>", "<check>no</check>"
SMALL = {"chunk_tokens": 64, "memory_tokens": 64, "read_tokens": 64, "answer_tokens": 16}


def spec(**fields: Any) -> PiMemSpec:
    return PiMemSpec(**{**SMALL, **fields})


def answers(reads: dict[tuple[int, int], str], merge: str = "notes of turn {turn}") -> Any:
    """A script: reads by (turn, chunk), no where nothing is said."""

    def script(key: CallKey, prompt: str) -> str:
        if key.phase == "read":
            return reads.get((key.turn, key.index), NO)
        return merge.format(turn=key.turn) if key.phase == "merge" else f"final after {key.turn}"

    return script


async def test_nothing_found_in_turn_one_answers_from_the_empty_memory(lab: Any) -> None:
    trace = await lab.run(spec(), answers({}), lab.chunks("a", "b", "c"))
    assert lab.asked == [(1, "read", 0), (1, "read", 1), (1, "read", 2), (1, "final", 0)]
    assert lab.seen[1, "final", 0] == "final Q=who? M=EMPTY"
    assert (trace.status, trace.response, trace.memory) == ("answered", "final after 1", "")
    assert (trace.turns_used, trace.converged, trace.chunks, trace.context_tokens) == (1, True, 3, 192)
    assert trace.turns[0].merges == []
    assert [c.check for c in trace.turns[0].reads] == ["no", "no", "no"]


async def test_found_in_turn_one_nothing_new_in_turn_two(lab: Any) -> None:
    reads = {(1, 1): f"{YES} fact two", (1, 3): f"{YES}\nfact four "}
    trace = await lab.run(spec(), answers(reads), lab.chunks("c0", "c1", "c2", "c3"))
    blanks = " " * (64 - lab.size("c1"))
    assert lab.seen[1, "read", 1] == f"read Q=who? M=EMPTY C=c1{blanks}"
    assert lab.seen[1, "merge", 0] == f"merge Q=who? M=EMPTY O=[2] {YES} fact two\n\n[4] {YES}\nfact four"
    assert lab.seen[2, "read", 3] == f"read Q=who? M=notes of turn 1 C=c3{blanks}"
    assert lab.seen[2, "final", 0] == "final Q=who? M=notes of turn 1"
    assert (2, "merge", 0) not in lab.seen
    assert len(lab.asked) == 4 + 1 + 4 + 1
    assert (trace.turns_used, trace.converged, trace.memory) == (2, True, "notes of turn 1")
    assert [t.selected for t in trace.turns] == [[1, 3], []]
    assert [(t.memory_in, t.memory_out) for t in trace.turns] == [("", "notes of turn 1"), ("notes of turn 1",) * 2]
    assert trace.turns[0].merge_levels == 0


async def test_turns_end_at_k(lab: Any) -> None:
    always = {(turn, 0): f"{YES} fact {turn}" for turn in range(1, 9)}
    for k in (1, 3):
        trace = await lab.run(spec(max_turns=k), answers(always), lab.chunks("a", "b"))
        assert (trace.turns_used, trace.converged) == (k, False)
        assert trace.memory == f"notes of turn {k}"
        assert lab.asked[-1] == (k, "final", 0)
        assert [key for key in lab.asked if key[1] == "merge"] == [(turn, "merge", 0) for turn in range(1, k + 1)]
    assert lab.seen[3, "merge", 0] == f"merge Q=who? M=notes of turn 2 O=[1] {YES} fact 3"


async def test_reads_of_a_turn_are_in_flight_together_and_see_one_memory(lab: Any) -> None:
    class Slow:
        """Answers reads only when all of them are there."""

        info = EngineInfo("slow", "slow", 4096)
        waiting = 0

        async def generate(self, prompt_ids: Any, sampling: Any, key: CallKey) -> Completion:
            import asyncio

            if key.phase == "read":
                self.waiting += 1
                async with asyncio.timeout(20):
                    while self.waiting % 5:
                        await asyncio.sleep(0)
            text = f"{YES} x" if key[1:3] == (1, "read") else NO if key.phase == "read" else "m"
            return Completion(text, "stop", len(prompt_ids), 1)

        async def close(self) -> None: ...

    trace = await lab.build(spec()).run("who?", lab.chunks(*"abcde"), Slow(), lab.recorder)
    assert (trace.status, trace.turns_used) == ("answered", 2)


async def test_the_same_answers_give_the_same_trace(lab: Any) -> None:
    def once(trace: Any) -> Any:
        for call in trace.calls():
            call.completion.started = call.completion.ended = 0.0
        return trace

    reads = {(1, 1): f"{YES} a", (2, 0): f"{YES} b"}
    one = once(await lab.run(spec(), answers(reads), lab.chunks("c0", "c1")))
    assert once(await lab.run(spec(), answers(reads), lab.chunks("c0", "c1"))) == one


async def test_chunks_are_named_by_hash_and_the_last_may_be_short(lab: Any) -> None:
    context = lab.chunks("a", "b", "c")[:150]
    trace = await lab.run(spec(), answers({}), context)
    hashes = [call.chunk_hash for call in trace.turns[0].reads]
    assert hashes == [digest(context[0:64]), digest(context[64:128]), digest(context[128:150])]


async def test_reads_stop_at_the_no_tag_if_asked_to(lab: Any) -> None:
    reads = {(1, 0): f"{NO} because it is about foxes"}
    trace = await lab.run(spec(), answers(reads), lab.chunks("a"))
    assert trace.turns[0].reads[0].text == NO
    assert trace.turns[0].reads[0].sampling.stop == (NO,)
    assert trace.last.sampling.stop == ()
    trace = await lab.run(spec(stop_at_no=False), answers(reads), lab.chunks("a"))
    assert trace.turns[0].reads[0].text == f"{NO} because it is about foxes"


async def test_each_phase_has_its_own_budget(lab: Any) -> None:
    sizes = {"read_tokens": 11, "memory_tokens": 12, "answer_tokens": 13}
    trace = await lab.run(spec(**sizes), answers({(1, 0): f"{YES} a"}), lab.chunks("a"))
    assert {c.key.phase: c.sampling.max_tokens for c in trace.calls()} == {"read": 11, "merge": 12, "final": 13}


async def test_cached_order_puts_the_chunk_before_the_memory(lab: Any) -> None:
    await lab.run(spec(prompt_order="cached"), answers({(1, 0): f"{YES} a"}), lab.chunks("a"))
    assert lab.seen[2, "read", 0] == f"read Q=who? C=a{' ' * (64 - lab.size('a'))} M=notes of turn 1"


@pytest.mark.parametrize("order", ["paper", "cached"])
async def test_without_select_every_observation_is_merged_in_every_turn(lab: Any, order: str) -> None:
    reads = {(t, i): f"{NO} t{t} c{i}" for t in (1, 2, 3) for i in (0, 1)} | {(2, 1): "  "}
    trace = await lab.run(spec(select=False, prompt_order=order), answers(reads), lab.chunks("a", "b"))
    assert (trace.turns_used, trace.converged) == (3, False)
    assert [t.selected for t in trace.turns] == [[0, 1], [0], [0, 1]]
    assert lab.seen[1, "merge", 0] == f"merge Q=who? M=EMPTY O=[1] {NO} t1 c0\n\n[2] {NO} t1 c1"
    assert all(lab.seen[t, "read", 0].startswith("all Q=who?") for t in (1, 2, 3))
    assert {(c.check, c.sampling.stop) for t in trace.turns for c in t.reads} == {(None, ())}


async def test_without_merge_the_memory_is_the_labelled_concatenation(lab: Any) -> None:
    reads = {(1, 0): f"{YES} one", (1, 2): f"{YES} three", (2, 1): f"{YES} two"}
    trace = await lab.run(spec(merge=False), answers(reads), lab.chunks("a", "b", "c"))
    first = f"[1] {YES} one\n\n[3] {YES} three"
    assert trace.turns[0].memory_out == first
    assert trace.memory == f"{first}\n\n[2] {YES} two"
    assert lab.seen[3, "final", 0] == f"final Q=who? M={trace.memory}"
    assert trace.turns_used == 3
    assert all(turn.merges == [] for turn in trace.turns)


async def test_without_merge_a_memory_beyond_the_window_fails_with_numbers(lab: Any) -> None:
    lab.window = 300
    reads = {(1, 0): YES + "z" * 250}
    trace = await lab.run(spec(merge=False), answers(reads), lab.chunks("a"))
    assert trace.status == "failed"
    assert "a read call needs" in trace.failure
    assert "more than the window of 300" in trace.failure
    assert [t.number for t in trace.turns] == [1, 2]


async def test_renumbered_labels_count_the_selected(lab: Any) -> None:
    reads = {(1, 1): f"{YES} two", (1, 3): f"{YES} four"}
    trace = await lab.run(spec(labels="renumbered"), answers(reads), lab.chunks(*"abcd"))
    assert lab.seen[1, "merge", 0] == f"merge Q=who? M=EMPTY O=[1] {YES} two\n\n[2] {YES} four"
    assert trace.turns[0].selected == [1, 3]


TABLE = [
    # response, check, kept when strict, kept when lenient
    (f"{YES} x", "yes", True, True),
    ("<CHECK>Yes</Check> x", "yes", True, True),
    ("<check>\n yes </check>", "yes", True, True),
    (f"I think {YES}", "yes", True, True),
    (NO, "no", False, False),
    ("<Check>NO</check>", "no", False, False),
    ("<check> no </check>", "no", False, True),
    (f"{NO} {YES}", "no", False, False),
    (f"{YES} though {NO}", "yes", True, False),
    (f"<check>maybe</check> {YES}", "yes", True, True),
    ("<check>yes", "malformed", False, True),
    ("<check>yes no</check>", "malformed", False, True),
    ("<check></check>", "malformed", False, True),
    ("<check>ye\u017f</check>", "malformed", False, True),
    ("yes", "malformed", False, True),
    ("the fox is brown", "malformed", False, True),
]


@pytest.mark.parametrize(("text", "check", "strict", "lenient"), TABLE)
async def test_check_rules(lab: Any, text: str, check: str, strict: bool, lenient: bool) -> None:
    assert parse_check(text) == check
    for rule, kept in (("strict", strict), ("lenient", lenient)):
        trace = await lab.run(spec(check_rule=rule, stop_at_no=False), answers({(1, 0): text}), lab.chunks("a"))
        assert trace.turns[0].reads[0].check == check
        assert trace.turns[0].selected == ([0] if kept else [])


@given(st.text() | st.lists(st.sampled_from(["<check>", "</check>", "yes", "NO", " ", "\n", "x", "<"])).map("".join))
def test_any_text_has_a_check(text: str) -> None:
    assert parse_check(text) in ("yes", "no", "malformed")
    assert parse_check(f"{YES}{text}") == "yes"
    assert parse_check(f"{NO}{text}") == "no"


@pytest.mark.parametrize("unit", ["<check>", "<check>yes", "<check>  ", "<check> yes  ", "<", " ", "<check>no</check"])
def test_checks_are_read_in_linear_time(unit: str) -> None:
    def seconds(times: int) -> float:
        text = unit * times + " " * times
        started = time.process_time()
        assert parse_check(text) == "malformed"
        return time.process_time() - started

    # A quadratic scan of a million characters would take minutes.
    assert seconds(1_000_000 // len(unit)) < 5


def down(phase: str, *places: tuple[int, int], retryable: bool = False) -> Any:
    """A script in which the named calls fail for good; every other read says yes in turn 1."""
    inner = answers({(1, i): f"{YES} fact {i}" for i in range(9)})

    def script(key: CallKey, prompt: str) -> str:
        if key.phase == phase and (key.turn, key.index) in places:
            raise EngineError("server is down", retryable=retryable)
        return inner(key, prompt)

    return script


async def test_a_failed_read_fails_the_sample_and_loses_nothing(lab: Any) -> None:
    trace = await lab.run(spec(), down("read", (1, 1)), lab.chunks("a", "b", "c"))
    assert trace.status == "failed"
    assert trace.failure == "read call s/1/read/1 failed after 1 attempt(s): server is down"
    assert [c.check for c in trace.turns[0].reads] == ["yes", "failed", "yes"]
    assert trace.turns[0].reads[1].completion is None
    assert trace.turns[0].reads[2].text == f"{YES} fact 2"
    assert (trace.last, trace.response, trace.damaged) == (None, "", 0)


async def test_a_failed_read_is_never_a_no(lab: Any) -> None:
    trace = await lab.run(spec(on_failure="continue"), down("read", (1, 1), (2, 0)), lab.chunks("a", "b", "c"))
    assert trace.status == "answered"
    assert trace.damaged == 2
    assert trace.turns[0].selected == [0, 2]
    # All other chunks said no in turn 2, but one was not heard: the loop ends, and does not claim to have converged.
    assert (trace.turns_used, trace.converged) == (2, False)


async def test_all_reads_failed_fails_whatever_the_rule(lab: Any) -> None:
    trace = await lab.run(spec(on_failure="continue"), down("read", (1, 0), (1, 1)), lab.chunks("a", "b"))
    assert trace.status == "failed"
    assert "read call s/1/read/0 failed" in trace.failure


async def test_a_failed_merge_fails_or_keeps_the_memory(lab: Any) -> None:
    trace = await lab.run(spec(), down("merge", (1, 0)), lab.chunks("a"))
    assert (trace.status, trace.memory) == ("failed", "")
    assert trace.failure == "merge call s/1/merge/0 failed after 1 attempt(s): server is down"
    assert [c.error for c in trace.turns[0].merges] == ["server is down"]

    trace = await lab.run(spec(on_failure="continue"), down("merge", (1, 0)), lab.chunks("a"))
    assert (trace.status, trace.damaged, trace.memory) == ("answered", 1, "")
    assert lab.seen[2, "read", 0].startswith("read Q=who? M=EMPTY")


@pytest.mark.parametrize("rule", ["fail", "continue"])
async def test_a_failed_final_call_fails_the_sample(lab: Any, rule: str) -> None:
    trace = await lab.run(spec(on_failure=rule), down("final", (2, 0)), lab.chunks("a"))
    assert (trace.status, trace.response) == ("failed", "")
    assert trace.last.error == "server is down"
    assert trace.memory == "notes of turn 1"


async def test_a_memory_that_tokenises_longer_again_is_cut_and_noted(lab: Any) -> None:
    memory = "z" * 90
    script = answers({(1, 0): f"{YES} a"}, merge=memory)
    trace = await lab.run(spec(memory_tokens=40), script, lab.chunks("a"))
    assert trace.memory == memory
    assert trace.notes["memory_cut"] == lab.size(memory) - 40 > 0
    kept = lab.tokenizer.decode(lab.tokenizer.encode(memory)[:40])
    assert lab.seen[2, "final", 0] == f"final Q=who? M={kept}"
    assert lab.seen[2, "read", 0].startswith(f"read Q=who? M={kept} C=a")


async def test_a_stand_in_for_the_empty_memory_longer_than_the_budget_is_shown_whole(lab: Any) -> None:
    assert lab.size("EMPTY") > 2
    trace = await lab.run(spec(memory_tokens=2), answers({}), lab.chunks("a"))
    assert lab.seen[1, "final", 0] == "final Q=who? M=EMPTY"
    assert trace.notes == {}


async def test_the_released_preset_keeps_malformed_reads(lab: Any) -> None:
    released = method_spec("pi_mem", {**SMALL, "max_turns": 1}, "released")
    await lab.run(released, answers({(1, 2): "a bare fact"}), lab.chunks("a", "b", "c"))
    assert lab.seen[1, "merge", 0] == "merge Q=who? M=EMPTY O=[1] a bare fact"
