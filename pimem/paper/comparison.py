"""What can be concluded: our methods against one another on the same samples, and ours against the paper's printed numbers.

The first is the comparison that counts, since both methods had the same model, prompts and questions. The second is only made
for models that the caller declares to be the paper's own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from pimem import stats
from pimem.errors import ConfigError, DataError, nearest
from pimem.journal import replace_file
from pimem.paper import published
from pimem.paper.scores import primary_scores
from pimem.paper.tables import FEW, ROW, cells, method_name

PUBLISHED_N = 64
"""Samples behind a printed RULER cell, by the supplement's table 2."""


def methods(scores: pd.DataFrame, first: str = "pi_mem", *, version: str, level: float = 0.95) -> pd.DataFrame:
    """`first` against every other row of the same model and prompt set, at each length and over all, in points of percent.

    Pairs samples of equal id, length, seed and question; `unpaired` counts those that only one side has. The verdict is
    `better`, `worse` or `cannot tell`: the interval must exclude 0, and there must be at least `FEW` questions. Each row is a
    test of its own; with many rows some verdicts come by chance. Raises `DataError` where the scores hold no `first`.
    """
    frame = scores.assign(score=primary_scores(scores))
    if first not in set(frame["method"]):
        raise DataError(f"no scores of method {first!r} to compare with; {nearest(first, set(frame['method']))}")
    out = []
    for _, block in frame.groupby(["task", "model", "prompts"], sort=False):
        rows = dict(list(block.groupby(["method", "variant"], sort=False)))
        for key, mine in rows.items():
            # Two variants of `first` meet once, whichever of them comes first.
            others = [o for o in rows if o != key and not (o[0] == first and o[1] < key[1])] if key[0] == first else []
            for other in others:
                out += _compare(mine, rows[other], level)
    return pd.DataFrame(out, columns=_METHOD_COLUMNS).assign(version=version)


def _compare(mine: pd.DataFrame, theirs: pd.DataFrame, level: float) -> list[dict[str, object]]:
    both = mine.merge(theirs, on=["length", "seed", "sample", "cluster"], suffixes=("", "_other"), validate="one_to_one")
    lengths = sorted(both["length"].unique())
    first, second = mine.iloc[0], theirs.iloc[0]
    out = []
    for column, chosen in [*((str(n), [n]) for n in lengths), *([("all", lengths)] if len(lengths) > 1 else [])]:
        part, *sides = (f[f["length"].isin(chosen)] for f in (both, mine, theirs))
        result = stats.paired(part["score"].tolist(), part["score_other"].tolist(), part["cluster"].tolist(), level)
        out.append(
            {
                **{c: first[c] for c in ("profile", "task", "model", "prompts", "metric")},
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


def with_published(
    scores: pd.DataFrame, same_model: Mapping[str, str], *, version: str, margin: float = 10.0, level: float = 0.95
) -> pd.DataFrame:
    """HotpotQA cells of models that are the paper's own, against Table 1: `agree`, `differ` or `cannot tell`.

    `same_model` maps our model names to the paper's. `differ`: the interval of the difference excludes 0; `agree`: it lies
    within `margin` points of 0; else there are too few samples to tell. The interval joins ours with Wilson's of the printed
    share on 64 samples (Newcombe's method); for the average too, since its lengths ask the same questions. Rows without a
    counterpart in the table are left out. Raises `ConfigError` for a model that the paper does not have.
    """
    table = published.load("table1_hqa")
    for model in same_model.values():
        if model not in set(table["model"]):
            raise ConfigError(f"the paper has no model {model!r}; {nearest(model, set(table['model']))}")
    part = scores[(scores["task"] == "hotpotqa") & scores["model"].isin(same_model) & (scores["variant"] == "")]
    columns = ["profile", "version", "task", *ROW, "column", "metric", "value", "n"]
    if part.empty:
        return pd.DataFrame(columns=columns)
    label = {str(documents): name for name, documents in published.HQA_DOCUMENTS.items()}
    ours = cells(part, "sub_em", version=version, level=level)
    whole = ours.groupby(list(ROW))["length"].transform("nunique") == len(label)
    printed = table.set_index(["model", "method", "column"])["number"]
    out = []
    for row, has_all in zip(ours.itertuples(), whole, strict=True):
        column = "Avg" if row.column == "Avg" and has_all else label.get(row.column)
        value = printed.get((same_model[row.model], published.METHOD_NAMES.get(row.method, row.method), column), math.nan)
        if math.isnan(value):
            continue
        theirs = stats.wilson(round(value * PUBLISHED_N / 100), PUBLISHED_N, level)
        their_low, their_high = (100 * limit for limit in theirs)
        gap = row.value - value
        low = gap - math.hypot(row.value - row.low, their_high - value)
        high = gap + math.hypot(row.high - row.value, value - their_low)
        verdict = "differ" if low > 0 or high < 0 else "agree" if -margin <= low and high <= margin else "cannot tell"
        out.append(
            {c: getattr(row, c) for c in columns}
            | {"published": value, "published_n": PUBLISHED_N, "difference": gap, "low": low, "high": high}
            | {"level": level, "margin": margin, "verdict": verdict}
        )
    return pd.DataFrame(out)


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
