"""The paper's tables from per-sample scores: one tidy frame a table.

Ours and the paper's numbers stand in two blocks, never in one row: another model, hardware or prompt set is another experiment.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from pimem import stats
from pimem.errors import DataError
from pimem.paper import published
from pimem.paper.scores import primary_scores

FEW = 20
"""Below this many questions a bootstrap interval is on the narrow side, and the table says so."""

ROW = ("model", "prompts", "method", "variant")
"""What a row of a table stands for."""

METRIC_NAMES = {
    "sub_em": "Sub-EM: gold answer in the prediction or the prediction in it, both normalised",
    "multi_recall": "share of the gold values in the answer",
    "coverage": "share of the gold values in the final memory",
}


class Absent(DataError):
    """The scores hold nothing that belongs into a table or figure, so it is left out."""


@dataclass(frozen=True)
class Table:
    """One table: our cells in long form, the paper's numbers as it lays them out, and what a reader must know."""

    name: str
    title: str
    cells: pd.DataFrame
    """Columns: profile, version, task, model, prompts, method, variant, column, length, unit, tokens, metric, value, low, high,
    level, how, n, clusters, failed, value_answered, runs. Scores in percent; `column` is "Avg" in rows over all lengths."""
    paper: pd.DataFrame
    paper_title: str
    notes: tuple[str, ...]


def cells(scores: pd.DataFrame, metric: str | None = None, *, version: str, level: float = 0.95) -> pd.DataFrame:
    """Mean and clustered interval of every (row, length), and over all lengths where a row has them all, in percent.

    `metric` None takes each row's primary metric. `value_answered` leaves failed samples out, as the released evaluation does.
    Raises `DataError` where one row has two runs at one length, `Absent` where no row has the metric.
    """
    frame = scores.assign(score=primary_scores(scores) if metric is None else scores[metric])
    frame = frame[frame["score"].notna()]
    if metric is not None:
        frame = frame.assign(metric=metric)
    if frame.empty:
        raise Absent(f"no sample has a score {metric!r}, so there is no table of it")
    out = []
    every = frame.groupby(["task", "model", "prompts"])["length"].transform("nunique")
    for key, part in frame.assign(every=every).groupby(["task", *ROW], sort=False):
        for length, cell in part.groupby("length", sort=True):
            if cell["run"].nunique() > 1:
                runs = ", ".join(sorted(cell["run"].unique()))
                raise DataError(f"{' / '.join(map(str, key))} at {length}: runs {runs} share a cell; give each a `variant`")
            out.append(_cell(cell, f"{length}", stats.mean(cell["score"].tolist(), cell["cluster"].tolist(), level)))
        # A mean over fewer lengths than other rows have would be compared with theirs.
        if 1 < part["length"].nunique() == part["every"].iloc[0]:
            over = stats.macro_mean(part["score"].tolist(), part["length"].tolist(), part["cluster"].tolist(), level)
            out.append(_cell(part, "Avg", over))
    result = pd.DataFrame(out)
    result.insert(1, "version", version)
    order = {name: i for i, name in enumerate(published.METHOD_NAMES)}
    rank = result["method"].map(lambda m: order.get(m, len(order)))
    column = result["column"].map(lambda c: float("inf") if c == "Avg" else int(c))
    result = result.assign(rank=rank, at=column).sort_values(
        ["task", "model", "prompts", "rank", "variant", "at"], kind="stable"
    )
    return result.drop(columns=["rank", "at"]).reset_index(drop=True)


def _cell(part: pd.DataFrame, column: str, estimate: stats.Estimate) -> dict[str, object]:
    first = part.iloc[0]
    answered = part[part["status"] == "answered"]
    by_length = answered.groupby("length")["score"].mean()
    return {
        **{c: first[c] for c in ("profile", "task", *ROW)},
        "column": column,
        "length": first["length"] if column != "Avg" else pd.NA,
        "unit": first["unit"],
        "tokens": round(part["context_tokens"].mean()),
        "metric": first["metric"],
        "value": 100 * estimate.value,
        "low": 100 * estimate.low,
        "high": 100 * estimate.high,
        "level": estimate.level,
        "how": estimate.how,
        "n": estimate.n,
        "clusters": estimate.clusters,
        "failed": len(part) - len(answered),
        "value_answered": 100 * by_length.mean() if len(answered) else float("nan"),
        "runs": " ".join(sorted(part["run"].unique())),
    }


