"""What can be concluded: our methods against one another on the same samples, and ours against the paper's printed numbers.

The first is the comparison that counts, since both methods had the same model, prompts and questions. The second is only made
for models that the caller declares to be the paper's own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd

from pimem import stats
from pimem.errors import DataError, nearest
from pimem.journal import replace_file
from pimem.paper import verdicts
from pimem.paper.cells import FEW, GROUPS, OOD, ROW, in_group, joined, method_name, tokens_short
from pimem.paper.scores import primary_scores
from pimem.paper.tables import Table


def methods(scores: pd.DataFrame, first: str = "pi_mem", *, version: str, level: float = 0.95) -> pd.DataFrame:
    """`first` against every other row of the same model and prompt set, column by column of the tables, in points of percent.

    Pairs samples of equal task, id, length, seed and question; `unpaired` counts those that only one side has. Averages over
    tasks (task `ruler_ood`) are compared where both sides ran all of them. The verdict is `better`, `worse` or `cannot tell`:
    the interval must exclude 0, and there must be at least `FEW` questions. Each row is a test of its own; with many rows some
    verdicts come by chance. Raises `DataError` where the scores hold no `first`.
    """
    frame = scores.assign(score=primary_scores(scores))
    if first not in set(frame["method"]):
        raise DataError(f"no scores of method {first!r} to compare with; {nearest(first, set(frame['method']))}")
    out = []
    ood = frame[frame["task"].isin(OOD)].assign(metric=f"mean_of_{len(OOD)}_tasks")
    tasks = [("ruler_ood", block) for _, block in ood.groupby(["model", "prompts"], sort=False)]
    for task, block in [*((key[0], b) for key, b in frame.groupby(["task", "model", "prompts"], sort=False)), *tasks]:
        rows = dict(list(block.groupby(["method", "variant"], sort=False)))
        for key, mine in rows.items():
            # Two variants of `first` meet once, whichever of them comes first.
            others = [o for o in rows if o != key and not (o[0] == first and o[1] < key[1])] if key[0] == first else []
            for other in others:
                out += _compare(task, mine, rows[other], level)
    return pd.DataFrame(out, columns=_METHOD_COLUMNS).assign(version=version)


def _compare(task: str, mine: pd.DataFrame, theirs: pd.DataFrame, level: float) -> list[dict[str, object]]:
    keys = ["task", "length", "seed", "sample", "cluster", "groups"]
    both = mine.merge(theirs, on=keys, suffixes=("", "_other"), validate="one_to_one")
    first, second = mine.iloc[0], theirs.iloc[0]
    out = []
    for column, chosen, over in _columns(task, both):
        part, *sides = (chosen(frame) for frame in (both, mine, theirs))
        result = stats.paired(
            part["score"].tolist(),
            part["score_other"].tolist(),
            joined(part, ["task", "cluster"]),
            level,
            groups=joined(part, over) if over else None,
            strata=part["task"].tolist() if over else None,
        )
        out.append(
            {
                **{c: first[c] for c in ("profile", "model", "prompts", "metric")},
                "task": task,
                "first": method_name(first["method"], first["variant"]),
                "second": method_name(second["method"], second["variant"]),
                "column": column,
                **_interval(result.difference),
                "only_first": result.only_first,
                "only_second": result.only_second,
                "p_mcnemar": result.p_value,
                "unpaired": sum(map(len, sides)) - 2 * len(part),
                "verdict": _better(result.difference),
            }
        )
    return out


def _columns(task: str, both: pd.DataFrame) -> Iterator[tuple[str, Callable[[pd.DataFrame], pd.DataFrame], list[str]]]:
    """The columns of a task's table: a name, which samples belong to it, and what its mean is over in equal parts."""
    if (both["groups"] != "").any():
        cuts = sorted(both["length"].unique())
        for (name, group), cut in itertools.product(GROUPS.items(), cuts):
            chosen = functools.partial(_at, lengths=[cut], group=group)
            if len(chosen(both)):
                yield name + (f" cut at {tokens_short(cut)}" if len(cuts) > 1 else ""), chosen, []
        return
    over = ["task"] if task == "ruler_ood" else []
    tasks = both.groupby("length")["task"].nunique()
    lengths = [n for n in sorted(both["length"].unique()) if not over or tasks[n] == len(OOD)]
    for length in lengths:
        yield str(length), functools.partial(_at, lengths=[length]), over
    if len(lengths) > 1:
        yield "all", functools.partial(_at, lengths=lengths), [*over, "length"]


def _at(frame: pd.DataFrame, lengths: list[int], group: str = "") -> pd.DataFrame:
    return in_group(frame[frame["length"].isin(lengths)], group)


_METHOD_COLUMNS = [
    *("profile", "version", "task", "model", "prompts", "first", "second", "column", "metric"),
    *("difference", "low", "high", "level", "n", "clusters"),
    *("only_first", "only_second", "p_mcnemar", "unpaired", "verdict"),
]


def _interval(estimate: stats.Estimate) -> dict[str, float]:
    return {
        "difference": 100 * estimate.value,
        "low": 100 * estimate.low,
        "high": 100 * estimate.high,
        "level": estimate.level,
        "n": estimate.n,
        "clusters": estimate.clusters,
    }


def _better(estimate: stats.Estimate) -> str:
    if estimate.clusters < FEW or not estimate.excludes(0):
        return "cannot tell"
    return "better" if estimate.value > 0 else "worse"


def with_published(tables: Iterable[Table]) -> pd.DataFrame:
    """Every cell of the tables that has a verdict against the paper, a row each; empty where none has."""
    parts = [t.cells[t.cells["verdict"] != ""].assign(table=t.name) for t in tables if "verdict" in t.cells]
    columns = ["profile", "version", "table", *ROW, "column", "metric", "value", "n", "level", *verdicts.COLUMNS]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def write(frame: pd.DataFrame, folder: Path, name: str, title: str) -> list[Path]:
    """A comparison as csv and md; returns the files. Raises `StoreError`."""
    csv, md = folder / f"{name}.csv", folder / f"{name}.md"
    replace_file(csv, frame.to_csv(index=False, lineterminator="\n", float_format="%.4f"))
    shown = frame.drop(columns=["profile", "version", "level", "margin"], errors="ignore")
    shown = shown.astype(object).where(shown.notna(), None)
    text = shown.to_markdown(index=False, floatfmt=".1f" if "p_mcnemar" not in shown else ".3g", missingval="")
    profile, version, level = frame.loc[frame.index[0], ["profile", "version", "level"]]
    about = f"Points of percent with their {level:.0%} intervals; profile {profile}, version {version}."
    replace_file(md, f"# {title}\n\n{about}\n\n{text}\n")
    return [csv, md]
