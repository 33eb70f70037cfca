"""The authors' released evaluation records, scored by our metrics.

Unverified: written from what the released evaluation scripts write and tried on a sample made by hand; nobody has run it on the
real files yet. Expected are records with `_id`, `input`, `answers` or `answer`, `response`, `judge_sub_em`, and for PI-Mem
`parallel_passes_used`, `parallel_converged` and a `trace` of clipped texts, in `ruler_<task>_<length>/<configuration>.jsonl`, a
line each or indented, one after the other.

What a record does not hold is not made up: tokens read and written are 0 and named in the manifest, the coverage of a memory
that was clipped is empty. Samples that the released evaluation dropped for an empty response are put back as failed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pimem import provenance
from pimem.config import ModelSpec, RunSpec, TaskSpec, canonical_hash, method_spec
from pimem.errors import DataError
from pimem.journal import replace_file
from pimem.packages import sha256
from pimem.paper import scores as score_frames
from pimem.paper.render import pipes, write_texts
from pimem.paper.scores import collect, combine, primary_scores
from pimem.records import Call, CallKey, Sample, Sampling, Trace, Turn

PROFILE = "released"
UNVERIFIED = (
    "Unverified: this reader was written from the released evaluation scripts and tried on a sample made by hand; nobody has "
    "checked it against the authors' real files yet. Compare `theirs` with what the paper prints before trusting anything."
)
CLIPPED = "...(truncated)..."
"""Stands in the middle of a text that was clipped."""
NO_MEMORY = "No previous memory"
YARN = 4.0
"""The factor that the paper gives."""
NOT_RECORDED = ("prompt_tokens", "generated_tokens", "sampling_seed", "damaged")

TASKS = {
    "hqa": ("hotpotqa", "documents", "sub_em"),
    "qa_1": ("squad", "tokens", "sub_em"),
    "qa_2": ("hotpotqa", "tokens", "sub_em"),
    "vt": ("variable_tracking", "tokens", "multi_recall"),
    "cwe": ("common_words", "tokens", "multi_recall"),
    "fwe": ("frequent_words", "tokens", "multi_recall"),
}
"""Their name of a task: ours, what its length counts, its metric. Needle tasks have their own names."""

METHODS = {"vanilla": "vanilla", "yarn": "yarn", "rag": "rag", "memagent": "mem_agent", "pi-mem": "pi_mem"}
"""How the name of a configuration begins, and our name of its method."""

_FOLDER = re.compile(r"ruler_(\w+?)_(\d+)")


@dataclass(frozen=True)
class Imported:
    """What was read of a folder."""

    scores: pd.DataFrame
    """As `pimem.paper.scores` has them; the variant is the configuration's name."""
    cells: pd.DataFrame
    """A row a file: task, length, method, configuration, samples, missing, our scores and the authors' own, in percent."""
    files: dict[str, str]
    """SHA-256 of each file read."""