def table1(scores: pd.DataFrame, *, version: str, level: float = 0.95) -> Table:
    """Table 1: HotpotQA by length. Raises `Absent` where the scores hold no HotpotQA."""
    part = _only(scores, scores["task"] == "hotpotqa", "task 'hotpotqa'")
    return _table("table1_hqa", "HotpotQA by context length", part, "sub_em", "table1_hqa", "Table 1", "sub_em", version, level)


def table4(scores: pd.DataFrame, *, version: str, level: float = 0.95) -> Table:
    """Table 4: evidence in the final memory on multi-value NIAH. Raises `Absent` where the scores hold none."""
    part = _only(
        scores, (scores["task"] == "niah_multivalue") & scores["coverage"].notna(), "coverage on task 'niah_multivalue'"
    )
    title = "Evidence in the final memory, multi-value NIAH"
    return _table("table4_coverage", title, part, "coverage", "table4_coverage", "Table 4", "coverage", version, level)


TABLES = (table1, table4)


def _only(scores: pd.DataFrame, mask: pd.Series, what: str) -> pd.DataFrame:
    if not mask.any():
        raise Absent(f"the scores hold no {what}")
    return scores[mask]


def _table(
    name: str, title: str, scores: pd.DataFrame, metric: str, source: str, printed: str, theirs: str, version: str, level: float
) -> Table:
    ours = cells(scores, metric, version=version, level=level)
    paper = published.wide(published.load(source), theirs, values="value")
    caption = (
        f"PI-Mem paper, {printed}, as printed (percent): its own models, hardware, prompts and samples, so another experiment"
    )
    return Table(name, title, ours, paper, caption, _notes(ours, level))


def _notes(ours: pd.DataFrame, level: float) -> tuple[str, ...]:
    metric = ours["metric"].iloc[0]
    single = ours[ours["column"] != "Avg"]
    notes = [
        f"Metric {metric} ({METRIC_NAMES.get(metric, metric)}), percent, with its {level:.0%} interval in brackets "
        f"({', '.join(sorted(set(ours['how'])))}; resampled by question).",
        f"n = {_span(single['n'])} samples a cell, {_span(single['clusters'])} questions; a failed sample counts as 0.",
        f"Profile {_names(ours['profile'])}, version {_names(ours['version'])}, prompt set {_names(ours['prompts'])}.",
    ]
    if (ours["column"] == "Avg").any():
        notes.append("Avg is the unweighted mean over all lengths; a row that lacks one has none.")
    if ours["failed"].any():
        failed = single[single["failed"] > 0]
        where = "; ".join(
            f"{method_name(r.method, r.variant)} with {r.model} at {r.column}: {r.failed} of {r.n}, "
            f"{_number(r.value_answered)} without them"
            for r in failed.itertuples()
        )
        notes.append(f"Failed: {where}.")
    if (ours["clusters"] < FEW).any():
        notes.append(f"Fewer than {FEW} questions: such a cell shows that the chain works and ranks no method.")
    return tuple(notes)


def _span(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low} to {high}"


def _names(values: pd.Series) -> str:
    return ", ".join(sorted(set(values)))


def _number(value: float) -> str:
    return "N/A" if pd.isna(value) else f"{value:.1f}"


def method_name(method: str, variant: str = "") -> str:
    """A method as tables and figures call it."""
    name = published.METHOD_NAMES.get(method, method)
    return f"{name} ({variant})" if variant else name


def heading(cells: pd.DataFrame, column: str) -> str:
    """A length as a column head: what the task counts in, and the mean tokens where that is something else."""
    if column == "Avg":
        return "Avg"
    at = cells[cells["column"] == column].iloc[0]
    tokens = tokens_short(cells.loc[cells["column"] == column, "tokens"].mean())
    return f"{column} docs ({tokens})" if at["unit"] == "documents" else tokens_short(int(column))


def tokens_short(n: float) -> str:
    """7100 -> 7.1K, 3600000 -> 3.6M; powers of two as benchmarks name them, 8192 -> 8K, 1048576 -> 1M."""
    thousand = 1024 if n == int(n) and int(n).bit_count() == 1 else 1000
    for size, letter in ((thousand**2, "M"), (thousand, "K")):
        if n >= size:
            return f"{n / size:.1f}".removesuffix(".0") + letter
    return f"{n:.0f}"
