"""What stands in a cell: a mean of per-sample scores with its clustered interval, n and failures, in long form.

A question asked at another length is no new observation, so intervals resample questions; questions of different tasks are
different ones, and each task's are resampled apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pandas as pd

from pimem import stats
from pimem.errors import DataError, nearest
from pimem.paper import published
from pimem.paper.scores import primary_scores
from pimem.scoring import WITHOUT_MEMORY

FEW = 20
"""Below this many questions a bootstrap interval is on the narrow side, and the table says so."""

ROW = ("model", "prompts", "method", "variant")
"""What a row of a table stands for."""

WITHOUT_RL = "w/o RL"
"""The variant of a method whose model has not been through reinforcement learning, as the paper names it."""

OOD = (
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "variable_tracking", "frequent_words", "squad"),
)
"""RULER's tasks that the paper's Table 2 averages: the thirteen without common words and HotpotQA."""

RULER = {
    **{name: name for name in OOD[:8]},
    "variable_tracking": "vt",
    "common_words": "cwe",
    "frequent_words": "fwe",
    "squad": "qa_1",
    "hotpotqa": "qa_2",
}
"""RULER's thirteen tasks in its order, by its names of them."""

GROUPS = {
    "All": "",
    "Easy": "difficulty=easy",
    "Hard": "difficulty=hard",
    "Short": "length=short",
    "Medium": "length=medium",
    "Long": "length=long",
}
"""Columns of LongBench v2's table, and the group of samples that each is over; all of them where there is no name."""


class Absent(DataError):
    """The scores hold nothing that belongs into a table or figure, so it is left out."""


class Scored(NamedTuple):
    """Samples with a `score` in 0..1, and what a score of 1 is called in a table."""

    frame: pd.DataFrame
    scale: float
    metric: str


def scored(scores: pd.DataFrame, metric: str | None = None) -> Scored:
    """The samples that have a score: of a metric, of each row's own primary one (None), or PI-Mem's "turns".

    Scores are in percent; turns in turns, scaled by one more than the most that was used, so that an interval is open above.
    """
    if metric == "turns":
        frame = scores[scores["method"] == "pi_mem"]
        most = 1.0 + (frame["turns"].max() if len(frame) else 0)
        return Scored(frame.assign(score=frame["turns"] / most), most, metric)
    frame = scores.assign(score=primary_scores(scores) if metric is None else scores[metric])
    return Scored(frame[frame["score"].notna()], 100.0, metric or "")


def cells(scores: pd.DataFrame, metric: str | None = None, *, version: str, level: float = 0.95) -> pd.DataFrame:
    """Mean and clustered interval of every (task, row, length), and over all lengths where a row has them all.

    Scores as of `scored`. `value_answered` leaves failed samples out, as the released evaluation does.
    Raises `DataError` where one row has two runs at one length, `Absent` where no row has the metric.
    """
    what = scored(scores, metric)
    frame, out = what.frame, []
    every = frame.groupby(["task", "model", "prompts"])["length"].transform("nunique")
    for key, part in frame.assign(every=every).groupby(["task", *ROW], sort=False):
        for length, cell in part.groupby("length", sort=True):
            _check_one_run(cell, key, length)
            out.append(_cell(cell, str(length), what, level))
        # A mean over fewer lengths than other rows have would be compared with theirs.
        if 1 < part["length"].nunique() == part["every"].iloc[0]:
            out.append(_cell(part, "Avg", what, level, over=["length"]))
    return _finished(out, version, metric)


