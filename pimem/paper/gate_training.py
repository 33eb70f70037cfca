"""Training against none (Figure 9 of the GRU-Mem paper), and the weight alpha of the trajectory's advantage (Figure 8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from pimem import stats
from pimem.paper import style
from pimem.paper.gate_tables import NOT_RUN, Measured, few, place_of
from pimem.paper.tables import Absent
from pimem.paper.training_records import Record
from pimem.paper.training_tables import Sheet

ALPHA = 0.9
"""What the paper trains with, and a run that names none."""

PAPER = (1.0, 0.9, 0.5)
"""The paper's sweep (Figure 8)."""

LATE = 0.25
"""Share of a run's steps, its last ones, that the table is over."""

CURVES = {
    "update": "right update gates (percent)",
    "exit": "exit reward",
    "format": "trajectories in form (percent)",
    "accuracy": "accuracy reward",
    "response_tokens": "tokens generated",
    "turns": "chunks read",
}
"""What is drawn over the steps. Every turn's update reward is 1 or -1, so that its mean tells how many gates were right."""


def models(made_of: Measured, *, version: str, level: float = 0.95) -> Sheet:
    """Every other model against the first one on the same samples, cell by cell, with the exact McNemar test where it applies.

    Raises `Absent` where only one model was run.
    """
    known = set(made_of.samples["model"])
    names = [m for m in made_of.models if m in known] + sorted(known - set(made_of.models))
    if len(names) < 2:
        raise Absent(f"only {names[0]} was run; training against none needs two models (parameter `models`)")
    first, *others = names
    where = ["task", "unit", "length", "within", "prompts", "method", "variant"]
    base = made_of.samples[made_of.samples["model"] == first]
    rows, shown = [], []
    for other in others:
        both = made_of.samples[made_of.samples["model"] == other].merge(base, on=[*where, "sample"], suffixes=("", "_first"))
        for key, part in both.groupby(where, sort=False):
            paired = stats.paired(part["score"].tolist(), part["score_first"].tolist(), part["cluster"].tolist(), level)
            gap = paired.difference
            facts = dict(zip(where, key, strict=True)) | {"model": other, "against": first}
            facts |= {"first": 100 * part["score_first"].mean(), "value": 100 * part["score"].mean()}
            facts |= {"difference": 100 * gap.value, "low": 100 * gap.low, "high": 100 * gap.high}
            facts |= {"p_mcnemar": paired.p_value, "n": gap.n, "questions": gap.clusters}
            rows.append(facts)
            test = "" if paired.p_value is None else f", p = {paired.p_value:.2g}"
            texts = {first: f"{facts['first']:.1f}", "this model": f"{facts['value']:.1f}"}
            texts["Difference"] = f"{facts['difference']:+.1f} [{facts['low']:+.1f}, {facts['high']:+.1f}]{test}"
            shown.append(place_of(facts) | texts | {"n": f"{gap.n}"})
    if not rows:
        raise Absent("the models have no cell in common")
    cells = pd.DataFrame(rows)
    notes = (
        f"Scores in percent and differences in points, with {level:.0%} intervals over questions and McNemar's exact p where "
        "scores are 0 or 1; each row is a test of its own. The paper compares training with none (Figure 9).",
        *few(cells),
        f"Version {version}.",
    )
    return Sheet("gates_models", f"Every model against {first}", cells, pd.DataFrame(shown), notes)


def alphas(made_of: Measured, *, version: str, level: float = 0.95) -> Sheet:
    """The sweep over alpha late in training: what was logged of each run, means over the last `LATE` of its steps.

    Raises `Absent` where no training of GRU-Mem has a record.
    """
    rows, shown = [], []
    runs = _runs(made_of)
    for run in runs:
        steps = _curves(run)
        late = steps.tail(max(1, round(LATE * len(steps))))
        facts: dict[str, Any] = {
            "run": run.name,
            "alpha": alpha_of(run),
            "steps": f"{late['step'].min()} to {late['step'].max()}",
        }
        facts |= {name: late[name].mean() for name in CURVES} | {"n": len(late)}
        rows.append(facts)
        texts = {CURVES[name]: "" if pd.isna(facts[name]) else f"{facts[name]:.3g}" for name in CURVES}
        shown.append({"Run": run.title, "alpha": f"{facts['alpha']:g}", "Steps": facts["steps"]} | texts)
    for alpha in sorted({*PAPER} - {alpha_of(run) for run in runs}, reverse=True):
        shown.append({"Run": "", "alpha": f"{alpha:g}", "Steps": NOT_RUN})
    notes = (
        f"Means over the last {LATE:.0%} of a run's steps, of rollouts sampled as in training. Right update gates on chunks "
        "with and without evidence, apart, are in the table of update gates, of each run's model.",
        f"Version {version}.",
    )
    return Sheet(
        "gates_alpha", "The sweep over alpha, late in training", pd.DataFrame(rows), pd.DataFrame(shown).fillna(""), notes
    )


def alpha_curves(made_of: Measured, *, version: str, level: float = 0.95) -> tuple[Figure, pd.DataFrame]:
    """Figures 8, 21 and 22 as far as trainings log them: `CURVES` over the steps, a line a run. Raises `Absent` as `alphas`."""
    runs = _runs(made_of)
    data = pd.concat([_curves(run).assign(run=run.name, alpha=alpha_of(run)) for run in runs], ignore_index=True)
    looks = list(style.METHODS.values())
    with style.use():
        figure = Figure(figsize=(8.3, 4.6), layout="constrained")
        grid = figure.subplots(2, 3)
        for axis, (name, label) in zip(grid.flat, CURVES.items(), strict=True):
            axis.set_title(label, loc="left")
            axis.set_xlabel("step")
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
            for number, run in enumerate(runs):
                look, part = looks[number % len(looks)], data[data["run"] == run.name]
                title = f"{run.title}, alpha {alpha_of(run):g}"
                axis.plot(part["step"], part[name], color=look.colour, ls=look.dashes, lw=look.width, label=title)
        handles, labels = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=3)
        figure.supxlabel(f"Version {version}.", fontsize=6.5, color="#555555", x=0.01, ha="left")
    return figure, data


def alpha_of(run: Record) -> float:
    """The weight of the trajectory's advantage that a run was trained with."""
    given = run.spec["reward"].get("alpha")
    return ALPHA if given is None else float(given)


def _runs(made_of: Measured) -> Sequence[Record]:
    runs = [r for r in made_of.records if r.kind == "rl" and r.method == "gru_mem" and r.steps is not None]
    if not runs:
        raise Absent("no run of reinforcement learning of GRU-Mem has a record")
    return sorted(runs, key=lambda r: (-alpha_of(r), r.name))


def _curves(run: Record) -> pd.DataFrame:
    """step and `CURVES`; empty values where a run did not log one."""
    assert run.steps is not None
    steps = run.steps

    def logged(name: str) -> pd.Series:
        return steps[name] if name in steps else pd.Series(float("nan"), index=steps.index)

    return pd.DataFrame(
        {
            "step": steps["step"],
            "update": 50 * (1 + logged("pimem/part/step")),
            "exit": logged("pimem/part/exit"),
            "format": 100 * logged("pimem/part/format"),
            "accuracy": logged("pimem/accuracy"),
            "response_tokens": logged("pimem/response_tokens"),
            "turns": logged("pimem/turns"),
        }
    )
