"""Per-sample scores as one tidy frame: the committed file from which every table and figure is recomputed.

One row a sample and run. Scores lie in 0..1; a score that does not exist for a row's metric or method is empty, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from pimem.config import RunSpec
from pimem.errors import DataError
from pimem.journal import replace_file
from pimem.records import Trace
from pimem.scoring import AnswerForm, score

TEXT = (
    "profile",
    "task",
    "unit",
    "model",
    "prompts",
    "method",
    "variant",
    "run",
    "sample",
    "cluster",
    "groups",
    "status",
    "metric",
)
"""`variant` tells apart runs of one method with other settings; `metric` names the primary score; `run` is the run's hash;
`groups` says which of its benchmark's groups a sample is in, "difficulty=easy;length=short"."""

COUNTS = (
    "length",
    "seed",
    "sampling_seed",
    "context_tokens",
    "chunks",
    "dropped_tokens",
    "turns",
    "converged",
    "calls",
    "prompt_tokens",
    "generated_tokens",
    "reads",
    "reads_yes",
    "reads_malformed",
    "merges",
    "damaged",
)
"""Whole numbers, 0 and up. `length` is in the task's `unit`; `turns` counts the closing all-no turn."""

SCORES = (
    "sub_em",
    "sub_em_strict",
    "em",
    "f1",
    "contains",
    "multi_recall",
    "accuracy",
    "accuracy_released",
    "extracted",
    "coverage",
)

LATER: dict[str, Any] = {"groups": "", "contains": None, "accuracy": None, "accuracy_released": None}
"""Columns that scores written before them lack, and what stands there then."""

GROUPS = ("difficulty", "length", "domain", "sub_domain")
"""What a sample's `meta` may say of its groups."""

COLUMNS = (*TEXT, *COUNTS, *SCORES)

RUN = ("profile", "task", "unit", "length", "model", "method", "variant", "run")
"""The columns that are the same for all samples of a run."""

_MAY_BE_BLANK = frozenset({"variant", "groups"})


class Asked(Protocol):
    """What must be known of a sample to score its trace; `pimem.records.Sample` and a run's own sample records fit."""

    @property
    def id(self) -> str: ...
    @property
    def cluster(self) -> str: ...
    @property
    def answers(self) -> tuple[str, ...]: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...


def collect(
    traces: Iterable[Trace],
    samples: Iterable[Asked],
    spec: RunSpec,
    *,
    run: str,
    profile: str,
    form: AnswerForm,
    metric: str,
    unit: str,
    variant: str = "",
) -> pd.DataFrame:
    """Scores every trace of one run. Raises `DataError` where traces and samples do not match one to one."""
    asked = {sample.id: sample for sample in samples}
    rows = []
    for trace in traces:
        if trace.sample not in asked:
            raise DataError(f"run {run}: trace of sample {trace.sample!r}, which is not among its samples or came twice")
        sample = asked.pop(trace.sample)
        rows.append(
            {
                "profile": profile,
                "task": spec.task.name,
                "unit": unit,
                "model": spec.model.path,
                "prompts": spec.prompts,
                "method": trace.method,
                "variant": variant,
                "run": run,
                "cluster": sample.cluster,
                "metric": metric,
                "groups": ";".join(f"{name}={sample.meta[name]}" for name in GROUPS if isinstance(sample.meta.get(name), str)),
                "length": spec.task.length,
                "seed": spec.task.seed,
                "sampling_seed": spec.sampling.seed,
                **_usage(trace),
                **score(trace, sample.answers, form, metric),
            }
        )
    if asked:
        raise DataError(
            f"run {run}: {len(asked)} samples have no trace, first {min(asked)!r}; finish the run before scoring it"
        )
    return validate(pd.DataFrame(rows).reindex(columns=list(COLUMNS)), f"run {run}")


def _usage(trace: Trace) -> dict[str, Any]:
    calls = trace.calls()
    done = [call.completion for call in calls if call.completion]
    reads = [call for turn in trace.turns for call in turn.reads]
    return {
        "sample": trace.sample,
        "status": trace.status,
        "context_tokens": trace.context_tokens,
        "chunks": trace.chunks,
        "dropped_tokens": trace.dropped_tokens,
        "turns": trace.turns_used,
        "converged": int(trace.converged),
        "calls": len(calls),
        "prompt_tokens": sum(c.prompt_tokens for c in done),
        "generated_tokens": sum(c.generated_tokens for c in done),
        "reads": len(reads),
        "reads_yes": sum(call.check == "yes" for call in reads),
        "reads_malformed": sum(call.check == "malformed" or call.well_formed is False for call in reads),
        "merges": sum(len(turn.merges) for turn in trace.turns),
        "damaged": trace.damaged,
    }


