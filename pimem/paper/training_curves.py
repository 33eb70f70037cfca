"""How trainings went, step by step: Figure 6 of the paper, a run's progress, the parts of its time, the cold start's loss."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pimem.paper import style
from pimem.paper.style import Line
from pimem.paper.tables import Absent, tokens_short
from pimem.paper.training_records import Record
from pimem.paper.training_runs import bonus_runs, parts_of

Drawn = tuple[Figure, pd.DataFrame]
"""A figure and what it was drawn from."""

RUNS = (
    Line("#D55E00", "o", "-", 1.6),
    Line("#0072B2", "s", (0, (5, 2)), 1.4),
    Line("#009E73", "^", (0, (5, 2, 1, 2)), 1.4),
    Line("#CC79A7", "v", (0, (2, 1)), 1.4),
    Line("#E69F00", "P", (0, (3, 1, 1, 1, 1, 1)), 1.4),
    Line("#000000", "D", (0, (1, 1.4)), 1.4),
)
PARTS = ("#0072B2", "#56B4E9", "#009E73", "#F0E442", "#D55E00", "#CC79A7", "#E69F00", "#999999")
AROUND = 2
"""Steps on either side that a curve's mean takes in."""
CURVES = {
    "accuracy": "accuracy reward",
    "turns": "turns",
    "reward": "reward, bonus included",
    "positive_share": "reads that say yes",
    "malformed_share": "calls out of form",
    "truncated_share": "calls cut at their limit",
    "failed": "rollouts that failed",
    "memory_tokens": "tokens of the final memory",
    "response_tokens_each": "tokens generated a call",
}
"""Curves over rollouts, with intervals."""
STEP_CURVES = {
    "actor/kl_loss": "KL to the first weights",
    "actor/grad_norm": "gradient norm",
    "training/rollout_probs_diff_mean": "rollout against training,\nmean gap of probabilities",
}
"""Curves of what is logged once a step."""


def curve(trajectories: pd.DataFrame, column: str, around: int = AROUND, level: float = 0.95) -> pd.DataFrame:
    """A row a step: `value`, the mean of its own rollouts; `smooth`, that of the steps within `around`; its interval.

    The interval is normal, with the variance between questions (rollouts of one question are not independent), cut at the
    range of the values. Columns: step, value, smooth, low, high, n, questions. Rollouts without the value are left out.
    """
    frame = trajectories[trajectories[column].notna()]
    rows = []
    for step in sorted(frame["step"].unique()):
        near = frame[(frame["step"] - step).abs() <= around]
        mean = float(near[column].mean())
        each = (near[column] - mean).groupby(near["sample"]).sum()
        k = len(each)
        half = (
            math.inf
            if k < 2
            else NormalDist().inv_cdf(0.5 + level / 2) * math.sqrt(float((each**2).sum()) * k / (k - 1)) / len(near)
        )
        low, high = max(mean - half, float(frame[column].min())), min(mean + half, float(frame[column].max()))
        own = float(frame.loc[frame["step"] == step, column].mean())
        rows.append({"step": int(step), "value": own, "smooth": mean, "low": low, "high": high, "n": len(near), "questions": k})
    return pd.DataFrame(rows, columns=["step", "value", "smooth", "low", "high", "n", "questions"])


def turn_reward(records: Sequence[Record], *, version: str, level: float = 0.95) -> Drawn:
    """Figure 6: turns and accuracy reward over the steps, a line a run of PI-Mem. Raises `Absent` where there is none."""
    runs = bonus_runs(records)
    with style.use():
        figure, axes = grid(2, 2, len(runs), width=3.4, height=2.6)
        data = [_curves(axis, runs, name, level) for axis, name in zip(axes, ("turns", "accuracy"), strict=True)]
        legend(figure, [(r.title, look) for r, look in zip(runs, looks(runs), strict=True)])
        text = f"Dots: means of a step. Lines: means over {2 * AROUND + 1} steps, with {level:.0%} intervals over questions; "
        text += f"{_rollouts(runs)}; {_settings(runs)}. Version {version}."
        if len({r.turn_bonus for r in runs}) < 2:
            text += " Only one turn bonus was run, so nothing is compared."
        footer(figure, text)
    return figure, pd.concat(data, ignore_index=True)


