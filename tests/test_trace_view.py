"""A trace as text."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from pimem.ask import Asked
from pimem.config import PiMemSpec, RunSpec
from pimem.records import Call, CallKey, Check, Completion, Evidence, Sampling, Trace, Turn
from pimem.tokens import Tokenizer
from pimem.trace_view import as_text, cost


def call(phase: str, index: int, text: str, check: Check | None = None, turn: int = 1) -> Call:
    done = Completion(text, "stop", 100, 5, cached_tokens=40, started=10.0 + index, ended=11.0 + index)
    return Call(CallKey("s", turn, phase, index), "h", Sampling(8), done, check)  # type: ignore[arg-type]


def trace() -> Trace:
    reads = [call("read", 0, "<check>no</check>", "no"), call("read", 1, "<check>yes</check> It hangs there.", "yes")]
    reads += [call("read", 2, "what?", "malformed")]
    turn = Turn(1, "", "It hangs there.", reads, [1], [call("merge", 0, "It hangs there.")])
    last = call("final", 0, "there")
    return Trace("s", "pi_mem", "Where?", "answered", "there", "It hangs there.", [turn], last, 1, False, 25, 3)


def test_a_turn_shows_marks_selection_memory_and_where_evidence_was_missed() -> None:
    text = as_text(
        trace(), chunk_tokens=10, evidence=[Evidence(12, 14, "x"), Evidence(24, 25, "y")], source=lambda t: f"f line {t}"
    )
    assert "turn 1    1 of 3 chunks selected    · no  # yes  ? malformed  ! failed\n  ·#?\n" in text
    assert "chunk 2 (tokens 10 to 19, f line 10) *holds evidence*\n    | <check>yes</check> It hangs there." in text
    assert "evidence  lies in chunk 2, chunk 3" in text
    assert "not selected although evidence lies there: chunk 3" in text
    assert "memory after 1 merge(s)\n    | It hangs there." in text
    assert text.splitlines()[-1] == cost(trace())


def test_cost_counts_calls_tokens_and_wall_time() -> None:
    assert cost(trace()) == "cost      1 turn(s), 5 calls, 500 tokens read (200 from cache), 25 generated, 3.0 s"
    assert cost(Trace("s", "vanilla", "q", "failed")) == "cost      0 calls, 0 tokens read, 0 generated, 0.0 s"


def test_a_failed_trace_gives_the_reason_and_control_characters_are_shown_not_sent() -> None:
    failed = Trace("s", "vanilla", "Where?", "failed", failure="it \x1b[31mbroke", context_tokens=9, dropped_tokens=4)
    text = as_text(failed)
    assert "failed\n  | it \\x1b[31mbroke" in text
    assert "\x1b" not in text
    assert "cut       4 tokens" in text


def test_nothing_that_was_read_or_said_steers_the_terminal(tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer)
    steer = "\x1b[2J \x9b1m \r over\x07"
    for method in ("pi_mem", "rememr1"):
        turn = Turn(1, steer, steer, [call("read", 0, steer, "yes")], [0], [call("merge", 0, steer)], query=steer)
        hostile = Trace("s", method, steer, "answered", steer, steer, [turn], call("final", 0, steer), 1, False, 5, 1)
        ids = tokenizer.encode(steer)
        shown = as_text(hostile, context_ids=ids, tokenizer=tokenizer, chunk_tokens=50)
        assert "\\x1b[2J" in shown
        assert [c for c in shown if not (c.isprintable() or c == "\n")] == []
        task: Any = SimpleNamespace(source=str)
        asked = Asked(hostile, task, RunSpec(PiMemSpec(chunk_tokens=50)), tokenizer, steer)
        assert [c for c in asked.as_text(show_trace=False) if not (c.isprintable() or c == "\n")] == []


def test_recurrent_steps_say_whether_the_memory_changed() -> None:
    turns = [
        Turn(1, "", "a", [call("update", 0, "a")]),
        Turn(2, "a", "a", [call("update", 1, "a", turn=2)]),
    ]
    text = as_text(Trace("s", "mem_agent", "q", "answered", "a", "a", turns, context_tokens=20, chunks=2), chunk_tokens=10)
    assert "chunk 1 (tokens 0 to 9): memory rewritten" in text
    assert "chunk 2 (tokens 10 to 19): memory unchanged" in text


def test_gates_and_recalls_are_shown() -> None:
    gated = Turn(1, "", "a", [call("update", 0, "a", "yes")], exit="end")
    text = as_text(Trace("s", "gru_mem", "q", "answered", "a", "a", [gated], context_tokens=20, chunks=2))
    assert "chunk 1: memory rewritten, update gate yes, exit gate end" in text
    broken = call("update", 1, "b")
    broken.well_formed = False
    turns = [Turn(1, "", "a", [call("update", 0, "a")], query="the fox"), Turn(2, "a", "a", [broken], recalled=1)]
    text = as_text(Trace("s", "rememr1", "q", "answered", "a", "a", turns, context_tokens=20, chunks=2))
    assert 'chunk 1: memory rewritten, asks for "the fox"' in text
    assert "chunk 2: memory unchanged, malformed, memory of turn 1 recalled" in text


def test_nothing_is_needed_but_the_trace() -> None:
    assert "chunk 2\n" in as_text(trace())
    assert "context_ids" not in as_text(trace(), context_ids=np.arange(25))
