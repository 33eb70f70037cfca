"""The supplement's two figures: scores over context length, ours in panels of their own beside the paper's printed numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pimem.journal import replace_file
from pimem.paper import published, style
from pimem.paper.cells import FEW, WITHOUT_RL, Absent, method_name, tokens_short
from pimem.paper.plans import PLANS, Plan

WIDTH, HEIGHT = 2.75, 2.35
"""Inches of one panel."""

MOST_ACROSS = 4
MOST_TICKS = 6


def hqa(scores: pd.DataFrame, *, version: str, level: float = 0.95) -> tuple[Figure, pd.DataFrame]:
    """Supplement, figure 1: HotpotQA Sub-EM over context length. See `_by_length`."""
    return _by_length("s3_hqa", scores, "Sub-EM (percent)", version, level)


def ood(scores: pd.DataFrame, *, version: str, level: float = 0.95) -> tuple[Figure, pd.DataFrame]:
    """Supplement, figure 2: the mean of RULER's tasks out of distribution over context length. See `_by_length`."""
    return _by_length("s4_ood", scores, "mean of 11 tasks (percent)", version, level)


FIGURES = {"hqa_by_length": hqa, "ood_by_length": ood}


def _by_length(name: str, scores: pd.DataFrame, label: str, version: str, level: float) -> tuple[Figure, pd.DataFrame]:
    """A panel for each of our models, or one that says that nothing was run, then the paper's numbers in panels of their own.

    All panels have one scale, so a length that was not run shows as a gap. Bands, or bars where there is one length, are the
    intervals of the table. Returns the figure and the cells it was drawn from, the paper's included and marked in `source`.
    """
    plan = PLANS[name]
    ours = _ours(plan, scores, version, level)
    theirs = _published(plan, with_rl_only=WITHOUT_RL not in set(ours["variant"]))
    panels = [(True, key, block) for key, block in ours.groupby(["model", "prompts"], sort=False)]
    panels = panels or [(True, (", ".join(sorted(set(scores["model"]))), ", ".join(sorted(set(scores["prompts"])))), ours)]
    panels += [(False, (model, ""), block) for model, block in theirs.groupby("model", sort=False)]
    ticks = _ticks(ours, theirs)
    with style.use():
        figure, axes = _grid(len(panels))
        for axis, (mine, (model, prompts), block) in zip(axes, panels, strict=True):
            _frame(axis, ticks)
            (_draw_ours if mine else _draw_paper)(axis, model, prompts, block)
        for axis in axes[:: _across(len(axes))]:
            axis.set_ylabel(label)
        _legend(figure, ours, theirs)
        _footer(figure, plan, ours, level, version, scores["profile"].iloc[0])
    return figure, pd.concat([frame for frame in (ours, theirs) if len(frame)], ignore_index=True)


def _ours(plan: Plan, scores: pd.DataFrame, version: str, level: float) -> pd.DataFrame:
    """Cells with a value; none where nothing of the table was run."""
    try:
        found = plan.measure(scores[scores["task"].isin(plan.tasks)], plan.metric, version=version, level=level)
    except Absent:
        return pd.DataFrame(columns=["source", "model", "prompts", "method", "variant", "column", "tokens", "value", "n"])
    return found[(found["column"] != "Avg") & found["value"].notna()].assign(source="ours")


def _published(plan: Plan, with_rl_only: bool) -> pd.DataFrame:
    frame = published.load(plan.source)
    lengths = {name: int(column) for column, name in plan.columns.items() if name != "Avg"}
    rows = {method_name(m, v): (m, v) for m in published.METHOD_NAMES for v in (("",) if with_rl_only else ("", WITHOUT_RL))}
    frame = frame[frame["column"].isin(lengths) & frame["method"].isin(rows) & (frame["unit"] == "percent")]
    frame = frame[frame["number"].notna()]
    return pd.DataFrame(
        {
            "source": f"PI-Mem paper, {plan.printed}",
            "task": plan.tasks[0] if len(plan.tasks) == 1 else "ruler_ood",
            "model": frame["model"],
            "method": frame["method"].map(lambda name: rows[name][0]),
            "variant": frame["method"].map(lambda name: rows[name][1]),
            "column": frame["column"],
            "length": frame["column"].map(lengths),
            "unit": "documents" if plan.tasks == ("hotpotqa",) else "tokens",
            "metric": frame["metric"],
            "value": frame["number"],
            "tokens": frame["column"].map(_nominal if plan.tasks == ("hotpotqa",) else lengths),
        }
    )


def _nominal(name: str) -> float:
    return float(name[:-1]) * {"K": 1e3, "M": 1e6}[name[-1]]


def _across(n: int) -> int:
    return n if n <= MOST_ACROSS else MOST_ACROSS - 1


