"""The paper's tables from per-sample scores: every row and column of each, and what was not run shown as not run.

Ours and the paper's numbers stand in two blocks, never in one row: another model, hardware or prompt set is another experiment.
Only models declared to be the paper's own get a verdict against its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from pimem.paper import notes, published, verdicts
from pimem.paper.cells import COLUMNS, FEW, ROW, WITHOUT_RL, Absent, cells, heading, method_name, rows_of, tokens_short
from pimem.paper.plans import NOT_RUN, PLANS, Plan

__all__ = ["FEW", "ROW", "Absent", "Table", "build", "cells", "heading", "method_name", "tokens_short"]


@dataclass(frozen=True)
class Table:
    """One table: our cells in long form, the paper's numbers as it lays them out, and what a reader must know."""

    name: str
    title: str
    cells: pd.DataFrame
    """A row a cell, run or not. Columns: profile, version, task, model, prompts, method, variant, at, column, length, unit,
    tokens, metric, value, low, high, level, how, n, clusters, failed, value_answered, runs, state, and where the paper has such
    a table those of `pimem.paper.verdicts`. Scores in percent; `column` is "Avg" in rows over all lengths; `state` says what a
    cell lacks."""
    heads: Mapping[str, str]
    """Columns, in order, with their headings."""
    paper: pd.DataFrame
    """The paper's numbers as printed; empty where it has no such table."""
    paper_title: str
    notes: tuple[str, ...]

    @property
    def run(self) -> int:
        """Cells that have a value."""
        return int(self.cells["value"].notna().sum())


def build(
    name: str, scores: pd.DataFrame, *, version: str, level: float = 0.95, same_model: Mapping[str, str] | None = None
) -> Table:
    """The table of this name in `PLANS`. `same_model` maps our models to the paper's, where they are the same.

    Raises `DataError` where two runs share a cell, `ConfigError` for a model that the paper does not have.
    """
    plan = PLANS[name]
    found = _found(plan, scores, version, level)
    every = _with_what_was_not_run(plan, scores, found, version)
    heads = {column: _head(plan, found, column) for column in dict.fromkeys(every["column"])}
    if not plan.source:
        return Table(name, plan.title, every, heads, pd.DataFrame(), "", notes.of(plan, every, level))
    printed = published.load(plan.source)
    every = verdicts.add(every, printed, plan.columns, plan.counts, same_model or {}, level=level)
    caption = (
        f"PI-Mem paper, {plan.printed}, as printed (percent): its own models, hardware, prompts and samples, "
        "so another experiment"
    )
    return Table(name, plan.title, every, heads, _as_printed(printed), caption, notes.of(plan, every, level))


def _found(plan: Plan, scores: pd.DataFrame, version: str, level: float) -> pd.DataFrame:
    part = scores[scores["task"].isin(plan.tasks)]
    if not plan.without_rl:
        part = part[part["variant"] != WITHOUT_RL]
    part = part[part["method"].isin(plan.methods) | ~part["method"].isin(published.METHOD_NAMES)]
    made = []
    for metric in (plan.metric, *(["turns"] if plan.turns else [])):
        try:
            made.append(plan.measure(part, metric, version=version, level=level))
        except Absent:
            continue
    return pd.concat(made, ignore_index=True) if made else pd.DataFrame(columns=list(COLUMNS))


def _with_what_was_not_run(plan: Plan, scores: pd.DataFrame, found: pd.DataFrame, version: str) -> pd.DataFrame:
    """Every cell of the paper's table and of what was run beyond it, block by block, in order."""
    keys = ["profile", "version", "model", "prompts", "at", "method", "variant", "turns", "column"]
    columns, wanted = _columns(plan, found), []
    blocks = scores[["profile", "model", "prompts"]].drop_duplicates().sort_values(["model", "prompts"])
    for profile, model, prompts in blocks.itertuples(index=False, name=None):
        block = found[(found["model"] == model) & (found["prompts"] == prompts)]
        turned = block["metric"] == "turns"
        rows = [(*row, False) for row in rows_of(block[~turned], plan.methods, plan.without_rl)]
        if plan.turns:
            rows += [(*row, True) for row in rows_of(block[turned], ("pi_mem",), ("pi_mem",))]
        for at in dict.fromkeys(block.sort_values("length")["at"]) or [""]:
            wanted += [(profile, version, model, prompts, at, *row, column) for row in rows for column in columns]
    frame = pd.DataFrame(wanted, columns=keys).merge(
        found.assign(turns=found["metric"] == "turns"), on=keys, how="left", validate="one_to_one"
    )
    metric = frame["turns"].map({True: "turns", False: plan.metric or ""})
    frame["metric"] = frame["metric"].where(frame["metric"].notna(), metric)
    frame["state"] = frame["state"].where(frame["state"].notna(), NOT_RUN)
    frame["runs"] = frame["runs"].fillna("")
    for column in ("n", "clusters", "failed"):
        frame[column] = pd.to_numeric(frame[column]).fillna(0).astype(int)
    return frame[list(found.columns)]


def _columns(plan: Plan, found: pd.DataFrame) -> list[str]:
    named = list(dict.fromkeys([*plan.columns, *found["column"]]))
    return [*sorted((c for c in named if c.isdecimal()), key=int), *(c for c in named if not c.isdecimal())]


def _head(plan: Plan, found: pd.DataFrame, column: str) -> str:
    part = found[found["column"] == column]
    if part.empty:
        name = plan.columns[column]
        return f"{column} docs ({name})" if plan.tasks == ("hotpotqa",) and column != name else name
    counts = set(part.loc[part["value"].notna(), "n"])
    shared = f", n = {counts.pop()}" if len(counts) == 1 and column != "Avg" else ""
    return (heading(part, column) if column.isdecimal() else plan.columns.get(column, column)) + shared


def _as_printed(printed: pd.DataFrame) -> pd.DataFrame:
    """The paper's layout, rows of turns below those of scores."""
    parts = []
    for metric in dict.fromkeys(printed["metric"]):
        part = published.wide(printed, metric, values="value")
        if metric == "turns":
            part = part.rename(index=lambda method: f"{method} turns", level="method")
        parts.append(part)
    return pd.concat(parts) if len(parts) > 1 else parts[0]
