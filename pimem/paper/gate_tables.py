"""Tables of GRU-Mem's gates: score and time, where reading ended, what was updated, how large the memory grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from pimem import stats
from pimem.paper import gate_steps, published
from pimem.paper.gate_steps import CELL, EXITS
from pimem.paper.tables import FEW, Absent, method_name, tokens_short
from pimem.paper.training_records import Record
from pimem.paper.training_tables import Sheet

TASKS = {
    "hotpotqa": "HQA",
    "squad": "SQuAD",
    "niah_single_1": "SK-1",
    "niah_single_2": "SK-2",
    "niah_single_3": "SK-3",
    "niah_multikey_1": "MK-1",
    "niah_multikey_2": "MK-2",
    "niah_multikey_3": "MK-3",
    "niah_multiquery": "MQ",
    "niah_multivalue": "MV",
}
"""Our names of the tasks of the paper's Table 1, and its own."""

NOT_RUN = "not run"

_ROW = ("model", "prompts", "method", "variant")


@dataclass(frozen=True, eq=False)
class Measured:
    """What tables and figures of gates are made from."""

    scores: pd.DataFrame
    """As `pimem.paper.scores` has them."""
    steps: pd.DataFrame
    """As `pimem.paper.gate_steps` has them."""
    records: tuple[Record, ...] = ()
    """Trainings of GRU-Mem, for the sweep over alpha."""
    models: tuple[str, ...] = ()
    """The models in the order to show; the others are compared with the first one."""

    @cached_property
    def joined(self) -> pd.DataFrame:
        """Every step with its cell and score, cells in the order they are shown."""
        joined = gate_steps.join(self.scores, self.steps)
        models = [*self.models, *sorted(set(joined["model"]) - set(self.models))]
        ranks = {"task": list(TASKS), "model": models, "method": ["mem_agent", "rememr1", "gru_mem"]}
        at = {c: joined[c].map({name: i for i, name in enumerate(known)}).fillna(len(known)) for c, known in ranks.items()}
        # MemAgent first, then GRU-Mem without its exit gate, as in the paper's tables.
        order = pd.DataFrame({**at, "length": joined["length"], "within": -joined["within"], "plain": joined["variant"] == ""})
        by = ["task", "length", "within", "model", "method", "plain"]
        return joined.loc[order.sort_values(by, kind="stable").index].reset_index(drop=True)

    @cached_property
    def samples(self) -> pd.DataFrame:
        return gate_steps.samples(self.joined)


def by_task(made_of: Measured, *, version: str, level: float = 0.95) -> Sheet:
    """Table 1 of the GRU-Mem paper: score and seconds of every task, averaged over lengths, evidence anywhere.

    Raises `Absent` where every run has its evidence in a first share of the context.
    """
    samples = made_of.samples[made_of.samples["within"] == 1]
    if samples.empty:
        raise Absent("no run has its evidence anywhere in the context")
    rows = []
    for key, part in samples.groupby([*_ROW, "task"], sort=False):
        groups, clusters = part["length"].tolist(), part["cluster"].tolist()
        score = stats.macro_mean(part["score"].tolist(), groups, clusters, level)
        seconds = part.groupby("length")["seconds"].mean().mean()
        facts = dict(zip((*_ROW, "task"), key, strict=True)) | {"lengths": " ".join(map(str, sorted(set(groups))))}
        facts |= {"value": 100 * score.value, "low": 100 * score.low, "high": 100 * score.high, "seconds": seconds}
        rows.append(facts | {"n": len(part), "questions": score.clusters, "failed": int((part["status"] == "failed").sum())})
    cells = pd.DataFrame(rows)
    tasks = TASKS | {task: task for task in dict.fromkeys(cells["task"]) if task not in TASKS}
    shown = []
    for (model, _prompts, method, variant), row in cells.groupby(list(_ROW), sort=False):
        at = row.set_index("task")
        texts = {t: f"{at.value[t]:.1f} [{at.low[t]:.1f}, {at.high[t]:.1f}], {at.seconds[t]:.1f} s" for t in at.index}
        shown.append(
            {"Model": model, "Method": method_name(method, variant)} | {n: texts.get(t, NOT_RUN) for t, n in tasks.items()}
        )
    notes = (
        f"Score in percent under each task's own metric with its {level:.0%} interval over questions, then the mean seconds of "
        "a sample; unweighted means over the lengths in the csv. A failed sample scores 0.",
        SECONDS,
        *few(cells),
        f"Version {version}.",
    )
    return Sheet("gates_by_task", "GRU-Mem and MemAgent: score and time by task", cells, pd.DataFrame(shown), notes)


SECONDS = (
    "Seconds are those of a sample's calls, which follow one another, on the machine of the manifest; other samples shared the "
    "engine, so they compare methods of one run and are no latency of a single question. Tokens and steps depend on no machine."
)