def over_tasks(scores: pd.DataFrame, metric: str | None = None, *, version: str, level: float = 0.95) -> pd.DataFrame:
    """The mean over the tasks of `OOD` of each row and length, and over all lengths where a row has them all.

    A row that lacks a task at a length has no mean there: `state` says how many tasks were run. Raises as `cells`.
    """
    what = scored(scores[scores["task"].isin(OOD)], metric)
    frame = what.frame
    tasks = frame.groupby([*ROW, "length"])["task"].transform("nunique")
    whole = frame[tasks == len(OOD)]
    every = whole.groupby(["model", "prompts"])["length"].nunique()
    out = []
    for key, part in frame.groupby(list(ROW), sort=False):
        complete = []
        for length, cell in part.groupby("length", sort=True):
            for task, run in cell.groupby("task", sort=True):
                _check_one_run(run, (task, *key), length)
            if cell["task"].nunique() == len(OOD):
                complete.append(cell)
                out.append(_cell(cell, str(length), what, level, over=["task"]))
            else:
                out.append(_partly(cell, str(length), f"{cell['task'].nunique()} of {len(OOD)} tasks"))
        if 1 < len(complete) == every[key[:2]]:
            out.append(_cell(pd.concat(complete), "Avg", what, level, over=["task", "length"]))
    found = _finished(out, version, metric)
    return found.assign(task="ruler_ood", metric=metric or f"mean_of_{len(OOD)}_tasks")


def by_group(scores: pd.DataFrame, metric: str | None = None, *, version: str, level: float = 0.95) -> pd.DataFrame:
    """LongBench v2: the mean of each row over all its samples, and over those of each group of `GROUPS`.

    Runs that cut contexts at different lengths stand in blocks of their own (`at`). Raises as `cells`.
    """
    what = scored(scores, metric)
    several = what.frame["length"].nunique() > 1
    out = []
    for (*key, length), part in what.frame.groupby(["task", *ROW, "length"], sort=False):
        _check_one_run(part, tuple(key), length)
        for column, group in GROUPS.items():
            cell = in_group(part, group)
            if len(cell):
                out.append({**_cell(cell, column, what, level), "at": f"cut at {tokens_short(length)}" if several else ""})
    return _finished(out, version, metric)


def in_group(frame: pd.DataFrame, group: str) -> pd.DataFrame:
    """The samples that count to a group; all of them for no name."""
    return frame[[not group or group in own.split(";") for own in frame["groups"]]]


def by_task(scores: pd.DataFrame, metric: str | None = None, *, version: str, level: float = 0.95) -> pd.DataFrame:
    """RULER's tasks one by one: a block a length (`at`), a column a task; HotpotQA where it counts tokens. As `cells`."""
    part = scores[scores["task"].isin(RULER) & (scores["unit"] == "tokens")]
    found = cells(part, metric, version=version, level=level)
    found = found[found["column"] != "Avg"]
    return found.assign(at=found["length"].map(lambda n: f"{tokens_short(n)} tokens"), column=found["task"], task="ruler")


def _check_one_run(cell: pd.DataFrame, key: tuple[Any, ...], at: object) -> None:
    if cell["run"].nunique() > 1:
        runs = ", ".join(sorted(cell["run"].unique()))
        raise DataError(f"{' / '.join(map(str, key))} at {at}: runs {runs} share a cell; give each a `variant`")


def _cell(part: pd.DataFrame, column: str, what: Scored, level: float, over: list[str] | None = None) -> dict[str, Any]:
    clusters = joined(part, ["task", "cluster"])
    values, answered = part["score"].tolist(), part[part["status"] == "answered"]
    if over:
        estimate = stats.macro_mean(values, joined(part, over), clusters, level, strata=part["task"].tolist())
    else:
        estimate = stats.mean(values, clusters, level)
    return {
        **_about(part, column),
        "metric": what.metric or part["metric"].iloc[0],
        "value": what.scale * estimate.value,
        "low": what.scale * estimate.low,
        "high": what.scale * estimate.high,
        "level": estimate.level,
        "how": estimate.how,
        "n": estimate.n,
        "clusters": estimate.clusters,
        "failed": len(part) - len(answered),
        "value_answered": what.scale * answered.groupby(over or "length")["score"].mean().mean(),
        "runs": " ".join(sorted(part["run"].unique())),
        "state": "",
    }


def joined(part: pd.DataFrame, columns: list[str]) -> list[str]:
    """One name a row out of several columns; questions of two tasks may have the same id."""
    return ["/".join(map(str, row)) for row in part[columns].itertuples(index=False, name=None)]


