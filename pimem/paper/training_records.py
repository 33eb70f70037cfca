"""Training records: what a training leaves behind that tables and figures are made from, small enough to be committed.

`experiments/training/<name>/` holds, of one stage of a model (the base, its cold start, a run of reinforcement learning), what
there is of: `trajectories.csv` (a row a rollout), `steps.jsonl` (a row a step, with times), `history.jsonl` (a row a step of a
cold start), `judge.csv` (a row a held-out example), `scores.csv` (a row a sample of an evaluation), and `manifest.json`.

`python -m pimem.paper.training_records NAME FOLDER` keeps the folder of a finished or running training so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from pimem import paths, provenance
from pimem.errors import DataError, PimemError, StoreError
from pimem.journal import replace_file
from pimem.packages import sha256
from pimem.paper import scores as score_frames
from pimem.training import logs
from pimem.training.spec import RUN

FOLDER = Path("experiments") / "training"
"""Of the repository: where records are committed."""
HISTORY, JUDGED, SCORES, MANIFEST = "history.jsonl", "eval.jsonl", "scores.csv", "manifest.json"
"""As a training writes them; what the judge writes is kept as `judge.csv` and trajectories as `trajectories.csv`."""
COUNTS = (
    *("turns", "rows", "prompt_tokens", "cached_tokens", "response_tokens", "truncated", "checks", "positive", "malformed"),
    *("damaged", "retries", "memory_tokens", "chunks", "context_tokens"),
)
"""Whole numbers of a trajectory, 0 and up."""
VALUES = ("reward", "accuracy", "bonus", "advantage", "seconds")
FLAGS = ("failed", "converged", "kept")
TRAJECTORY = ("step", "sample", "session", *VALUES, *FLAGS, *COUNTS, "failure")
JUDGE = ("case", "number", "source", "prompt_tokens")
"""Columns of `judge.csv` before its scores; `number` counts the examples of a case, `source` is what counts once."""


@dataclass(frozen=True, eq=False)
class Record:
    """One stage of a model. A frame is None where there is none of the kind."""

    name: str
    folder: Path
    about: dict[str, Any]
    """title, after (the record whose weights it began with), spec, machine."""
    trajectories: pd.DataFrame | None = None
    """Columns `TRAJECTORY`, flags as 0 and 1."""
    steps: pd.DataFrame | None = None
    """A row a step, one column a number that was logged."""
    history: pd.DataFrame | None = None
    """step, loss, norm, rate, tokens, seconds."""
    judged: pd.DataFrame | None = None
    """Columns `JUDGE`, then scores in 0..1 (`extra` counts lines), empty where a case has no such score."""
    scores: pd.DataFrame | None = None
    """As `pimem.paper.scores` has them."""

    @property
    def title(self) -> str:
        """What tables and figures call it."""
        bonus = "" if self.turn_bonus is None else f" (λ = {self.turn_bonus:g})"
        return str(self.about.get("title") or f"{self.name}{bonus}")

    @property
    def kind(self) -> str:
        """rl, cold_start or model."""
        if self.trajectories is not None:
            return "rl"
        return "cold_start" if self.history is not None else "model"

    @property
    def spec(self) -> dict[str, Any]:
        """The specification of a run of reinforcement learning; empty where it is not known."""
        return self.about.get("spec") or {}

    @property
    def method(self) -> str:
        """The method that reinforcement learning trained; pi_mem where that is not known."""
        return str(self.spec.get("method", {}).get("method", "pi_mem"))

    @property
    def turn_bonus(self) -> float | None:
        """Lambda of equation 4, for a run of PI-Mem whose specification is known."""
        return float(self.spec["reward"]["turn_bonus"]) if self.spec and self.method == "pi_mem" else None


def records(folders: Sequence[str | Path] | None = None) -> list[Record]:
    """The records in these folders, or all that are committed: models first, then cold starts, then reinforcement
    learning, the largest turn bonus first.

    Raises `DataError` where a folder holds none, two have one name or title, or a file is damaged.
    """
    found = [Path(f).expanduser() for f in folders] if folders is not None else committed()
    made = [read(folder) for folder in found]
    for what in ("name", "title"):
        said = [getattr(record, what) for record in made]
        if twice := {one for one in said if said.count(one) > 1}:
            raise DataError(f"two training records have the {what} {min(twice)!r}; keep one of them under another")
    order = {"model": 0, "cold_start": 1, "rl": 2}
    return sorted(made, key=lambda r: (order[r.kind], -(r.turn_bonus or 0.0), r.name))


def committed() -> list[Path]:
    """Every folder of a committed record."""
    return sorted(path.parent for path in (paths.root() / FOLDER).glob(f"*/{MANIFEST}"))


def predecessor(record: Record, known: Sequence[Record]) -> Record | None:
    """The record it began with: the one it names, else for reinforcement learning the one cold start there is."""
    if named := record.about.get("after"):
        return next((r for r in known if r.name == named), None)
    starts = [r for r in known if r.kind == "cold_start"]
    return starts[0] if record.kind == "rl" and len(starts) == 1 else None


def read(folder: Path) -> Record:
    """The record in a folder, kept or as a training writes it. Raises `DataError` where there is none or it is damaged."""
    about = _json(folder / MANIFEST)
    if about is None:
        return distil(folder)
    for name, digest in about.get("files", {}).items():
        path = folder / name
        if not path.is_file() or sha256(path) != digest:
            raise DataError(
                f"{path}: missing, or not the file that {MANIFEST} was written for; restore it, or keep the run again"
            )
    here = set(about.get("files", {}))
    return Record(
        folder.name,
        folder,
        about,
        _trajectories(_csv(folder / "trajectories.csv"), folder) if "trajectories.csv" in here else None,
        _lines(folder / logs.STEPS),
        _lines(folder / HISTORY),
        _judged(_csv(folder / "judge.csv"), folder) if "judge.csv" in here else None,
        score_frames.read(folder / SCORES) if SCORES in here else None,
    )


def distil(folder: Path, judged: Path | None = None, scores: Path | None = None) -> Record:
    """The record of a training's own folder, as `pimem train` and the judge write it.

    `judged` is another file of the judge's, `scores` a file of scores. Raises `DataError` where nothing of all that is there.
    """
    rows = _lines(folder / logs.TRAJECTORIES)
    cases = _lines(judged or folder / JUDGED)
    evaluated = scores or folder / SCORES
    if judged is not None and cases is None:
        raise DataError(f"{judged}: no such file, or it is empty; the judge writes `eval.jsonl`")
    run, adapter = _json(folder / RUN), _json(folder / "adapter.json")
    about = {"spec": _portable((run or {}).get("spec")), "recipe": (adapter or {}).get("recipe")}
    about["machine"] = (adapter or {}).get("machine")
    record = Record(
        folder.name,
        folder,
        {k: v for k, v in about.items() if v},
        None if rows is None else _trajectories(rows, folder),
        _lines(folder / logs.STEPS),
        _lines(folder / HISTORY),
        None if cases is None else _judged(_spread(cases), folder),
        score_frames.read(evaluated) if scores or evaluated.is_file() else None,
    )
    if all(part is None for part in (record.trajectories, record.history, record.judged, record.scores)):
        raise DataError(
            f"{folder}: holds no record of a training: none of {logs.TRAJECTORIES}, {HISTORY}, {JUDGED}, {SCORES}, {MANIFEST}"
        )
    return record


def keep(record: Record, name: str, target: Path | None = None, **about: Any) -> Path:
    """Writes a record to `experiments/training/<name>`, or under `target`; `about` goes into its manifest. Returns the folder.

    What was kept there before is replaced. Raises `StoreError`.
    """
    folder = (target or paths.root() / FOLDER) / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    frames = {
        "trajectories.csv": record.trajectories,
        "judge.csv": record.judged,
        SCORES: record.scores,
        logs.STEPS: record.steps,
        HISTORY: record.history,
    }
    files = {}
    for file, frame in frames.items():
        path = folder / file
        if frame is None:
            path.unlink(missing_ok=True)
            continue
        if path.suffix == ".csv":
            text = frame.to_csv(index=False, lineterminator="\n")
        else:
            text = "".join(json.dumps(row) + "\n" for row in _rows(frame))
        replace_file(path, text)
        files[file] = sha256(path)
    said = {**record.about, **{k: v for k, v in about.items() if v}, "code": provenance.code_hash(), "files": files}
    replace_file(folder / MANIFEST, json.dumps(said, indent=1) + "\n")
    return folder


def _portable(spec: dict[str, Any] | None) -> dict[str, Any] | None:
    """A run's specification without the folders of the machine it ran on."""
    if spec is None:
        return None
    machines = {k: v for k, v in spec.get("machines", {}).items() if k not in ("questions", "evaluation")}
    model = {**spec["model"], "path": Path(spec["model"]["path"]).name} if Path(spec["model"]["path"]).is_absolute() else None
    return {**spec, "machines": machines, **({"model": model} if model else {})}


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{k: int(v) if k == "step" else v for k, v in row.items() if not pd.isna(v)} for row in frame.to_dict("records")]


