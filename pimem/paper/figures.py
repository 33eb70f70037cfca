"""The paper's figures from the cells of its tables."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pimem.journal import replace_file
from pimem.paper import published, style
from pimem.paper.tables import FEW, Absent, cells, method_name, tokens_short

WIDTH, HEIGHT = 2.75, 2.35
"""Inches of one panel."""

MOST_ACROSS = 4
MOST_TICKS = 6


def hqa(scores: pd.DataFrame, *, version: str, level: float = 0.95) -> tuple[Figure, pd.DataFrame]:
    """HotpotQA Sub-EM over context length: a panel for each of our models, then the paper's numbers in panels of their own.

    Bands, or bars where there is one length, are the intervals of the table. Returns the figure and the cells it was drawn
    from, the paper's included and marked in `source`. Raises `Absent` where the scores hold no HotpotQA.
    """
    part = scores[scores["task"] == "hotpotqa"]
    if part.empty:
        raise Absent("the scores hold no task 'hotpotqa'")
    ours = cells(part, "sub_em", version=version, level=level)
    ours = ours[ours["column"] != "Avg"].assign(source="ours")
    theirs = _published(sorted(set(ours["method"])))
    panels = [(True, key, block) for key, block in ours.groupby(["model", "prompts"], sort=False)]
    panels += [(False, (model, ""), block) for model, block in theirs.groupby("model", sort=False)]
    with style.use():
        figure, axes = _grid(len(panels))
        for axis, (mine, (model, prompts), block) in zip(axes, panels, strict=True):
            (_ours if mine else _paper)(axis, model, prompts, block)
        for axis in axes[:: _across(len(axes))]:
            axis.set_ylabel("Sub-EM (percent)")
        _legend(figure, ours)
        _footer(figure, ours, level, version)
    return figure, pd.concat([ours, theirs], ignore_index=True)


FIGURES = {"hqa_by_length": hqa}


def _published(methods: list[str]) -> pd.DataFrame:
    frame = published.load("table1_hqa")
    names = {published.METHOD_NAMES.get(m, m): m for m in methods}
    frame = frame[(frame["metric"] == "sub_em") & (frame["column"] != "Avg") & frame["method"].isin(names)]
    frame = frame[frame["number"].notna()]
    return pd.DataFrame(
        {
            "source": "PI-Mem paper, Table 1",
            "task": "hotpotqa",
            "model": frame["model"],
            "method": frame["method"].map(names),
            "variant": "",
            "column": frame["column"],
            "length": frame["column"].map(published.HQA_DOCUMENTS),
            "unit": "documents",
            "metric": "sub_em",
            "value": frame["number"],
            "tokens": frame["column"].map(_nominal),
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


def _frame(axis: Axes, block: pd.DataFrame, title: str, colour: str) -> None:
    axis.set_title(title, color=colour, loc="left")
    axis.set_xscale("log")
    ticks = block.groupby("column")["tokens"].mean().sort_values()
    shown = ticks.iloc[:: _step(len(ticks))]
    axis.set_xticks(
        shown.tolist(), [str(c) if c in published.HQA_DOCUMENTS else tokens_short(float(f"{t:.2g}")) for c, t in shown.items()]
    )
    axis.minorticks_off()
    axis.set_xlim(ticks.min() / 1.5, ticks.max() * 1.5)
    axis.set_ylim(-3, 103)
    axis.set_xlabel("context tokens")


def _step(n: int) -> int:
    """How many lengths to go on from one tick to the next: few enough ticks, and the last length among them if possible."""
    least = -(-n // MOST_TICKS)
    return next((step for step in (least, least + 1) if (n - 1) % step == 0), least)


def _ours(axis: Axes, model: str, prompts: str, block: pd.DataFrame) -> None:
    _frame(axis, block, f"{model}\nours, prompts {prompts}", "black")
    rows = list(block.groupby(["method", "variant"], sort=False))
    for i, ((method, variant), row) in enumerate(rows):
        look = style.line(method)
        # Methods at one length would hide one another, so each stands a little aside.
        aside = 1.0 if len(row) > 1 else 1.06 ** (i - (len(rows) - 1) / 2)
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


def _paper(axis: Axes, model: str, _: str, block: pd.DataFrame) -> None:
    _frame(axis, block, f"{model}\nprinted in the paper", style.PUBLISHED)
    axis.set_facecolor("#fafafa")
    for method, row in block.groupby("method", sort=False):
        look = style.line(method)
        axis.plot(
            row["tokens"], row["value"], color=style.PUBLISHED, marker=look.marker, ls=look.dashes, lw=0.8, ms=3, mfc="white"
        )


def _legend(figure: Figure, ours: pd.DataFrame) -> None:
    handles, labels = [], []
    for method, variant in ours[["method", "variant"]].drop_duplicates().itertuples(index=False):
        handles.append(style.line(method).handle(hollow=bool(variant)))
        labels.append(method_name(method, variant))
    figure.legend(handles, labels, loc="outside upper left", ncols=len(labels), handlelength=3)


def _footer(figure: Figure, ours: pd.DataFrame, level: float, version: str) -> None:
    counts = sorted(set(ours["n"]))
    n = f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"
    text = f"{level:.0%} intervals over questions, {n} a point; profile {ours['profile'].iloc[0]}, version {version}."
    if ours["clusters"].min() < FEW:
        text += f" Fewer than {FEW} questions: no ranking of methods."
    text += " The paper's panels are other experiments."
    text = "\n".join(textwrap.wrap(text, width=int(figure.get_figwidth() * 19)))
    figure.supxlabel(text, fontsize=6.5, color="#555555", x=0.01, ha="left")


def write(figure: Figure, data: pd.DataFrame, folder: Path, name: str) -> list[Path]:
    """pdf, png and the csv the figure was drawn from; returns the files. Raises `StoreError`."""
    paths = style.save(figure, folder, name)
    path = folder / f"{name}.csv"
    replace_file(path, data.to_csv(index=False, lineterminator="\n", float_format="%.4f"))
    return [*paths, path]