def progress(records: Sequence[Record], *, version: str, level: float = 0.95) -> Drawn:
    """How every run of reinforcement learning went, a panel a quantity. Raises `Absent` where there is none."""
    runs = [r for r in records if r.kind == "rl"]
    if not runs:
        raise Absent("no run of reinforcement learning has a record (trajectories.jsonl)")
    shares = [r for r in runs if r.steps is not None]
    rolled = pd.concat([_derived(r.trajectories) for r in runs if r.trajectories is not None])
    names = [
        *(n for n in CURVES if rolled[n].notna().any()),
        *(n for n in STEP_CURVES if any(n in r.steps for r in shares if r.steps is not None)),
    ]
    data = []
    with style.use():
        figure, axes = grid(len(names), 4, len(runs), width=2.3, height=1.75)
        for axis, name in zip(axes, names, strict=True):
            if name in CURVES:
                data.append(_curves(axis, runs, name, level))
            else:
                data.append(_step_curves(axis, shares, runs, name))
        legend(figure, [(r.title, look) for r, look in zip(runs, looks(runs), strict=True)])
        text = (
            f"Dots: means of a step. Lines: means over {2 * AROUND + 1} steps, with {level:.0%} intervals over questions where "
        )
        footer(figure, text + f"rollouts are counted; {_rollouts(runs)}. Version {version}.")
    return figure, pd.concat(data, ignore_index=True)


def step_times(records: Sequence[Record], *, version: str, level: float = 0.95) -> Drawn:
    """The parts of every step's time, a panel a run, and beside it calls a second. Raises `Absent` where none was logged."""
    runs = [r for r in records if r.kind == "rl" and r.steps is not None]
    if not runs:
        raise Absent("no run of reinforcement learning has a record of its steps (steps.jsonl)")
    data, shown = [], {}
    with style.use():
        figure, axes = grid(2 * len(runs), 2, 1, width=3.4, height=2.1)
        for run, left, right in zip(runs, axes[::2], axes[1::2], strict=True):
            assert run.steps is not None
            parts, x = parts_of(run.steps), run.steps["step"]
            base = np.zeros(len(x))
            for part, colour in zip(parts, _colours(len(parts.columns)), strict=True):
                left.bar(x, parts[part], bottom=base, width=0.85, color=colour, linewidth=0)
                base = base + parts[part].to_numpy()
                shown[part] = colour
                data.append(pd.DataFrame({"stage": run.name, "what": part, "unit": "s", "step": x, "value": parts[part]}))
            # A first step that starts everything up would hide all others.
            left.set_ylim(0, 1.15 * float(np.quantile(base[1:] if len(base) > 1 else base, 0.98)))
            left.set_title(f"{run.title}: seconds a step", loc="left")
            calls = run.steps["pimem/rows"] * run.steps["pimem/trajectories"]
            for label, seconds, look in (
                ("generating", run.steps["timing_s/gen"], RUNS[1]),
                ("whole step", run.steps["timing_s/step"], RUNS[0]),
            ):
                rate = calls / seconds
                right.plot(x, rate, color=look.colour, ls=look.dashes, lw=look.width, marker=look.marker, ms=3, label=label)
                what = f"calls a second, {label}"
                data.append(pd.DataFrame({"stage": run.name, "what": what, "unit": "1/s", "step": x, "value": rate}))
            right.set_title("calls a second", loc="left")
            right.set_ylim(bottom=0)
            right.legend(loc="best", fontsize=7)
            for axis in (left, right):
                axis.set_xlabel("step")
                _whole_steps(axis, x)
        legend(figure, [(part, Line(colour, "s", "none")) for part, colour in shown.items()], columns=5, size=7)
        footer(figure, f"As logged, one value a step; the scale leaves out a first step that warms up. Version {version}.")
    return figure, pd.concat(data, ignore_index=True)


def cold_start(records: Sequence[Record], *, version: str, level: float = 0.95, window: int = 20) -> Drawn:
    """Loss and gradient norm of every cold start over the tokens trained on. Raises `Absent` where there is none."""
    runs = [r for r in records if r.history is not None]
    if not runs:
        raise Absent("no cold start has a record (history.jsonl)")
    data = []
    with style.use():
        figure, axes = grid(2, 2, len(runs), width=3.4, height=2.4)
        for run, look in zip(runs, looks(runs), strict=True):
            assert run.history is not None
            made = run.history.assign(seen=run.history["tokens"].cumsum(), stage=run.name)
            for axis, name in zip(axes, ("loss", "norm"), strict=True):
                axis.plot(made["seen"], made[name], ".", color=look.colour, ms=1.5, alpha=0.3, zorder=1)
                smooth = made[name].rolling(window, center=True, min_periods=1).mean()
                axis.plot(made["seen"], smooth, color=look.colour, ls=look.dashes, lw=look.width)
            data.append(made)
        for axis, label in zip(axes, ("loss (log scale)", "gradient norm (log scale)"), strict=True):
            axis.set_yscale("log")
            axis.set_title(label, loc="left")
            axis.set_xlabel("tokens trained on")
            axis.xaxis.set_major_formatter(lambda x, _: tokens_short(float(f"{x:.2g}")) if x else "0")
        legend(figure, [(r.title, look) for r, look in zip(runs, looks(runs), strict=True)])
        ends = "; ".join(
            f"{r.title}: {len(r.history):,} steps, {r.history['seconds'].iloc[-1]:.0f} s, mean loss of the last {window} "
            f"{r.history['loss'].iloc[-window:].mean():.3f}"
            for r in runs
            if r.history is not None
        )
        footer(figure, f"Dots: steps. Lines: means over {window} steps. {ends}. Version {version}.")
    return figure, pd.concat(data, ignore_index=True)