def _about(part: pd.DataFrame, column: str) -> dict[str, Any]:
    first = part.iloc[0]
    return {
        **{c: first[c] for c in ("profile", "task", *ROW)},
        "at": "",
        "column": column,
        "length": first["length"] if column != "Avg" else pd.NA,
        "unit": first["unit"],
        "tokens": round(part["context_tokens"].mean()),
    }


def _partly(part: pd.DataFrame, column: str, state: str) -> dict[str, Any]:
    return {**_about(part, column), "n": 0, "clusters": 0, "failed": 0, "runs": "", "state": state}


def with_rows_before_rl(scores: pd.DataFrame, before_rl: Mapping[str, str]) -> pd.DataFrame:
    """Scores of models before reinforcement learning, as rows of their own beside those of what it made of them.

    A method without a memory has no such training of its own, so it is marked only where both models were run. Raises
    `DataError` where a model is named that no score is of.
    """
    out = scores.copy()
    for before, after in before_rl.items():
        mine = scores["model"] == before
        if not mine.any():
            known = set(scores["model"])
            raise DataError(f"no scores of a model {before!r} before reinforcement learning; {nearest(before, known)}")
        both = scores.loc[scores["model"] == after, "method"]
        marked = mine & (~scores["method"].isin(WITHOUT_MEMORY) | scores["method"].isin(both))
        out.loc[marked, "variant"] = scores.loc[marked, "variant"].map(lambda v: f"{WITHOUT_RL}, {v}" if v else WITHOUT_RL)
        out.loc[mine, "model"] = after
    return out


COLUMNS = (
    *("profile", "version", "task", *ROW, "at", "column", "length", "unit", "tokens", "metric", "value", "low", "high"),
    *("level", "how", "n", "clusters", "failed", "value_answered", "runs", "state"),
)


def _finished(rows: list[dict[str, Any]], version: str, metric: str | None) -> pd.DataFrame:
    if not rows:
        raise Absent(f"no sample has a score {metric or 'of its own'!r}, so there is no table of it")
    frame = pd.DataFrame(rows).assign(version=version).reindex(columns=list(COLUMNS))
    rank = frame["method"].map(_rank)
    column = frame["column"].map(lambda c: int(c) if c.isdecimal() else float("inf"))
    frame = frame.assign(rank=rank, place=column).sort_values(
        ["task", "model", "prompts", "rank", "variant", "place"], kind="stable"
    )
    return frame.drop(columns=["rank", "place"]).reset_index(drop=True)


def _rank(method: str) -> int:
    return [*published.METHOD_NAMES, method].index(method)


def rows_of(found: pd.DataFrame, methods: Iterable[str], without_rl: Iterable[str]) -> list[tuple[str, str]]:
    """The rows of a block, in the paper's order: its methods, run or not, and whatever else was run."""
    wanted = {(m, "") for m in methods} | {(m, WITHOUT_RL) for m in without_rl}
    wanted |= set(found[["method", "variant"]].itertuples(index=False, name=None))
    return sorted(wanted, key=lambda row: (_rank(row[0]), row[0], row[1] != WITHOUT_RL, row[1]))


def method_name(method: str, variant: str = "") -> str:
    """A method as tables and figures call it."""
    name = published.METHOD_NAMES.get(method, method)
    return f"{name} ({variant})" if variant else name


def heading(cells: pd.DataFrame, column: str) -> str:
    """A length as a column head: what the task counts in, and the mean tokens where that is something else."""
    part = cells[(cells["column"] == column) & cells["unit"].notna()]
    if part.empty or not column.isdecimal():
        return column
    tokens = tokens_short(part["tokens"].mean())
    return f"{column} docs ({tokens})" if part["unit"].iloc[0] == "documents" else tokens_short(int(column))


def tokens_short(n: float) -> str:
    """7100 -> 7.1K, 3600000 -> 3.6M; powers of two as benchmarks name them, 8192 -> 8K, 1048576 -> 1M."""
    thousand = 1024 if n == int(n) and int(n).bit_count() == 1 else 1000
    for size, letter in ((thousand**2, "M"), (thousand, "K")):
        if n >= size:
            return f"{n / size:.1f}".removesuffix(".0") + letter
    return f"{n:.0f}"
