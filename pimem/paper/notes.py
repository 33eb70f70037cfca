"""What stands below a table: its scores, samples and intervals, what failed, what was not run, and what all that can tell."""

from __future__ import annotations

import pandas as pd

from pimem.paper import verdicts
from pimem.paper.cells import FEW, OOD, method_name
from pimem.paper.plans import NOT_RUN, Plan

METRIC_NAMES = {
    "sub_em": "Sub-EM: gold answer in the prediction or the prediction in it, both normalised",
    "multi_recall": "share of the gold values in the answer",
    "coverage": "share of the gold values in the final memory",
    "mean_of_11_tasks": "unweighted mean over RULER's tasks but common words and HotpotQA, each by its own metric",
    "accuracy": "share of questions answered with the right letter",
    "turns": "read-select-merge turns of PI-Mem, the closing one included",
}


def of(plan: Plan, every: pd.DataFrame, level: float) -> tuple[str, ...]:
    """The notes of a table from its cells, run or not."""
    ran = every[every["value"].notna()]
    return (
        *_on_scores(every, ran, level),
        *_on_samples(every, ran),
        *(_on_the_paper(plan, every, level) if plan.source else []),
    )


def _on_scores(every: pd.DataFrame, ran: pd.DataFrame, level: float) -> list[str]:
    metrics = [f"{m} ({METRIC_NAMES[m]})" if m in METRIC_NAMES else m for m in sorted(set(every["metric"]) - {""})]
    first = f"Metric {', '.join(metrics)}; scores in percent." if metrics else "Scores in percent."
    if len(ran):
        how = ", ".join(sorted(set(ran["how"])))
        first += f" In brackets the {level:.0%} interval ({how}; resampled by question)."
    where = f"Profile {_names(every['profile'])}, version {_names(every['version'])}, prompt set {_names(every['prompts'])}."
    if not (ran["column"] == "Avg").any():
        return [first, where]
    lengths = sorted({int(c) for c in ran["column"] if c.isdecimal()})
    average = (
        f"Avg is the unweighted mean over all lengths run ({', '.join(map(str, lengths))}); a row that lacks one has none."
    )
    return [first, where, average]


def _on_samples(every: pd.DataFrame, ran: pd.DataFrame) -> list[str]:
    dash = f"A dash: {NOT_RUN} ({len(every) - len(ran)} of {len(every)} cells)."
    if every["state"].str.contains("tasks").any():
        dash += f" k of {len(OOD)}: so many of its tasks were run, and there is no mean over fewer."
    if ran.empty:
        return [dash]
    single = ran[ran["column"] != "Avg"]
    asked = f"n = {_span(single['n'])} samples a cell, {_span(single['clusters'])} questions; a failed sample counts as 0."
    out = [dash, asked]
    failed = single[(single["failed"] > 0) & (single["metric"] != "turns")]
    if len(failed):
        said = "; ".join(
            f"{method_name(r.method, r.variant)} with {r.model} at {r.column}: {r.failed} of {r.n}, "
            f"{_number(r.value_answered)} without them"
            for r in failed.itertuples()
        )
        out.append(f"Failed: {said}.")
    if (ran["clusters"] < FEW).any():
        out.append(f"Fewer than {FEW} questions: such a cell shows that the chain works and ranks no method.")
    return out


def _on_the_paper(plan: Plan, every: pd.DataFrame, level: float) -> list[str]:
    """What may be concluded from the paper's numbers, and what their samples can tell at all."""
    counts = sorted(set(plan.counts.values()))
    said = "; ".join(verdicts.resolution(n, level) for n in dict.fromkeys([counts[0], counts[-1]]))
    out = [f"What the paper's samples allow at {level:.0%}: {said}."]
    if not (every["verdict"] != "").any():
        return [*out, "No verdict against the paper: no cell here is of a model that is declared to be one of the paper's own."]
    points = f"{100 * verdicts.MARGIN:.0f} points" + (f" ({2 * verdicts.MARGIN:.1f} turns)" if plan.turns else "")
    return [
        *out,
        f"Against the paper, at {level:.0%}: differs where the interval of ours minus the printed number excludes 0; agrees "
        f"where it lies within {points} of 0; otherwise these samples cannot tell. Each cell is a test of its own.",
    ]


def _span(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low} to {high}"


def _names(values: pd.Series) -> str:
    return ", ".join(sorted(set(values)))


def _number(value: float) -> str:
    return "N/A" if pd.isna(value) else f"{value:.1f}"
