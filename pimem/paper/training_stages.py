"""One model stage by stage: Figure 4 of the paper (before and after reinforcement learning), and the judge's cases."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from pimem.paper import published, style, tables
from pimem.paper.tables import Absent, tokens_short
from pimem.paper.training_curves import RUNS, Drawn, footer, grid, legend, looks
from pimem.paper.training_records import Record, predecessor
from pimem.paper.training_tables import HEADLINES, chosen, estimate

BEFORE_AFTER = {
    "before": RUNS[1]._replace(marker="o", dashes=(0, (3, 1.5))),
    "after": RUNS[0],
}
"""How the two stages of Figure 4 are drawn."""


def judged(records: Sequence[Record], *, version: str, level: float = 0.95) -> Drawn:
    """The judge's main cases, a dot with its interval a stage. Raises `Absent` where no stage was judged."""
    runs = [r for r in records if r.judged is not None]
    if not runs:
        raise Absent("no stage of a model has a record of the judge (eval.jsonl of pimem.training.judge)")
    rows = []
    for label, case, score in HEADLINES:
        for run in runs:
            part = chosen(run, case, score)
            if not part.empty:
                made = estimate(run, case, score, level)
                facts = {k: 100 * getattr(made, k) for k in ("value", "low", "high")}
                rows.append(
                    {"row": label, "stage": run.name, **facts, "how": made.how, "n": made.n, "questions": made.clusters}
                )
    data = pd.DataFrame(rows)
    labels = list(dict.fromkeys(data["row"]))
    with style.use():
        figure, (axis,) = grid(1, 1, len(runs), width=6.6, height=0.5 + 0.27 * len(labels))
        for at, (run, look) in enumerate(zip(runs, looks(runs), strict=True)):
            part = data[data["stage"] == run.name]
            y = part["row"].map(labels.index) + 0.22 * (at - (len(runs) - 1) / 2)
            bars = [part["value"] - part["low"], part["high"] - part["value"]]
            axis.errorbar(part["value"], y, xerr=bars, fmt=look.marker, color=look.colour, ms=4, elinewidth=1, capsize=1.5)
        counts = data.groupby("row")["n"].max()
        axis.set_yticks(range(len(labels)), [f"{name}  (n = {counts[name]:,})" for name in labels])
        axis.set_ylim(len(labels) - 0.4, -0.6)
        axis.set_xlim(-2, 102)
        axis.set_xlabel("percent right")
        axis.grid(axis="y", visible=False)
        legend(figure, [(r.title, look._replace(dashes="none")) for r, look in zip(runs, looks(runs), strict=True)])
        footer(
            figure,
            f"{level:.0%} intervals over questions; held-out examples, greedy, the same for every stage. Version {version}.",
        )
    return figure, data


def before_after(records: Sequence[Record], *, version: str, level: float = 0.95) -> Drawn:
    """Figure 4: the trained method before and after reinforcement learning over lengths, a panel a task and run, then the
    paper's in grey. Raises `Absent` where no run and the stage before it have scores of one task.
    """
    pairs = [(r, predecessor(r, records)) for r in records if r.kind == "rl" and r.scores is not None]
    panels, frames = [], []
    for run, first in pairs:
        if first is None or first.scores is None or run.scores is None:
            continue
        both = {}
        for stage, record in (("before", first), ("after", run)):
            assert record.scores is not None
            part = record.scores[(record.scores["method"] == run.method) & (record.scores["variant"] == "")]
            if not part.empty:
                ours = tables.cells(part, version=version, level=level)
                both[stage] = ours[ours["column"] != "Avg"].assign(source="ours", stage=stage, run=run.name)
        for task in sorted(set.intersection(*(set(b["task"]) for b in both.values())) if len(both) == 2 else ()):
            block = pd.concat([b[b["task"] == task] for b in both.values()], ignore_index=True)
            panels.append((f"{task}\n{run.title}, {_counted(block)}", block))
            frames.append(block)
    if not panels:
        raise Absent(
            "before and after reinforcement learning over lengths: needs scores.csv of evaluations of a run's weights and of "
            f"those it began with, on the same tasks; of {len(pairs)} run(s) with scores none has the other side"
        )
    theirs = _published_before_after()
    panels += [(f"{model}\nprinted in the paper, RULER", block) for model, block in theirs.groupby("model", sort=False)]
    with style.use():
        figure, axes = grid(len(panels), 4, 1, width=2.5, height=2.3)
        for axis, (title, block) in zip(axes, panels, strict=True):
            _two_lines(axis, title, block)
        axes[0].set_ylabel("score (percent)")
        drawn = [
            ("before", BEFORE_AFTER["before"]),
            ("after reinforcement learning", BEFORE_AFTER["after"]),
        ]
        legend(figure, drawn, hollow=("before",))
        ours = pd.concat(frames, ignore_index=True)
        text = f"{level:.0%} intervals over questions, n samples a point, each task "
        footer(figure, text + f"under its own metric. The paper's panels are other experiments. Version {version}.")
    return figure, pd.concat([ours, theirs], ignore_index=True)