def read_folder(folder: Path, model: str, *, samples: int = 0, method: str | None = None) -> Imported:
    """Scores every `ruler_<task>_<length>/<configuration>.jsonl` under `folder`.

    `model`: what outputs call the model. `samples`: how many were asked for, where more than the largest `_id` tells. `method`:
    of all files, where their names do not say it. Raises `DataError` that names file and record, where there are no such files,
    a record lacks a field or has one of the wrong type, or an `_id` stands twice.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    found = [(path, match) for path in sorted(folder.rglob("*.jsonl")) if (match := _FOLDER.fullmatch(path.parent.name))]
    if not found:
        raise DataError(f"{folder}: no file like ruler_hqa_50/pi-mem-trained.jsonl below it; name the folder that holds those")
    frames, cells = [], []
    for path, match in found:
        frame, cell = _read_file(path, match[1], int(match[2]), model, samples, method)
        frames.append(frame)
        cells.append(cell)
    files = {str(path.relative_to(folder)): sha256(path) for path, _ in found}
    return Imported(combine(frames), pd.DataFrame(cells), files)


def _read_file(
    path: Path, task: str, length: int, model: str, wanted: int, method: str | None
) -> tuple[pd.DataFrame, dict[str, Any]]:
    if not task.startswith("niah_") and task not in TASKS:
        raise DataError(f"{path}: unknown task {task!r}; known are niah_* and {', '.join(TASKS)}")
    ours, unit, metric = TASKS.get(task, (task, "tokens", "multi_recall"))
    name = path.stem
    which = method or next((m for start, m in METHODS.items() if name.startswith(start)), None)
    if which is None:
        raise DataError(f"{path}: the name does not tell the method (it begins with none of {', '.join(METHODS)}); name it")
    records = list(_records(path))
    ids = [_field(record, "_id", int, f"{path}, record {at}") for at, record in enumerate(records, start=1)]
    if twice := {i for i in ids if ids.count(i) > 1}:
        raise DataError(f"{path}: _id {min(twice)} stands twice; the file holds two evaluations, keep one of them")
    if not records:
        raise DataError(f"{path}: no records")
    traces, asked, unclear = [], [], set()
    for i, record in zip(ids, records, strict=True):
        trace, sample, clipped = _as_ours(record, f"{ours}-{length}-{i}", which, f"{path}, _id {i}")
        traces.append(trace)
        asked.append(sample)
        if clipped:
            unclear.add(sample.id)
    missing = sorted(set(range(max(wanted, max(ids) + 1))) - set(ids))
    for i in missing:
        sample_id = f"{ours}-{length}-{i}"
        traces.append(Trace(sample_id, which, "", "failed", failure="not among the released records"))
        asked.append(Sample(sample_id, f"missing-{ours}-{i}", "?", ("?",), np.zeros(0, np.uint32)))
    weights = ModelSpec(model, yarn=YARN if which == "yarn" else 1.0)
    params = {"unit": unit} if ours == "hotpotqa" else {}
    spec = RunSpec(method_spec(which), weights, TaskSpec(ours, length, params=params), prompts=PROFILE)
    form: Any = "phrase" if which in ("vanilla", "yarn", "rag") else "boxed"
    run = canonical_hash([sha256(path), wanted, which])
    frame = collect(traces, asked, spec, run=run, profile=PROFILE, form=form, metric=metric, unit=unit, variant=name)
    frame.loc[frame["sample"].isin(unclear), "coverage"] = float("nan")
    score = primary_scores(frame)
    theirs = [float(r["judge_sub_em"]) for r in records if isinstance(r.get("judge_sub_em"), int | float)]
    cell = {
        "task": ours,
        "length": length,
        "method": which,
        "configuration": name,
        "samples": len(frame),
        "missing": len(missing),
    }
    cell |= {
        "metric": metric,
        "ours": 100 * score.mean(),
        "ours_without_missing": 100 * score[frame["status"] == "answered"].mean(),
    }
    cell |= {
        "strict": 100 * frame["sub_em_strict"].mean(),
        "theirs": 100 * sum(theirs) / len(theirs) if theirs else float("nan"),
    }
    return frame, cell | {
        "turns": frame.loc[frame["status"] == "answered", "turns"].mean(),
        "coverage": 100 * frame["coverage"].mean(),
    }


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects one after the other, on a line each or indented over many."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text: {error}") from None
    decoder, number = json.JSONDecoder(), 0
    at = _skip(text, 0)
    while at < len(text):
        number += 1
        try:
            record, at = decoder.raw_decode(text, at)
        except ValueError as error:
            raise DataError(f"{path}: record {number} is not JSON ({error}); fetch the file again") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}: record {number} is no object but {type(record).__name__}")
        yield record
        at = _skip(text, at)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _field(record: Mapping[str, Any], name: str, kind: type | tuple[type, ...], where: str) -> Any:
    value = record.get(name)
    if name not in record or not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        said = "is missing" if name not in record else f"is {type(value).__name__}"
        raise DataError(f"{where}: field {name!r} {said}; expected {' or '.join(k.__name__ for k in kinds)}")
    return value


def _as_ours(record: Mapping[str, Any], name: str, method: str, where: str) -> tuple[Trace, Sample, bool]:
    """A record as a trace and its sample, and whether its memory was clipped."""
    question = _field(record, "input", str, where)
    response = _field(record, "response", str, where)
    golds = record["answers"] if "answers" in record else _field(record, "answer", (list, str), where)
    golds = [golds] if isinstance(golds, str) else golds
    if not isinstance(golds, list) or not golds or not all(isinstance(g, str) and g.strip() for g in golds):
        raise DataError(f"{where}: the answers must be a list of texts that are not blank, got {golds!r}")
    trace = Trace(name, method, question, "answered", response=response)
    trace.last = _call(name, 0, "final", 0)
    kept = record.get("trace")
    clipped = method not in ("vanilla", "yarn", "rag")
    if method == "pi_mem":
        _turns(trace, _field(record, "trace", dict, where), where)
        trace.turns_used = _field(record, "parallel_passes_used", int, where)
        trace.converged = _field(record, "parallel_converged", bool, where)
        if len(trace.turns) != trace.turns_used:
            raise DataError(f"{where}: parallel_passes_used is {trace.turns_used} but the trace has {len(trace.turns)} passes")
        clipped = CLIPPED in trace.memory
    elif isinstance(kept, dict) and isinstance(kept.get("context_token_len_before_truncation"), int):
        trace.context_tokens = kept["context_token_len_before_truncation"]
    # The same question at another length is the same cluster, whatever its number.
    cluster = canonical_hash(question)
    return trace, Sample(name, cluster, question, tuple(golds), np.zeros(0, np.uint32)), clipped


def _turns(trace: Trace, kept: Mapping[str, Any], where: str) -> None:
    """Fills in chunks, turns and memory of PI-Mem from a record's trace."""
    trace.chunks = _field(kept, "num_chunks", int, f"{where}: trace")
    trace.context_tokens = _field(kept, "context_token_len_before_truncation", int, f"{where}: trace")
    final = _field(kept, "final", dict, f"{where}: trace")
    memory = _field(final, "memory", str, f"{where}: trace.final")
    trace.memory = "" if memory.strip() == NO_MEMORY else memory
    for number, one in enumerate(_field(kept, "passes", list, f"{where}: trace"), start=1):
        at = f"{where}: trace.passes[{number - 1}]"
        turn = Turn(number, _field(one, "global_memory_before", str, at), _field(one, "global_memory_after", str, at))
        chunks = _field(_field(one, "chunk_phase", dict, at), "chunks", list, f"{at}.chunk_phase")
        for chunk in chunks:
            index = _field(chunk, "chunk_index", int, f"{at}.chunk_phase.chunks")
            read = _call(trace.sample, number, "read", index)
            selected = _field(chunk, "has_new_info", bool, f"{at}.chunk_phase.chunks[{index}]")
            said = chunk.get("response")
            # Theirs takes everything without a no for a yes; which it was is in what was said.
            read.check = "failed" if said is None else "no" if not selected else "yes" if _says_yes(said) else "malformed"
            turn.reads.append(read)
            turn.selected += [index] if selected else []
        if one.get("merge_phase"):
            turn.merges = [_call(trace.sample, number, "merge", 0)]
        trace.turns.append(turn)


