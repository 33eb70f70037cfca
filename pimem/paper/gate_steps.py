"""GRU-Mem's own measurements (section 4 of its paper), from traces: what every step of a recurrent method did.

`steps_of` turns a trace into rows, one a step and one for the answer; they are committed beside the scores, and everything else
here computes from the two, without a model. Steps count from 1, sizes are tokens of the model's own tokenizer, times seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from pimem import stats
from pimem.errors import DataError
from pimem.journal import replace_file
from pimem.paper.scores import primary_scores, raw_csv
from pimem.records import Call, Sample, Trace
from pimem.tokens import holding, windows

STEPS = (
    *("run", "sample", "within", "step", "steps_possible", "last_evidence", "evidence", "gate", "exit"),
    *("memory_tokens", "prompt_tokens", "generated_tokens", "seconds"),
)
"""Columns of steps.csv. `within`: share of the context in which evidence was placed; `steps_possible`: chunks of the context;
`last_evidence`: the step that reads the last evidence; `evidence`: 1 where this step's chunk holds any; `gate` and `exit`: what
the update and the exit gate said, empty for methods without; `memory_tokens`: after the step. Step 0 is the final answer."""

NUMBERS = ("within", "step", "steps_possible", "last_evidence", "evidence", *STEPS[9:])

CELL = ("task", "unit", "length", "within", "model", "prompts", "method", "variant")
"""What one line of a table or figure stands for."""

EXITS = ("exact", "early", "late", "never", "failed")
"""How reading ended: at the last evidence, before, behind it, without an exit gate that said so, or by a failure."""

GATES = frozenset({"yes", "no", "malformed", "failed"})


def steps_of(
    sample: Sample, trace: Trace, chunk_tokens: int, count: Callable[[str], int], *, run: str, within: float
) -> Iterator[dict[str, Any]]:
    """The rows of one trace of a method that reads chunk after chunk; `count` gives the tokens of a memory.

    Raises `DataError` where the sample says nothing of where its evidence lies.
    """
    gold = holding(windows(trace.context_tokens, chunk_tokens), sample.evidence)
    if not gold:
        raise DataError(f"run {run}: sample {sample.id} has no evidence positions, so its gates cannot be judged")
    about = {"run": run, "sample": sample.id, "within": within, "steps_possible": trace.chunks, "last_evidence": max(gold) + 1}
    for turn in trace.turns:
        call = turn.reads[0]
        said = {"step": turn.number, "evidence": int(call.key.index in gold), "gate": call.check or "", "exit": turn.exit or ""}
        yield about | said | {"memory_tokens": count(turn.memory_out)} | _cost(call)
    # Of a sample that failed, too: it stays in every denominator.
    said = {"step": 0, "evidence": 0, "gate": "", "exit": ""}
    yield about | said | {"memory_tokens": count(trace.memory)} | _cost(trace.last)


def _cost(call: Call | None) -> dict[str, Any]:
    done = call.completion if call else None
    if done is None:
        return {"prompt_tokens": 0, "generated_tokens": 0, "seconds": 0.0}
    seconds = round(max(0.0, done.ended - done.started), 4)
    return {"prompt_tokens": done.prompt_tokens, "generated_tokens": done.generated_tokens, "seconds": seconds}


def validate(steps: pd.DataFrame, where: str) -> pd.DataFrame:
    """The rows with columns, order and types exact. Raises `DataError` for what cannot be steps."""
    if missing := [c for c in STEPS if c not in steps.columns]:
        raise DataError(f"{where}: columns missing: {', '.join(missing)}")
    if steps.empty:
        raise DataError(f"{where}: no steps")
    steps = steps.loc[:, list(STEPS)].copy()
    for column in NUMBERS:
        try:
            values = pd.to_numeric(steps[column])
        except (ValueError, TypeError) as error:
            raise DataError(f"{where}: column {column!r} holds something that is not a number: {error}") from None
        if values.isna().any() or values.min() < 0:
            raise DataError(f"{where}: column {column!r} has a value that is missing or below 0")
        steps[column] = values.astype("float64" if column in ("within", "seconds") else "int64")
    for column, known in (("gate", GATES | {""}), ("exit", {"continue", "end", "malformed", "failed", ""})):
        if unknown := set(steps[column]) - known:
            raise DataError(f"{where}: unknown {column} {min(unknown)!r}")
    twice = steps.duplicated(["run", "sample", "step"])
    if twice.any():
        row = steps[twice].iloc[0]
        raise DataError(f"{where}: step {row['step']} of sample {row['sample']} of run {row['run']} stands twice")
    return steps.sort_values(["run", "sample", "step"], kind="stable", ignore_index=True)


def write(steps: pd.DataFrame, path: Path) -> Path:
    """Writes valid steps as csv; the same steps always give the same bytes. Raises `StoreError`."""
    replace_file(path, validate(steps, str(path)).to_csv(index=False, lineterminator="\n"))
    return path


def read(path: Path) -> pd.DataFrame:
    """Steps from csv. Raises `DataError` where the file is missing, damaged or holds impossible values."""
    return validate(raw_csv(path, "steps are written by notebook 11_gates"), str(path))


def join(scores: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Every step with what its cell is and what its sample scored (0..1). Raises `DataError` for a step without its score."""
    about = ["task", "unit", "length", "model", "prompts", "method", "variant", "cluster", "status", "metric"]
    scored = scores[["run", "sample", *about]].assign(score=primary_scores(scores))
    both = steps.merge(scored, on=["run", "sample"], how="left", validate="many_to_one")
    if both["method"].isna().any():
        row = both[both["method"].isna()].iloc[0]
        raise DataError(f"steps of sample {row['sample']} of run {row['run']} have no score beside them")
    return both