def _two_lines(axis: Axes, title: str, block: pd.DataFrame) -> None:
    mine = block["source"].iloc[0] == "ours"
    for stage, look in BEFORE_AFTER.items():
        part = block[block["stage"] == stage].sort_values("tokens")
        colour = look.colour if mine else style.PUBLISHED
        if mine and len(part) > 1:
            axis.fill_between(part["tokens"], part["low"], part["high"], color=colour, alpha=0.13, linewidth=0)
        elif mine:
            # Two stages at one length would hide each other.
            part = part.assign(tokens=part["tokens"] * (0.97 if stage == "before" else 1.03))
            bars = [part["value"] - part["low"], part["high"] - part["value"]]
            axis.errorbar(part["tokens"], part["value"], yerr=bars, fmt="none", ecolor=colour, elinewidth=1, capsize=2)
        face = "white" if stage == "before" else colour
        axis.plot(
            part["tokens"],
            part["value"],
            color=colour,
            ls=look.dashes,
            marker=look.marker,
            mfc=face,
            ms=4,
            lw=look.width,
            zorder=3,
        )
    axis.set_title(title, loc="left", color="black" if mine else style.PUBLISHED)
    axis.set_xscale("log")
    ticks = sorted(set(block["tokens"]))
    ticks = ticks[:: -(-len(ticks) // 5)]
    axis.set_xticks(ticks, [_tick(tokens) for tokens in ticks])
    axis.minorticks_off()
    axis.set_xlim(min(ticks) / 1.4, max(block["tokens"]) * 1.4)
    axis.set_xlabel("context tokens")
    axis.set_ylim(-3, 103)
    if not mine:
        axis.set_facecolor("#fafafa")


def _tick(tokens: float) -> str:
    return tokens_short(tokens if int(tokens).bit_count() == 1 else float(f"{tokens:.2g}"))


def _counted(block: pd.DataFrame) -> str:
    low, high = block["n"].min(), block["n"].max()
    return f"n = {low}" if low == high else f"n = {low} to {high}"


def _published_before_after() -> pd.DataFrame:
    frame = published.load("s4_ood")
    frame = frame[(frame["metric"] == "mean_of_11_tasks") & (frame["column"] != "Avg") & frame["number"].notna()]
    frame = frame[frame["method"].isin(["PI-Mem", "PI-Mem (w/o RL)"])].drop_duplicates(["model", "method", "column"])
    return pd.DataFrame(
        {
            "source": "PI-Mem paper, Supplement Table 4",
            "model": frame["model"],
            "stage": frame["method"].map({"PI-Mem": "after", "PI-Mem (w/o RL)": "before"}),
            "column": frame["column"],
            "metric": frame["metric"],
            "value": frame["number"],
            "tokens": frame["column"].map(lambda c: float(c[:-1]) * {"K": 1024, "M": 1024**2}[c[-1]]),
            "low": math.nan,
            "high": math.nan,
        }
    )