def _derived(trajectories: pd.DataFrame) -> pd.DataFrame:
    rows, checks = trajectories["rows"].clip(lower=1), trajectories["checks"]
    return trajectories.assign(
        positive_share=(trajectories["positive"] / checks.where(checks > 0)),
        malformed_share=(trajectories["malformed"] / rows).clip(upper=1),
        truncated_share=trajectories["truncated"] / rows,
        response_tokens_each=trajectories["response_tokens"] / rows,
    )


def _curves(axis: Axes, runs: Sequence[Record], name: str, level: float) -> pd.DataFrame:
    made = []
    for run, look in zip(runs, looks(runs), strict=True):
        assert run.trajectories is not None
        line = curve(_derived(run.trajectories), name, level=level)
        axis.plot(line["step"], line["value"], look.marker, color=look.colour, ms=2.2, alpha=0.35, mew=0, zorder=1)
        axis.fill_between(line["step"], line["low"], line["high"], color=look.colour, alpha=0.14, linewidth=0)
        axis.plot(line["step"], line["smooth"], color=look.colour, ls=look.dashes, lw=look.width, zorder=3)
        made.append(line.assign(stage=run.name, what=name))
    axis.set_title(CURVES[name], loc="left")
    axis.set_xlabel("step")
    data = pd.concat(made, ignore_index=True)
    _whole_steps(axis, data["step"])
    if name.endswith("_share") or name == "failed":
        axis.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.3g} %")
        axis.set_ylim(bottom=0, top=None if data["high"].max() > 0.005 else 0.01)
    return data


def _step_curves(axis: Axes, with_steps: Sequence[Record], runs: Sequence[Record], name: str) -> pd.DataFrame:
    made = []
    for run, look in zip(runs, looks(runs), strict=True):
        if run.steps is None or name not in run.steps or run not in with_steps:
            continue
        values = run.steps[name]
        axis.plot(run.steps["step"], values, look.marker, color=look.colour, ms=2.2, alpha=0.35, mew=0, zorder=1)
        smooth = values.rolling(2 * AROUND + 1, center=True, min_periods=1).mean()
        axis.plot(run.steps["step"], smooth, color=look.colour, ls=look.dashes, lw=look.width)
        made.append(
            pd.DataFrame({"step": run.steps["step"], "value": values, "smooth": smooth, "stage": run.name, "what": name})
        )
    axis.set_title(STEP_CURVES[name], loc="left")
    axis.set_xlabel("step")
    axis.set_ylim(bottom=0)
    _whole_steps(axis, pd.concat([m["step"] for m in made]))
    return pd.concat(made, ignore_index=True)


def _whole_steps(axis: Axes, steps: pd.Series) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlim(steps.min() - 0.5, steps.max() + 0.5)


def looks(runs: Sequence[Record]) -> list[Line]:
    return [RUNS[i % len(RUNS)] for i in range(len(runs))]


def _colours(n: int) -> list[str]:
    return [PARTS[i % len(PARTS)] for i in range(n)]


def _rollouts(runs: Sequence[Record]) -> str:
    counts = [r.trajectories.groupby("step").size() for r in runs if r.trajectories is not None]
    low, high = min(c.min() for c in counts), max(c.max() for c in counts)
    return f"{low} rollouts a step" if low == high else f"{low} to {high} rollouts a step"


def _settings(runs: Sequence[Record]) -> str:
    said = sorted({f"{r.spec.get('model', {}).get('path', 'model not recorded')}" for r in runs})
    return ", ".join(said)


def grid(n: int, most_across: int, legend_rows: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    across = min(n, most_across)
    down = -(-n // across)
    figure = Figure(figsize=(width * across + 0.3, height * down + 0.75), layout="constrained")
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in axes[n:]:
        spare.set_axis_off()
    return figure, axes[:n]


def legend(
    figure: Figure, looks: Sequence[tuple[str, Line]], columns: int = 3, size: float = 8, hollow: Sequence[str] = ()
) -> None:
    handles = [look.handle(hollow=name in hollow) for name, look in looks]
    figure.legend(
        handles,
        [name for name, _ in looks],
        loc="outside upper left",
        ncols=min(columns, len(looks)),
        handlelength=3.2,
        fontsize=size,
    )


def footer(figure: Figure, text: str) -> None:
    lines = "\n".join(textwrap.wrap(text, width=int(figure.get_figwidth() * 19)))
    figure.supxlabel(lines, fontsize=6.5, color="#555555", x=0.01, ha="left")