def _json(path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{path}: damaged ({error}); restore it") from None


def _lines(path: Path) -> pd.DataFrame | None:
    if not path.is_file():
        return None
    try:
        rows = logs.read(path)
    except StoreError as error:
        raise DataError(str(error)) from None
    return pd.DataFrame(rows) if rows else None


def _csv(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, keep_default_na=False, na_values={c: [""] for c in _SCORED}, encoding="utf-8")
    except (ValueError, pd.errors.ParserError) as error:
        raise DataError(f"{path}: not a csv file: {error}") from None


_SCORED = ("check", "format", "copied", "exact", "kept", "extra", "boxed", "em", "sub_em", "recall", "exit", "query")


def _spread(cases: pd.DataFrame) -> pd.DataFrame:
    """The judge's lines with a column a score."""
    if "scores" not in cases or "case" not in cases:
        raise DataError("the judge's file has lines without `case` or `scores`; give what `pimem.training.judge` writes")
    frame = pd.DataFrame(cases["scores"].tolist()).assign(
        case=cases["case"], source=cases["source"], prompt_tokens=cases["prompt_tokens"]
    )
    return frame.assign(number=frame.groupby("case").cumcount())


def _judged(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    if missing := [c for c in JUDGE if c not in frame]:
        raise DataError(f"{folder}: the judge's records lack {', '.join(missing)}")
    names = [c for c in _SCORED if c in frame]
    if unknown := set(frame) - {*JUDGE, *_SCORED}:
        raise DataError(f"{folder}: the judge's records have a score {min(unknown)!r} that nothing here knows")
    shares = frame[[n for n in names if n != "extra"]]
    if not ((shares >= 0) & (shares <= 1) | shares.isna()).all(axis=None):
        raise DataError(f"{folder}: a score of the judge's lies outside 0..1")
    blank = frame["source"].astype(str) == ""
    own = frame["case"].astype(str) + " " + frame["number"].astype(str)
    return frame.assign(source=frame["source"].astype(str).where(~blank, own))[[*JUDGE, *names]]


def _trajectories(frame: pd.DataFrame, folder: Path) -> pd.DataFrame:
    if missing := [c for c in TRAJECTORY if c not in frame]:
        raise DataError(f"{folder}: its trajectories lack {', '.join(missing)}; they are not what this package's trainer logs")
    frame = frame.loc[:, list(TRAJECTORY)].assign(failure=frame["failure"].fillna(""))
    for column in ("step", "session", *COUNTS, *FLAGS, *VALUES):
        numbers = pd.to_numeric(frame[column], errors="coerce")
        if numbers.isna().any():
            raise DataError(f"{folder}: column {column!r} of its trajectories holds something that is not a number")
        frame[column] = numbers.round(6) if column in VALUES else numbers.astype("int64")
    if ((frame["accuracy"] < 0) | (frame["accuracy"] > 1)).any() or (frame[list(COUNTS)] < 0).any(axis=None):
        raise DataError(f"{folder}: a trajectory has an accuracy outside 0..1 or a negative count")
    twice = frame.duplicated(["step", "sample", "session"])
    if twice.any():
        row = frame[twice].iloc[0]
        raise DataError(f"{folder}: rollout {row['session']} of {row['sample']!r} stands twice in step {row['step']}")
    return frame.sort_values(["step", "sample", "session"], kind="stable", ignore_index=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Keeps the records of one stage of a model, so that tables and figures can be made from them anywhere."""
    parser = argparse.ArgumentParser(prog="python -m pimem.paper.training_records", description=main.__doc__)
    parser.add_argument("name", help="of the record")
    parser.add_argument("folder", type=Path, help="the training's own folder, or any folder for a model that was only judged")
    parser.add_argument("--judged", type=Path, help="the judge's eval.jsonl of this model, where it lies elsewhere")
    parser.add_argument("--scores", type=Path, help="scores.csv of an evaluation of this model")
    parser.add_argument("--after", help="name of the record whose weights this one began with")
    parser.add_argument("--title", help="what tables and figures call it")
    parser.add_argument("--machine", help="what it ran on")
    args = parser.parse_args(argv)
    try:
        record = distil(args.folder, args.judged, args.scores)
        print(keep(record, args.name, after=args.after, title=args.title, machine=args.machine))
    except PimemError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