def _says_yes(text: Any) -> bool:
    return isinstance(text, str) and "<check>yes</check>" in text.lower()


def _call(sample: str, turn: int, phase: Any, index: int) -> Call:
    return Call(CallKey(sample, turn, phase, index), "", Sampling(0))


def write(imported: Imported, folder: Path, source: Path) -> list[Path]:
    """scores.csv, cells as csv and md, and a manifest, under `folder`; returns the files. Raises `StoreError`."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = imported.cells.round(2).fillna("").astype(str)
    notes = [
        UNVERIFIED,
        "Traces released by the authors of the paper: their models, prompts and samples; nothing of it was generated here. "
        "ours: our metrics on their responses, where a sample without one scores 0; theirs: the mean of `judge_sub_em` over "
        "the records there are.",
        "coverage: only over memories that were not clipped when the traces were written.",
    ]
    text = [
        "# Released traces, scored here",
        "",
        *pipes(list(shown), shown.to_numpy().tolist()),
        "",
        *(f"- {n}" for n in notes),
        "",
    ]
    csv = imported.cells.to_csv(index=False, lineterminator="\n", float_format="%.4f")
    made = [score_frames.write(imported.scores, folder / "scores.csv")]
    made += write_texts(folder, "released_cells", {"csv": csv, "md": "\n".join(text)})
    about = {
        **provenance.collect(),
        "source": source.name,
        "verified": False,
        "not_recorded": NOT_RECORDED,
        "read": imported.files,
    }
    replace_file(
        folder / "manifest.json",
        json.dumps({**about, "files": {p.name: sha256(p) for p in made}}, indent=1, default=str) + "\n",
    )
    return [*made, folder / "manifest.json"]