def score_and_time(made_of: Measured, *, version: str, level: float = 0.95) -> Sheet:
    """Tables 2 and 4 of the GRU-Mem paper and Figures 11 to 20: score, time and what was read, by length and place of evidence.

    `speed_up` is MemAgent's mean seconds over this method's, on the same samples; empty where MemAgent did not run there.
    """
    rows, shown = [], []
    samples = made_of.samples
    for key, part in samples.groupby(list(CELL), sort=False):
        facts = dict(zip(CELL, key, strict=True))
        score = stats.mean(part["score"].tolist(), part["cluster"].tolist(), level)
        seconds = stats.mean(part["seconds"].tolist(), part["cluster"].tolist(), level)
        facts |= {"value": 100 * score.value, "low": 100 * score.low, "high": 100 * score.high}
        facts |= {"seconds": seconds.value, "seconds_low": seconds.low, "seconds_high": seconds.high}
        means = {c: part[c].mean() for c in ("steps", "possible", "prompt_tokens", "generated_tokens")}
        facts |= means | {"n": len(part), "questions": score.clusters, "failed": int((part["status"] == "failed").sum())}
        facts["speed_up"] = _speed_up(samples, part, facts)
        rows.append(facts)
        texts = {
            "Seconds": f"{seconds.value:.2f} [{seconds.low:.2f}, {seconds.high:.2f}]",
            "Faster than MemAgent": "" if facts["speed_up"] is None else f"{facts['speed_up']:.2f} x",
            "Chunks read": f"{means['steps']:.1f} of {means['possible']:.1f}",
            "Tokens read": f"{means['prompt_tokens']:,.0f}",
            "generated": f"{means['generated_tokens']:,.0f}",
        }
        shown.append(
            place_of(facts)
            | {f"Score [{level:.0%}]": f"{100 * score.value:.1f} [{100 * score.low:.1f}, {100 * score.high:.1f}]"}
            | texts
            | {"n": f"{len(part)}"}
        )
    cells = pd.DataFrame(rows)
    notes = (f"Means of a sample; {level:.0%} intervals over questions.", SECONDS, *few(cells), f"Version {version}.")
    return Sheet(
        "gates_score_and_time", "Score and time by length and place of the evidence", cells, pd.DataFrame(shown), notes
    )


def updates(made_of: Measured, *, version: str, level: float = 0.95) -> Sheet:
    """How often the update gate is right, on chunks with and without evidence (Figures 8a and 8b).

    Raises `Absent` where no run has gates.
    """
    cells = gate_steps.updates(made_of.joined, level)
    if cells.empty:
        raise Absent("no run of GRU-Mem, so there is no update gate")
    shown = []
    for _, row in cells.groupby(list(CELL), sort=False):
        texts = {}
        for name, evidence in (("With evidence: yes", 1), ("Without: no", 0)):
            found = row[row["evidence"] == evidence]
            for r in found.itertuples():
                texts[name] = f"{r.value:.1f} [{r.low:.1f}, {r.high:.1f}]"
                texts[f"{name.partition(':')[0]}, chunks"] = f"{r.n:,}"
        shown.append(place_of(row.iloc[0].to_dict()) | texts | {"Malformed": f"{row['malformed'].sum():,}"})
    notes = (
        f"Percent of chunks judged rightly with {level:.0%} intervals over questions; a gate that cannot be read is wrong, a "
        "call that failed is left out. A method that stopped early has judged fewer chunks.",
        *few(cells),
        f"Version {version}.",
    )
    return Sheet(
        "gates_updates", "Update gate: right decisions on chunks with and without evidence", cells, _frame(shown), notes
    )


def exits(made_of: Measured, *, version: str, level: float = 0.95) -> Sheet:
    """Where reading ended (Figures 7, 21 to 23): shares of `EXITS`, and the deviation in chunks.

    Raises `Absent` where no run has gates.
    """
    frame = gate_steps.exits(made_of.joined)
    if frame.empty:
        raise Absent("no run of GRU-Mem, so there is no exit gate")
    rows, shown = [], []
    for key, part in frame.groupby(list(CELL), sort=False):
        facts = dict(zip(CELL, key, strict=True))
        exact = stats.mean((part["kind"] == "exact").astype(float).tolist(), part["cluster"].tolist(), level)
        shares = {kind: 100 * (part["kind"] == kind).mean() for kind in EXITS}
        facts |= shares | {"exact_low": 100 * exact.low, "exact_high": 100 * exact.high}
        gaps = part["deviation"].dropna().astype(float)
        facts |= {
            "deviation": gaps.mean(),
            "deviation_absolute": gaps.abs().mean(),
            "n": len(part),
            "questions": exact.clusters,
        }
        rows.append(facts)
        texts = {"exact": f"{shares['exact']:.1f} [{100 * exact.low:.1f}, {100 * exact.high:.1f}]"}
        texts |= {kind: f"{shares[kind]:.1f}" for kind in EXITS[1:]}
        for name, value in (("Deviation", facts["deviation"]), ("absolute", facts["deviation_absolute"])):
            texts[name] = "" if pd.isna(value) else f"{value:{'+' if name == 'Deviation' else ''}.2f}"
        shown.append(place_of(facts) | texts | {"n": f"{len(part)}"})
    cells = pd.DataFrame(rows)
    notes = (
        f"Percent of samples, the exact ones with their {level:.0%} interval: exact at the chunk with the last evidence, "
        "early before, late behind it; never: the gate did not say end up to the last chunk. Deviation: mean of the exit minus "
        "the chunk with the last evidence, in chunks; a gate that never spoke counts as the last chunk. Where the exit gate is "
        "off, this is what it said.",
        *few(cells),
        f"Version {version}.",
    )
    return Sheet("gates_exits", "Exit gate: where reading ended", cells, pd.DataFrame(shown), notes)


