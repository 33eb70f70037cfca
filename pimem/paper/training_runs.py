"""Tables of runs of reinforcement learning: what the turn bonus did (Figure 6 in numbers), and where a step's time went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pimem import stats
from pimem.errors import DataError
from pimem.paper import published
from pimem.paper.tables import Absent
from pimem.paper.training_records import Record
from pimem.paper.training_tables import Sheet

MEMORY = "actor/perf/max_memory_allocated_gb"
PARTS = {
    "gen": "rollouts",
    "old_log_prob": "log-probabilities again",
    "ref": "those of the first weights",
    "adv": "advantages",
    "update_actor": "updates",
    "update_weights": "weights to the engine",
    "save_checkpoint": "checkpoint",
    "testing": "evaluation",
}
"""verl's names of the parts of a step, in words."""


def turn_bonus(records: Sequence[Record], *, version: str, level: float = 0.95, share: float = 0.25) -> Sheet:
    """Figure 6 in numbers: turns and accuracy over the last `share` of the steps, with the turn bonus and without.

    Runs of the same questions are paired by step and question. Raises `Absent` where there is no run of PI-Mem.
    """
    runs = bonus_runs(records)
    rows, shown = [], []
    for run in runs:
        late = _late(run, share)
        row: dict[str, object] = {"stage": run.name, "turn_bonus": run.turn_bonus, "steps": _span(late["step"])}
        for name, scale in (("turns", _most(run)), ("accuracy", 1.0)):
            estimate = stats.mean((late[name] / scale).tolist(), late["sample"].tolist(), level)
            row |= {name: estimate.value * scale, f"{name}_low": estimate.low * scale, f"{name}_high": estimate.high * scale}
        row |= {"n": len(late), "questions": late["sample"].nunique()}
        rows.append(row)
        shown.append(_late_texts(run.title, row))
    for run, other in [(a, b) for a in runs for b in runs if a.turn_bonus and b.turn_bonus == 0]:
        both = _groups(_late(run, share)).merge(_groups(_late(other, share)), on=["step", "sample"], suffixes=("", "_other"))
        if both.empty:
            continue
        row = {"stage": f"{run.name} - {other.name}", "steps": _span(both["step"]), "n": len(both)}
        row["questions"] = both["sample"].nunique()
        for name in ("turns", "accuracy"):
            gap = stats.paired(both[name].tolist(), both[f"{name}_other"].tolist(), both["sample"].tolist(), level).difference
            row |= {name: gap.value, f"{name}_low": gap.low, f"{name}_high": gap.high}
        rows.append(row)
        shown.append(_late_texts(f"{run.title} minus {other.title}, same questions", row))
    theirs = published.load("figure6_turn_reward").set_index("metric")["value"]
    notes = (
        f"Rollouts of the last {share:.0%} of the steps, sampled as in training; {level:.0%} intervals, resampled by question. "
        "n: rollouts, in a difference pairs of group means.",
        f"The paper says of its own runs of Qwen2.5-7B (another experiment): turns {theirs['turns_difference']} and accuracy "
        f"reward +{theirs['accuracy_reward_difference']} at the last step with the bonus against none.",
        f"Version {version}.",
    )
    title = "Turns and accuracy reward late in training, with the turn bonus and without"
    return Sheet("training_turn_bonus", title, pd.DataFrame(rows), pd.DataFrame(shown), notes)


