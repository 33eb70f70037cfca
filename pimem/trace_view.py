"""A trace for a person to read: what was found, where it stood, what became of it.

`as_text` is for terminals and plain notebook output. Everything shown comes from the trace and the context's token ids.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

import numpy as np

from pimem.records import Call, Evidence, Trace, Turn
from pimem.tokens import Tokenizer, holding, windows

MARKS = {"no": "·", "yes": "#", "malformed": "?", "failed": "!", None: "o"}
"""One character a chunk: no, yes, malformed, failed; o where no check is asked for."""
RECURRENT = frozenset({"mem_agent", "gru_mem", "rememr1"})
"""Methods whose turns are single calls, chunk after chunk."""
_WIDTH = 100


def as_text(
    trace: Trace,
    *,
    context_ids: np.ndarray | None = None,
    tokenizer: Tokenizer | None = None,
    chunk_tokens: int | None = None,
    evidence: Sequence[Evidence] = (),
    source: Callable[[int], str] | None = None,
) -> str:
    """The trace as lines of text.

    With the context and its tokenizer each selected chunk shows how it begins; `evidence` marks the chunks that hold gold;
    `source` names the file and line of a context token.
    """
    spans = windows(trace.context_tokens, chunk_tokens) if chunk_tokens else []
    gold = holding(spans, evidence)

    def place(index: int) -> str:
        if index >= len(spans):
            return f"chunk {index + 1}"
        start, end = spans[index]
        begins = ""
        if context_ids is not None and tokenizer is not None:
            begins = f', begins "{one_line(tokenizer.decode(context_ids[start : start + 10]))}…"'
        where = f", {source(start)}" if source else ""
        return f"chunk {index + 1} (tokens {start:,} to {end - 1:,}{where}{begins})"

    lines = [
        f"question  {one_line(trace.question)}",
        f"method    {trace.method}, {trace.context_tokens:,} tokens in {max(trace.chunks, 1)} chunk(s)",
    ]
    if trace.dropped_tokens:
        lines.append(f"cut       {trace.dropped_tokens:,} tokens from the middle, to fit the window")
    if trace.retrieved:
        lines.append("retrieved " + ", ".join(place(i) for i in trace.retrieved))
    if gold:
        lines.append("evidence  lies in " + ", ".join(f"chunk {i + 1}" for i in sorted(gold)))
    show = _recurrent_turns if trace.method in RECURRENT else _parallel_turns
    lines += show(trace.turns, place, gold)
    lines.append("")
    lines += _block("memory", trace.memory or "(empty)") if trace.turns else []
    lines += _block("answer" if trace.status == "answered" else "failed", trace.response or trace.failure or "(nothing)")
    return "\n".join([*lines, cost(trace)])


def _parallel_turns(turns: Sequence[Turn], place: Callable[[int], str], gold: set[int]) -> list[str]:
    lines = []
    for turn in turns:
        marks = "".join(MARKS[call.check] for call in turn.reads)
        counts = f"{len(turn.selected)} of {len(turn.reads)} chunks selected"
        legend = "  ".join(f"{mark} {check}" for check, mark in MARKS.items() if check)
        lines += ["", f"turn {turn.number}    {counts}    {legend}"]
        lines += textwrap.wrap(marks, _WIDTH, initial_indent="  ", subsequent_indent="  ")
        for index in turn.selected:
            lines += _block(f"{place(index)}{' *holds evidence*' if index in gold else ''}", turn.reads[index].text, "  ")
        missed = sorted(gold - set(turn.selected))
        if missed:
            lines.append("  not selected although evidence lies there: " + ", ".join(f"chunk {i + 1}" for i in missed))
        if turn.merges:
            levels = f" in {turn.merge_levels + 1} levels" if turn.merge_levels else ""
            lines += _block(f"memory after {len(turn.merges)} merge(s){levels}", turn.memory_out or "(empty)", "  ")
    return lines


def _recurrent_turns(turns: Sequence[Turn], place: Callable[[int], str], gold: set[int]) -> list[str]:
    lines = [""]
    for turn in turns:
        index = turn.reads[0].key.index
        said = ["memory unchanged" if turn.memory_out == turn.memory_in else "memory rewritten"]
        if turn.reads[0].well_formed is False:
            said.append("malformed")
        if turn.exit:
            said.append(f"update gate {turn.reads[0].check}, exit gate {turn.exit}")
        if turn.recalled:
            said.append(f"memory of turn {turn.recalled} recalled")
        if turn.query:
            said.append(f'asks for "{one_line(turn.query)}"')
        holds = " *holds evidence*" if index in gold else ""
        lines += _block(f"{place(index)}{holds}: {', '.join(said)}", turn.memory_out or "(empty)", "  ")
    return lines


def _block(title: str, body: str, indent: str = "") -> list[str]:
    """A title and what belongs to it, wrapped; control characters shown, not sent."""
    lines = [indent + title]
    for line in body.strip().splitlines() or [""]:
        bar = indent + "  | "
        lines += textwrap.wrap(_safe(line), _WIDTH, initial_indent=bar, subsequent_indent=bar) or [bar.rstrip()]
    return lines


def _safe(line: str) -> str:
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in line)


def one_line(text: str) -> str:
    """Text of any lines as one, control characters shown: what a document or a model says must not steer a terminal."""
    return _safe(" ".join(text.split()))


def cost(trace: Trace) -> str:
    """One line: calls, tokens and seconds of a trace."""
    calls: list[Call] = trace.calls()
    done = [c.completion for c in calls if c.completion]
    read, made = sum(c.prompt_tokens for c in done), sum(c.generated_tokens for c in done)
    cached = sum(c.cached_tokens or 0 for c in done)
    seconds = max((c.ended for c in done), default=0.0) - min((c.started for c in done), default=0.0)
    from_cache = f" ({cached:,} from cache)" if cached else ""
    parts = [f"{len(calls)} calls", f"{read:,} tokens read{from_cache}", f"{made:,} generated"]
    failed = sum(c.error is not None for c in calls)
    if failed:
        parts.append(f"{failed} failed")
    turns = f"{trace.turns_used} turn(s), " if trace.method == "pi_mem" else ""
    return f"cost      {turns}{', '.join(parts)}, {seconds:.1f} s"