def memory(made_of: Measured, *, version: str, level: float = 0.95) -> Sheet:
    """Memory size after every step (Figure 6): the csv has every step, the table the first, the middle and the last one."""
    cells = gate_steps.memory(made_of.joined, level)
    if cells.empty:
        raise Absent("no step has been made, so no memory either")
    shown = []
    for _, row in cells.groupby(list(CELL), sort=False):
        at = row.set_index("step")
        last = int(row["step"].max())
        texts = {}
        for name, step in (("First step", 1), ("Middle", -(-last // 2)), ("Last", last)):
            r = at.loc[step]
            texts[name] = f"{r['value']:.0f} [{r['low']:.0f}, {r['high']:.0f}], n = {r['n']:.0f}"
        shown.append(place_of(row.iloc[0].to_dict()) | texts | {"Largest": f"{row['most'].max():,}", "Steps": f"{last}"})
    notes = (
        f"Tokens after a step, mean and {level:.0%} interval over the n samples that came to it: where an exit gate ends the "
        "reading, later steps are of other samples than earlier ones.",
        *few(cells[cells["step"] == 1]),
        f"Version {version}.",
    )
    return Sheet("gates_memory", "Memory size, step by step", cells, pd.DataFrame(shown), notes)


def printed(made_of: Measured, *, version: str, level: float = 0.95) -> Sheet:
    """What the GRU-Mem paper prints in Tables 1 and 2, where it is known; another experiment than ours."""
    frame = pd.concat([published.load("grumem_table1"), published.load("grumem_table2")], ignore_index=True)
    unit = frame["metric"].map({"performance": " %", "latency": " s"})
    frame = frame.assign(
        text=(frame["value"] + unit).where(frame["number"].notna(), ""),
        setting=frame["setting"].str.removeprefix("last evidence in the ").replace("", "anywhere"),
    )
    keys = ["model", "method", "setting"]
    shown = frame.pivot_table(
        index=keys, columns="column", values="text", aggfunc=lambda v: ", ".join(t for t in v if t), sort=False
    )
    shown = shown.reindex(columns=list(dict.fromkeys(frame["column"]))).fillna("").reset_index()
    shown = shown.rename(columns={"model": "Model", "method": "Method", "setting": "Evidence"})
    cells = frame[["model", "method", "setting", "column", "metric", "unit", "value", "note"]]
    notes = (
        "GRU-Mem paper (arXiv 2602.10560), Tables 1 and 2, only the cells that are known here; averages over its lengths, its "
        "own models, machines and samples. Its Table 4 and its figures are known in words alone.",
        f"Version {version}.",
    )
    return Sheet("gates_printed", "GRU-Mem and MemAgent as printed in the GRU-Mem paper", cells, shown, notes)


def _speed_up(samples: pd.DataFrame, part: pd.DataFrame, facts: dict[str, Any]) -> float | None:
    same = samples["method"] == "mem_agent"
    for column in (c for c in CELL if c not in ("method", "variant")):
        same &= samples[column] == facts[column]
    both = samples[same].merge(part, on="sample", suffixes=("_before", ""))
    if facts["method"] == "mem_agent" or both.empty or not both["seconds"].sum():
        return None
    return float(both["seconds_before"].sum() / both["seconds"].sum())


def place(within: float) -> str:
    """Where the evidence is, in words."""
    return "anywhere" if within == 1 else f"first {100 * within:g} %"


def length_text(length: int, unit: str) -> str:
    return f"{length} docs" if unit == "documents" else tokens_short(length)


def place_of(facts: dict[str, Any]) -> dict[str, str]:
    return {
        "Task": TASKS.get(facts["task"], facts["task"]),
        "Length": length_text(facts["length"], facts["unit"]),
        "Evidence": place(facts["within"]),
        "Model": facts["model"],
        "Method": method_name(facts["method"], facts["variant"]),
    }


def _frame(rows: Sequence[dict[str, str]]) -> pd.DataFrame:
    """Rows that may lack a column, the columns in the order of the fullest row."""
    full = max(rows, key=len)
    return pd.DataFrame(rows).reindex(columns=[*full, *(c for row in rows for c in row if c not in full)]).fillna("")


def few(cells: pd.DataFrame) -> list[str]:
    if cells["questions"].min() >= FEW:
        return []
    return [f"Fewer than {FEW} questions: such a cell shows that the chain works and ranks no method."]
