"""What the training notebook calls: the records of trainings, made into a version of tables and figures.

`paper_tables/training/<version>/` and `figures/training/<version>/` are made from the records in `experiments/training` alone,
so `pimem report training` makes them again without a model. A version is a date and a hash over the records' files, the
package's configurations and its code.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pimem import paths, provenance
from pimem.config import canonical_hash
from pimem.errors import DataError, EngineError
from pimem.journal import replace_file
from pimem.packages import sha256
from pimem.paper import hyperparameters, training_curves, training_runs, training_stages, training_tables
from pimem.paper.sheets import Outputs
from pimem.paper.training_records import MANIFEST, Record, committed, distil, keep, predecessor, records
from pimem.paper.versions import KINDS, latest

PROFILE = "training"
"""The name that `pimem report` knows these outputs by, and their folder."""
SHEETS = {
    "training_cases": training_tables.cases,
    "training_cases_all": training_tables.every_case,
    "training_workflows": training_tables.workflows,
    "training_turn_bonus": training_runs.turn_bonus,
    "training_times": training_runs.times,
    "s1_training": hyperparameters.table,
    "training_settings": hyperparameters.settings,
}
FIGURES = {
    "figure6_turn_reward": training_curves.turn_reward,
    "figure4_before_after": training_stages.before_after,
    "training_progress": training_curves.progress,
    "training_step_times": training_curves.step_times,
    "training_cold_start": training_curves.cold_start,
    "training_judged": training_stages.judged,
}
OUTPUTS = Outputs(PROFILE, SHEETS, FIGURES)


def publish(made_of: Sequence[Record], *, root: Path | None = None, level: float = 0.95) -> dict[str, Path]:
    """Makes the version of these records, or finds it where it is already made; returns its folder of each kind.

    Raises `DataError` for records that contradict each other, `StoreError` where something cannot be written.
    """
    root = root or paths.root()
    files = {record.name: _files(record) for record in made_of}
    configs = {p.name: sha256(p) for p in sorted(hyperparameters.launch.CONFIGS.glob("*.yaml"))}
    hashed = canonical_hash({"records": files, "configs": configs, "code": provenance.code_hash()}, 10)
    home = root / KINDS["tables"] / PROFILE
    same = sorted(home.glob(f"*-{hashed}")) if home.is_dir() else []
    name = same[0].name if same else f"{time.strftime('%Y-%m-%d', time.gmtime())}-{hashed}"
    folders = {kind: root / place / PROFILE / name for kind, place in KINDS.items()}
    if not all((folder / MANIFEST).is_file() for folder in folders.values()):
        # Whoever asked, it is made so.
        command = ["pimem", "report", PROFILE]
        OUTPUTS.make(made_of, folders, {**provenance.collect(command=command), "level": level, "records": files})
    for folder in folders.values():
        replace_file(folder.parent / "latest", folder.name + "\n")
    return folders


def rebuild(root: Path | None = None) -> list[Path]:
    """Makes the latest version again from its committed records, without a model; the first one where there is none yet.

    Returns the files. Raises `DataError` where a record is missing or not the one the version was made from.
    """
    root = root or paths.root()
    known = latest(PROFILE, root)
    if not known:
        folders = publish(records(), root=root)
        return [path for folder in folders.values() for path in sorted(folder.iterdir())]
    about = json.loads((known["tables"] / MANIFEST).read_text(encoding="utf-8"))
    here = {path.name: path for path in committed()}
    if missing := sorted(set(about["records"]) - set(here)):
        raise DataError(
            f"{known['tables']}: made from the training record(s) {', '.join(missing)}, which are not in experiments/training; "
            "keep them there with `python -m pimem.paper.training_records`"
        )
    made_of = records([here[name] for name in about["records"]])
    if changed := [r.name for r in made_of if _files(r) != about["records"][r.name]]:
        raise DataError(
            f"{known['tables']}: the record(s) {', '.join(changed)} changed since; run notebook 01_train for a new version"
        )
    about["rebuilt"] = {"code": provenance.code_hash(), "git": provenance.git()}
    return OUTPUTS.make(made_of, {kind: root / place / PROFILE / known["tables"].name for kind, place in KINDS.items()}, about)


class Training:
    """The trainings of these folders (None: all that are committed), and the tables and figures of them.

    A folder is a kept record's or a training's own, relative to the repository. Raises `DataError` for one that is neither,
    `StoreError` where the version cannot be written.
    """

    def __init__(self, folders: Sequence[str] | None = None):
        self.records = records([paths.root() / f for f in folders] if folders is not None else None)
        self.version = publish(self.records)

    def overview(self) -> pd.DataFrame:
        """A row a record: what it is, what it began with, and how much of each kind there is."""
        rows = []
        for record in self.records:
            first = predecessor(record, self.records)
            parts = {
                "rollouts": record.trajectories,
                "steps": record.steps if record.steps is not None else record.history,
                "judged": record.judged,
                "evaluated": record.scores,
            }
            rows.append(
                {"record": record.name, "title": record.title, "kind": record.kind, "after": first.name if first else ""}
                | {"machine": record.about.get("machine", "")}
                | {name: 0 if part is None else len(part) for name, part in parts.items()}
            )
        columns = ["record", "title", "kind", "after", "machine", "rollouts", "steps", "judged", "evaluated"]
        return pd.DataFrame(rows, columns=columns)

    def table(self, name: str) -> Any:
        """A table of the version, or a line that says what it lacks. Raises `DataError` for one that does not exist."""
        return OUTPUTS.show(self.version, name)

    def figure(self, name: str) -> Any:
        """A figure of the version, or a line that says what it lacks. Raises `DataError` for one that does not exist."""
        return OUTPUTS.show(self.version, name)

    def folders(self) -> str:
        """Where the version lies, a line a kind."""
        return "\n".join(f"{kind:8} {folder}" for kind, folder in self.version.items())


def train(config: str, out: str | Path, changes: Mapping[str, Any] | None = None, name: str | None = None) -> Path:
    """Trains in a process of its own, as `pimem train` does, printing what it says, and keeps its record; returns that folder.

    `out` is relative to the repository; a training that is there goes on from its checkpoint. `name`: of the record, else that
    of `out`. Raises `EngineError` where the training stops with an error, which stands in what was printed.
    """
    folder = paths.root() / out
    command = [sys.executable, "-u", "-m", "pimem.cli", "train", str(config), "--out", str(folder)]
    if changes:
        command += ["--set", *(f"{key}={json.dumps(value)}" for key, value in changes.items())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise EngineError(f"the training ended with exit code {process.returncode}; its last lines say why", retryable=False)
    machine = ", ".join(gpu["name"] for gpu in provenance.gpus()) or provenance.cpu()["name"]
    return keep(distil(folder), name or folder.name, machine=machine)


def _files(record: Record) -> dict[str, str]:
    """Hashes of a record's content; of a training's own folder those that it would be kept with."""
    if "files" in record.about:
        return dict(record.about["files"])
    frames = {"trajectories": record.trajectories, "steps": record.steps, "history": record.history}
    frames |= {"judged": record.judged, "scores": record.scores}
    return {name: canonical_hash({"csv": frame.to_csv()}) for name, frame in frames.items() if frame is not None}