def _grid(n: int) -> tuple[Figure, list[Axes]]:
    across = _across(n)
    down = -(-n // across)
    figure = Figure(figsize=(WIDTH * across + 0.3, HEIGHT * down + 0.75), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    axes = list(grid.flat)
    for spare in axes[n:]:
        spare.set_axis_off()
    return figure, axes[:n]


def _ticks(ours: pd.DataFrame, theirs: pd.DataFrame) -> Mapping[float, str]:
    """Where the one x axis of all panels runs, and its names: the paper's, and ours where it goes on beyond them."""
    papers = theirs.groupby("column")["tokens"].mean().sort_values()
    ticks = {float(tokens): str(name) for name, tokens in papers.items()}
    lengths = ours.groupby("column")["tokens"].mean()
    beyond = {t: tokens_short(float(f"{t:.2g}")) for t in lengths if not papers.min() / 1.5 < t < papers.max() * 1.5}
    return dict(sorted({**ticks, **beyond}.items()))


def _frame(axis: Axes, ticks: Mapping[float, str]) -> None:
    axis.set_xscale("log")
    shown = list(ticks)[:: _step(len(ticks))]
    axis.set_xticks(shown, [ticks[t] for t in shown])
    axis.minorticks_off()
    axis.set_xlim(min(ticks) / 1.5, max(ticks) * 1.5)
    axis.set_ylim(-3, 103)
    axis.set_xlabel("context tokens")


def _step(n: int) -> int:
    """How many lengths to go on from one tick to the next: few enough ticks, and the last length among them if possible."""
    least = -(-n // MOST_TICKS)
    return next((step for step in (least, least + 1) if (n - 1) % step == 0), least)


def _draw_ours(axis: Axes, model: str, prompts: str, block: pd.DataFrame) -> None:
    axis.set_title(f"{model}\nours, prompts {prompts}", loc="left")
    if block.empty:
        axis.text(0.5, 0.5, "not run", transform=axis.transAxes, ha="center", va="center", color="#555555")
    rows = list(block.groupby(["method", "variant"], sort=False))
    for i, ((method, variant), row) in enumerate(rows):
        look = style.line(method)
        # Methods at one length would hide one another, so each stands a little aside.
        aside = 1.0 if len(row) > 1 else 1.12 ** (i - (len(rows) - 1) / 2)
        x = row["tokens"] * aside
        if len(row) > 1:
            axis.fill_between(x, row["low"], row["high"], color=look.colour, alpha=0.13, linewidth=0)
        else:
            bars = [row["value"] - row["low"], row["high"] - row["value"]]
            axis.errorbar(x, row["value"], yerr=bars, fmt="none", ecolor=look.colour, elinewidth=1, capsize=2)
        axis.plot(
            x,
            row["value"],
            color=look.colour,
            marker=look.marker,
            ls=look.dashes,
            lw=look.width,
            ms=4,
            zorder=3,
            mfc="white" if variant else look.colour,
        )


def _draw_paper(axis: Axes, model: str, _: str, block: pd.DataFrame) -> None:
    axis.set_title(f"{model}\nprinted in the paper", color=style.PUBLISHED, loc="left")
    axis.set_facecolor("#fafafa")
    for (method, variant), row in block.groupby(["method", "variant"], sort=False):
        look = style.line(method)
        # Hollow, since filled ones of one grey would hide one another; rows before reinforcement learning stand back.
        axis.plot(
            row["tokens"],
            row["value"],
            color=style.PUBLISHED,
            alpha=0.5 if variant else 1,
            marker=look.marker,
            ls=look.dashes,
            lw=0.8,
            ms=3.2,
            mfc="white",
        )


def _legend(figure: Figure, ours: pd.DataFrame, theirs: pd.DataFrame) -> None:
    """Every method of the paper, then whatever else was run."""
    rows = pd.concat([theirs[["method", "variant"]], ours[["method", "variant"]]]).drop_duplicates()
    order = [*published.METHOD_NAMES, *rows["method"]]
    named = sorted(rows.itertuples(index=False, name=None), key=lambda row: (order.index(row[0]), row[1]))
    handles = [style.line(method).handle(hollow=bool(variant)) for method, variant in named]
    labels = [method_name(method, variant) for method, variant in named]
    across = min(len(labels), int(figure.get_figwidth() / 1.2))
    figure.legend(handles, labels, loc="outside upper left", ncols=across, handlelength=3.4, columnspacing=1.2)


def _footer(figure: Figure, plan: Plan, ours: pd.DataFrame, level: float, version: str, profile: str) -> None:
    of = len(plan.methods) * (len(plan.columns) - 1)
    text = f"Profile {profile}, version {version}. The paper's panels are other experiments."
    if len(ours):
        counts = sorted(set(ours["n"]))
        n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
        text = f"{level:.0%} intervals over questions, {n} a point. {text}"
        if ours["clusters"].min() < FEW:
            text += f" Fewer than {FEW} questions: no ranking of methods."
        if idle := [name for method, name in published.METHOD_NAMES.items() if method not in set(ours["method"])]:
            text += f" Not run: {', '.join(idle)}."
    run = len(ours[ours["column"].isin(plan.columns) & (ours["variant"] == "")])
    of *= max(1, len(ours[["model", "prompts"]].drop_duplicates()))
    text += f" {run} of {of} points (the paper's methods and lengths) were run."
    text = "\n".join(textwrap.wrap(text, width=int(figure.get_figwidth() * 19)))
    figure.supxlabel(text, fontsize=6.5, color="#555555", x=0.01, ha="left")


def write(figure: Figure, data: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    """pdf, png and the csv the figure was drawn from; returns the files. Raises `StoreError`."""
    paths = style.save(figure, folder, name)
    path = folder / f"{name}.csv"
    replace_file(path, data.to_csv(index=False, lineterminator="\n", float_format="%.4f"))
    return [*paths, path]