def times(records: Sequence[Record], *, version: str, level: float = 0.95) -> Sheet:
    """Where a step's time goes: the mean of every part over the steps after the first, its share, and what came out of it.

    `low` and `high` are quantiles of the steps that hold `level` of them. Raises `Absent` where no run logged steps.
    """
    runs = [r for r in records if r.steps is not None and r.kind == "rl"]
    if not runs:
        raise Absent("no run of reinforcement learning has a record of its steps (steps.jsonl)")
    rows = []
    for run in runs:
        assert run.steps is not None
        later = run.steps.iloc[1:] if len(run.steps) > 1 else run.steps
        whole = later["timing_s/step"]
        rollouts = later["pimem/trajectories"]
        calls = later["pimem/rows"] * rollouts
        tokens = (later["pimem/prompt_tokens"] + later["pimem/response_tokens"]) * rollouts
        one = pd.Series(1.0, index=later.index)
        said: dict[tuple[str, str], tuple[pd.Series, pd.Series]] = {
            **{(part, "s"): (seconds, one) for part, seconds in parts_of(later).items()},
            ("whole step", "s"): (whole, one),
            ("rows of a step", "rows"): (calls, one),
            ("rows per second, generating", "1/s"): (calls, later["timing_s/gen"]),
            ("rows per second, whole step", "1/s"): (calls, whole),
            ("tokens per second, whole step", "1/s"): (tokens, whole),
            ("prompt tokens served from the prefix cache", "%"): (100 * later["pimem/cached_share"], one),
        }
        if MEMORY in later:
            said["memory while training, most allocated", "GB"] = later[MEMORY], one
        for (what, unit), (amount, over) in said.items():
            low, high = (amount / over).quantile([0.5 - level / 2, 0.5 + level / 2])
            row = {"stage": run.name, "title": run.title, "what": what, "unit": unit, "value": amount.sum() / over.sum()}
            share = amount.sum() / whole.sum() if unit == "s" else None
            rows.append(row | {"low": low, "high": high, "share": share, "n": len(later)})
    cells = pd.DataFrame(rows)
    shown = cells.assign(text=[_amount(r) for r in cells.itertuples()])
    shown = shown.pivot_table(index=["what", "unit"], columns="title", values="text", aggfunc="first", sort=False).fillna("")
    parts_only = cells[(cells["unit"] == "s") & (cells["what"] != "whole step")]
    most = parts_only.loc[parts_only.groupby("stage", sort=False)["value"].idxmax()]
    longest = [f"{r.title}: {r.what}, {r.share:.0%}" for r in most.itertuples()]
    notes = (
        f"Means over the steps after the first, which warms up; in brackets what holds {level:.0%} of the steps, and behind it "
        "the share of the whole step. `other`: what verl does not time.",
        f"What takes longest: {'; '.join(longest)}. n = {_span(cells['n'])} steps. Version {version}.",
    )
    return Sheet("training_times", "A step of training and its parts", cells, shown.reset_index(), notes)


def _amount(row: Any) -> str:
    digits = 0 if row.value >= 100 else 1 if row.unit != "s" else 2
    text = f"{row.value:,.{digits}f} [{row.low:,.{digits}f}, {row.high:,.{digits}f}]"
    return f"{text} {row.share:.0%}" if row.unit == "s" else text


def bonus_runs(records: Sequence[Record]) -> list[Record]:
    """Runs of PI-Mem with trajectories, in their order. Raises `Absent` where there are none, `DataError` for one without its
    specification."""
    runs = [r for r in records if r.kind == "rl" and r.method == "pi_mem"]
    if not runs:
        raise Absent("no run of reinforcement learning of PI-Mem has a record (trajectories.jsonl)")
    for run in runs:
        if run.turn_bonus is None:
            raise DataError(f"{run.folder}: its record does not say the turn bonus; run.json must lie beside its logs")
    return runs


def parts_of(steps: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each part of a step, a column a part in the order they are run, `other` last."""
    names = [c for c in steps if c.startswith("timing_s/") and c.count("/") == 1 and c != "timing_s/step"]
    parts = steps[names].fillna(0.0)
    rest = (steps["timing_s/step"] - parts.sum(axis=1)).clip(lower=0.0)
    short = {name: name.removeprefix("timing_s/") for name in names}
    return parts.rename(columns={name: PARTS.get(part, part) for name, part in short.items()}).assign(other=rest)


def _late(run: Record, share: float) -> pd.DataFrame:
    assert run.trajectories is not None
    steps = sorted(run.trajectories["step"].unique())
    first = steps[len(steps) - max(1, round(share * len(steps)))]
    return run.trajectories[run.trajectories["step"] >= first]


def _groups(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.groupby(["step", "sample"], as_index=False)[["turns", "accuracy"]].mean()


def _most(run: Record) -> float:
    assert run.trajectories is not None
    return float(1 + run.trajectories["turns"].max())


def _late_texts(title: str, row: dict[str, object]) -> dict[str, str]:
    sign = "+" if " - " in str(row["stage"]) else ""
    texts = {"Run": title, "Steps": str(row["steps"])}
    for name, digits in (("turns", 2), ("accuracy", 3)):
        values = [f"{row[key]:{sign}.{digits}f}" for key in (name, f"{name}_low", f"{name}_high")]
        texts[name.capitalize()] = f"{values[0]} [{values[1]}, {values[2]}]"
    return texts | {"n": f"{row['n']:,}", "Questions": f"{row['questions']:,}"}


def _span(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low}" if low == high else f"{low} to {high}"