def memory(joined: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Memory size after every step, a row a cell and step: mean, interval over questions, n samples that came to that step."""
    rows = []
    for key, part in _cells(joined[joined["step"] > 0]):
        for step, at in part.groupby("step"):
            estimate = stats.mean(at["memory_tokens"].tolist(), at["cluster"].tolist(), level)
            rows.append({**key, "step": step, **_said(estimate), "most": int(at["memory_tokens"].max())})
    return pd.DataFrame(rows)


def updates(joined: pd.DataFrame, level: float = 0.95) -> pd.DataFrame:
    """Accuracy of the update gate on chunks with and without evidence, percent, a row a cell and kind of chunk.

    yes is right where the chunk holds evidence, no where it holds none; a gate that cannot be read is wrong. Steps whose call
    failed are left out and counted.
    """
    rows = []
    for key, part in _cells(joined[joined["gate"].isin(GATES)]):
        for evidence in (1, 0):
            kind = part[part["evidence"] == evidence]
            read = kind[kind["gate"] != "failed"]
            failed = len(kind) - len(read)
            if read.empty:
                continue
            right = (read["gate"] == ("yes" if evidence else "no")).astype(float)
            said = _said(stats.mean(right.tolist(), read["cluster"].tolist(), level), 100)
            malformed = int((read["gate"] == "malformed").sum())
            rows.append({**key, "evidence": evidence, **said, "malformed": malformed, "failed": failed})
    return pd.DataFrame(rows)


def exits(joined: pd.DataFrame) -> pd.DataFrame:
    """Where the exit gate first said end, a row a sample of a method that has one: `kind` of `EXITS`, `deviation` in steps.

    The deviation is the exit minus the step that read the last evidence; a gate that never said end counts as one that did at
    the last chunk. Where the gate is off, it is what it would have done. Empty for a failed sample.
    """
    gated = joined[joined["method"] == "gru_mem"]
    rows = []
    for (run, sample), part in gated.groupby(["run", "sample"], sort=False):
        first = part.iloc[0]
        ended = part.loc[part["exit"] == "end", "step"]
        at = int(ended.iloc[0]) if len(ended) else int(first["steps_possible"])
        gap = at - int(first["last_evidence"])
        kind = "never" if ended.empty else "exact" if gap == 0 else "late" if gap > 0 else "early"
        failed = first["status"] == "failed"
        row = {**{c: first[c] for c in CELL}, "run": run, "sample": sample, "cluster": first["cluster"]}
        rows.append(row | {"kind": "failed" if failed else kind, "deviation": pd.NA if failed else gap})
    return pd.DataFrame(rows)


def samples(joined: pd.DataFrame) -> pd.DataFrame:
    """A row a sample: score, steps read, tokens, and the seconds of its calls, which follow one another."""
    kept = [*CELL, "run", "sample", "cluster", "status", "metric", "score"]
    spent = joined.groupby(kept, sort=False, dropna=False).agg(
        steps=("step", lambda s: int((s > 0).sum())),
        possible=("steps_possible", "max"),
        prompt_tokens=("prompt_tokens", "sum"),
        generated_tokens=("generated_tokens", "sum"),
        seconds=("seconds", "sum"),
    )
    return spent.reset_index()


def _cells(frame: pd.DataFrame) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    for key, part in frame.groupby(list(CELL), sort=False):
        yield dict(zip(CELL, key, strict=True)), part


def _said(estimate: stats.Estimate, scale: float = 1.0) -> dict[str, Any]:
    values = {name: scale * getattr(estimate, name) for name in ("value", "low", "high")}
    return {**values, "level": estimate.level, "how": estimate.how, "n": estimate.n, "questions": estimate.clusters}
