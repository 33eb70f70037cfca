"""Where a wrong answer was lost, as far as its trace and the places of the evidence tell: the first of `CAUSES` that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pimem.records import Evidence, Sample, Trace
from pimem.scoring import WITHOUT_MEMORY, coverage, holds_any, normalise
from pimem.tokens import windows

CAUSES = ("right", "failed", "not read", "not selected", "lost in memory", "not used")
"""right: everything asked for was answered; failed: no answer; not read: evidence was cut out, not retrieved or behind an exit;
not selected: no read of it said yes; lost in memory: the final memory lacks what is asked for; not used: it was there."""


def cause(sample: Sample, trace: Trace, chunk_tokens: int | None, right: float, metric: str) -> str:
    """Why a sample scored `right` (0..1) under its metric, one of `CAUSES`.

    `chunk_tokens`: of the method's windows; None for a method that reads its text at once. Yes, no and the letter of a
    choice leave no mark in a memory: for such answers what was lost there counts as not used.
    """
    if trace.status == "failed":
        return "failed"
    if right >= 1:
        return "right"
    spans = windows(trace.context_tokens, chunk_tokens) if chunk_tokens else []
    if not _all_in(sample.evidence, list(_read(trace, spans))):
        return "not read"
    chosen = _selected(trace)
    if chosen is not None and not all(any(_meets(e, spans[i]) for i in chosen) for e in sample.evidence):
        return "not selected"
    closed = metric == "accuracy" or (metric == "sub_em" and {normalise(a) for a in sample.answers} <= {"yes", "no"})
    if trace.method in WITHOUT_MEMORY or closed:
        return "not used"
    held = (coverage if metric == "multi_recall" else holds_any)(trace.memory, sample.answers)
    return "not used" if held >= 1 else "lost in memory"


def _read(trace: Trace, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Token ranges of the context that the method saw, in order."""
    if not spans:
        kept = trace.context_tokens - trace.dropped_tokens
        head = (kept + 1) // 2 if trace.dropped_tokens else kept
        yield 0, head
        yield trace.context_tokens - (kept - head), trace.context_tokens
        return
    seen = trace.retrieved if trace.method == "rag" else {call.key.index for turn in trace.turns for call in turn.reads}
    yield from (spans[i] for i in sorted(seen))


def _selected(trace: Trace) -> set[int] | None:
    """Chunks that some read said yes to or that were merged; None for a method that selects none."""
    if trace.method == "pi_mem":
        return {i for turn in trace.turns for i in turn.selected}
    if trace.method == "gru_mem":
        return {call.key.index for turn in trace.turns for call in turn.reads if call.check == "yes"}
    return None


def _all_in(evidence: Sequence[Evidence], spans: Sequence[tuple[int, int]]) -> bool:
    return all(sum(max(0, min(e.end, end) - max(e.start, start)) for start, end in spans) == e.end - e.start for e in evidence)


def _meets(e: Evidence, span: tuple[int, int]) -> bool:
    return e.start < span[1] and e.end > span[0]
