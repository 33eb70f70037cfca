"""Figures of GRU-Mem's gates: memory size step by step, right updates, and where reading ended."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pimem.paper import gate_steps, style
from pimem.paper.gate_steps import EXITS
from pimem.paper.gate_tables import TASKS, Measured, length_text, place
from pimem.paper.tables import FEW, Absent, method_name

MOST_PANELS, ACROSS = 9, 3
COLOURS = {"exact": "#009E73", "early": "#E69F00", "late": "#56B4E9", "never": "#0072B2", "failed": "#555555"}
"""Okabe and Ito's; the order of the bars tells them apart in grey."""


def memory(made_of: Measured, *, version: str, level: float = 0.95) -> tuple[Figure, pd.DataFrame]:
    """Figure 6: memory tokens after every step, a panel for each task, setting and model at its longest length.

    Bands are intervals over questions. Returns the figure and what it was drawn from. Raises `Absent` where there are no steps.
    """
    cells = gate_steps.memory(made_of.joined, level)
    if cells.empty:
        raise Absent("no step has been made, so no memory either")
    longest = cells[cells["length"] == cells.groupby("task")["length"].transform("max")]
    panels = list(longest.groupby(["task", "within", "model"], sort=False))[:MOST_PANELS]
    with style.use():
        figure, axes = _grid(len(panels))
        for axis, ((task, within, model), part) in zip(axes, panels, strict=True):
            first = part.iloc[0]
            _title(axis, task, length_text(first["length"], first["unit"]), within, model)
            axis.set_xlabel("chunks read")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            for (method, variant), line in part.groupby(["method", "variant"], sort=False):
                look = style.line(method)
                face = "white" if variant else look.colour
                axis.fill_between(line["step"], line["low"], line["high"], color=look.colour, alpha=0.13, linewidth=0)
                axis.plot(
                    line["step"],
                    line["value"],
                    color=look.colour,
                    ls=look.dashes if not variant else ":",
                    lw=look.width,
                    marker=look.marker,
                    ms=3,
                    mfc=face,
                    markevery=max(1, len(line) // 8),
                    label=method_name(method, variant),
                )
            axis.set_ylim(bottom=0)
        for axis in axes[::ACROSS]:
            axis.set_ylabel("memory (tokens)")
        _legend(figure, axes)
        _footer(figure, longest, level, version, most=longest[longest["step"] == 1])
    return figure, longest


def updates(made_of: Measured, *, version: str, level: float = 0.95) -> tuple[Figure, pd.DataFrame]:
    """Right decisions of the update gate on chunks with and without evidence, a row a cell. Raises `Absent` without gates."""
    cells = gate_steps.updates(made_of.joined, level)
    if cells.empty:
        raise Absent("no run of GRU-Mem, so there is no update gate")
    rows = list(dict.fromkeys(map(tuple, cells[list(_ROW)].itertuples(index=False))))
    with style.use():
        figure = Figure(figsize=(6.2, 1.0 + 0.3 * len(rows)), layout="constrained")
        axis = figure.subplots()
        for evidence, label, colour, marker, aside in (
            (1, "with evidence", "#D55E00", "o", -0.14),
            (0, "without", "#0072B2", "s", 0.14),
        ):
            part = cells[cells["evidence"] == evidence]
            at = [rows.index(tuple(row)) + aside for row in part[list(_ROW)].itertuples(index=False)]
            bars = [part["value"] - part["low"], part["high"] - part["value"]]
            axis.errorbar(part["value"], at, xerr=bars, fmt=marker, ms=4, color=colour, elinewidth=1, capsize=2, label=label)
        _rows(axis, rows)
        axis.set_xlabel("chunks judged rightly (percent)")
        figure.legend(loc="outside upper left", ncols=2)
        _footer(figure, cells, level, version)
    return figure, cells


def exits(made_of: Measured, *, version: str, level: float = 0.95) -> tuple[Figure, pd.DataFrame]:
    """Figures 7 and 23: shares of exact, early and late exits, a bar a cell. Raises `Absent` without gates."""
    frame = gate_steps.exits(made_of.joined)
    if frame.empty:
        raise Absent("no run of GRU-Mem, so there is no exit gate")
    counts = (
        frame.groupby([*_ROW, "kind"], sort=False)
        .size()
        .unstack("kind", fill_value=0)
        .reindex(columns=list(EXITS), fill_value=0)
    )
    n = counts.sum(axis=1)
    shares = 100 * counts.div(n, axis=0)
    rows = list(shares.index)
    with style.use():
        figure = Figure(figsize=(6.2, 1.0 + 0.3 * len(rows)), layout="constrained")
        axis = figure.subplots()
        left = pd.Series(0.0, index=shares.index)
        for kind in EXITS:
            if shares[kind].any():
                axis.barh(
                    range(len(rows)), shares[kind], left=left, color=COLOURS[kind], height=0.62, edgecolor="white", label=kind
                )
                left = left + shares[kind]
        _rows(axis, rows)
        axis.set_xlabel("samples (percent)")
        figure.legend(loc="outside upper left", ncols=len(EXITS))
        _footer(figure, pd.DataFrame({"n": n, "questions": n}), level, version, bars=False)
    return figure, shares.assign(n=n).reset_index()


_ROW = ("task", "unit", "length", "within", "model", "method", "variant")


def _rows(axis: Axes, rows: list[tuple[object, ...]]) -> None:
    models = {row[4] for row in rows}
    names = []
    for task, unit, length, within, model, method, variant in rows:
        said = [TASKS.get(str(task), str(task)), length_text(int(str(length)), str(unit)), place(float(str(within)))]
        said += [str(model)] if len(models) > 1 else []
        names.append(", ".join([*said, str(variant) or method_name(str(method))]))
    axis.set_yticks(range(len(rows)), names)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlim(-2, 102)
    axis.grid(axis="y", visible=False)


def _title(axis: Axes, task: str, length: str, within: float, model: str) -> None:
    where = place(within) if within == 1 else f"in the {place(within)}"
    axis.set_title(f"{TASKS.get(task, task)}, {length}, evidence {where}\n{model}", loc="left")


def _grid(n: int) -> tuple[Figure, list[Axes]]:
    across = min(ACROSS, n)
    down = -(-n // across)
    figure = Figure(figsize=(2.75 * across + 0.4, 2.2 * down + 0.8), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False, sharey=True).flat)
    for spare in axes[n:]:
        spare.set_axis_off()
    return figure, axes[:n]


def _legend(figure: Figure, axes: list[Axes]) -> None:
    found = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(found.values(), found.keys(), loc="outside upper left", ncols=3, handlelength=3)


def _footer(
    figure: Figure, cells: pd.DataFrame, level: float, version: str, bars: bool = True, most: pd.DataFrame | None = None
) -> None:
    """What a reader must know; `most`: the cells that tell how many questions there were."""
    low, high = cells["n"].min(), cells["n"].max()
    text = f"{level:.0%} intervals over questions, " if bars else ""
    text += f"n = {low}" if low == high else f"n = {low} to {high}"
    text += f"; version {version}."
    if (cells if most is None else most)["questions"].min() < FEW:
        text += f" Fewer than {FEW} questions: no ranking of methods."
    text = "\n".join(textwrap.wrap(text, width=int(figure.get_figwidth() * 19)))
    figure.supxlabel(text, fontsize=6.5, color="#555555", x=0.01, ha="left")