def validate(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """The frame with its columns and rows in order and its types exact. Raises `DataError` for what cannot be scores."""
    frame = frame.assign(**{column: value for column, value in LATER.items() if column not in frame.columns})
    if missing := [c for c in COLUMNS if c not in frame.columns]:
        raise DataError(f"{where}: columns missing: {', '.join(missing)}")
    if frame.empty:
        raise DataError(f"{where}: no scores")
    frame = frame.loc[:, list(COLUMNS)].reset_index(drop=True)
    for column in TEXT:
        values = frame[column]
        if values.isna().any() or (column not in _MAY_BE_BLANK and (values.astype(str) == "").any()):
            raise DataError(f"{where}: column {column!r} has an empty value")
        frame[column] = values.astype(str).astype(object)
    for column in (*COUNTS, *SCORES):
        try:
            numbers = pd.to_numeric(frame[column])
            frame[column] = numbers.astype("int64" if column in COUNTS else "float64")
        except (ValueError, TypeError) as error:
            raise DataError(f"{where}: column {column!r} holds something that is not a number: {error}") from None
        if column in COUNTS and len(cut := numbers[numbers != frame[column]]):
            raise DataError(f"{where}: column {column!r} holds {cut.iloc[0]}, which is no whole number")
        low, high = frame[column].min(), frame[column].max()
        if low < 0 or (column in SCORES and high > 1):
            raise DataError(f"{where}: column {column!r} is out of range: {low} to {high}")
    if unknown := set(frame["status"]) - {"answered", "failed"}:
        raise DataError(f"{where}: unknown status {min(unknown)!r}")
    if unknown := set(frame["metric"]) - set(SCORES):
        raise DataError(f"{where}: unknown metric {min(unknown)!r}")
    primary = primary_scores(frame)
    if primary.isna().any():
        row = frame[primary.isna()].iloc[0]
        raise DataError(f"{where}: sample {row['sample']!r} of run {row['run']} has no {row['metric']}")
    twice = frame.duplicated(["profile", "run", "sample"])
    if twice.any():
        row = frame[twice].iloc[0]
        raise DataError(f"{where}: sample {row['sample']!r} of run {row['run']} stands twice")
    mixed = frame.groupby(["profile", "run"], sort=True)[list(RUN)].nunique().max(axis=1)
    if (mixed > 1).any():
        raise DataError(f"{where}: run {mixed.idxmax()[1]} names more than one task, length, model or method")
    return frame.sort_values([*RUN, "sample"], kind="stable", ignore_index=True)


def primary_scores(frame: pd.DataFrame) -> pd.Series:
    """Each row's score under its own primary metric."""
    out = pd.Series(float("nan"), index=frame.index)
    for metric, rows in frame.groupby("metric").groups.items():
        out[rows] = frame.loc[rows, metric]
    return out


def combine(frames: Iterable[pd.DataFrame]) -> pd.DataFrame:
    """The scores of several runs as one frame. Raises `DataError` where a run stands in two of them, or there are none."""
    frames = list(frames)
    return validate(pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=list(COLUMNS)), "scores")


def write(frame: pd.DataFrame, path: str | Path) -> Path:
    """Writes valid scores as csv, whole or not at all; the same scores always give the same bytes. Raises `StoreError`."""
    path = Path(path)
    text = validate(frame, str(path)).to_csv(index=False, lineterminator="\n")
    replace_file(path, text)
    return path


def read(path: str | Path) -> pd.DataFrame:
    """Scores from csv. Raises `DataError` where the file is missing, damaged or holds impossible values."""
    raw = raw_csv(Path(path), "scores are written by the evaluation notebooks")
    for column in set(SCORES) & set(raw.columns):
        raw[column] = raw[column].replace("", None)
    return validate(raw, str(path))


def raw_csv(path: Path, hint: str) -> pd.DataFrame:
    """A csv file, every value as the text it is. Raises `DataError`, with the `hint` where there is no such file."""
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; {hint}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a csv file: {error}") from None
