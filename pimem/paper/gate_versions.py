"""Versions of the tables and figures of gates: `paper_tables/<profile>_gates/<version>/` with its scores and steps, from which
`pimem report` makes everything again without a model, and `figures/<profile>_gates/<version>/`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pimem import paths, provenance
from pimem.config import canonical_hash
from pimem.errors import DataError
from pimem.journal import replace_file
from pimem.packages import sha256
from pimem.paper import gate_figures, gate_steps, gate_tables, gate_training
from pimem.paper import scores as score_frames
from pimem.paper.gate_tables import Measured
from pimem.paper.sheets import MANIFEST, Outputs
from pimem.paper.training_records import Record, committed, records
from pimem.paper.versions import KINDS, digest, latest

SUFFIX = "_gates"
"""Behind a profile's name: the name that `pimem report` knows these outputs by, and their folder."""

SCORES, STEPS = "scores.csv", "steps.csv"

SHEETS = {
    "gates_by_task": gate_tables.by_task,
    "gates_score_and_time": gate_tables.score_and_time,
    "gates_updates": gate_tables.updates,
    "gates_exits": gate_tables.exits,
    "gates_memory": gate_tables.memory,
    "gates_models": gate_training.models,
    "gates_alpha": gate_training.alphas,
    "gates_printed": gate_tables.printed,
}
FIGURES = {
    "gates_memory_by_step": gate_figures.memory,
    "gates_right_updates": gate_figures.updates,
    "gates_exit_positions": gate_figures.exits,
    "gates_alpha_curves": gate_training.alpha_curves,
}


def outputs(profile: str) -> Outputs:
    return Outputs(profile + SUFFIX, SHEETS, FIGURES)


def publish(
    scores: pd.DataFrame,
    steps: pd.DataFrame,
    *,
    models: Sequence[str] = (),
    root: Path | None = None,
    level: float = 0.95,
    **manifest: Any,
) -> dict[str, Path]:
    """Makes the version of these measurements, or finds it where it is already made; returns its folder of each kind.

    `models`: in the order to show, the one that others are compared with first. Trainings of GRU-Mem whose records are
    committed take part. Raises `DataError` for scores of several profiles and for steps without their scores, `StoreError`
    where something cannot be written.
    """
    root = root or paths.root()
    scores, steps = score_frames.validate(scores, "scores"), gate_steps.validate(steps, "steps")
    profiles = sorted(set(scores["profile"]))
    if len(profiles) != 1:
        raise DataError(f"scores of {len(profiles)} profiles ({', '.join(profiles)}): a version is of one")
    trained = _trained(committed())
    made_of = Measured(scores, steps, tuple(trained), tuple(models))
    content = [
        scores.to_csv(index=False),
        steps.to_csv(index=False),
        {r.name: r.about.get("files") for r in trained},
        [*models],
    ]
    hashed = canonical_hash([digest(scores), content], 10)
    home = root / KINDS["tables"] / (profiles[0] + SUFFIX)
    same = sorted(home.glob(f"*-{hashed}")) if home.is_dir() else []
    name = same[0].name if same else f"{time.strftime('%Y-%m-%d', time.gmtime())}-{hashed}"
    folders = {kind: root / place / (profiles[0] + SUFFIX) / name for kind, place in KINDS.items()}
    score_frames.write(scores, folders["tables"] / SCORES)
    gate_steps.write(steps, folders["tables"] / STEPS)
    if not all((folder / MANIFEST).is_file() for folder in folders.values()):
        about = {**provenance.collect(), **manifest, "level": level, "records": [r.name for r in trained], "models": [*models]}
        about |= {"made_of": {file: sha256(folders["tables"] / file) for file in (SCORES, STEPS)}}
        outputs(profiles[0]).make(made_of, folders, about)
    for folder in folders.values():
        replace_file(folder.parent / "latest", folder.name + "\n")
    return folders


def is_one(version: str | Path, root: Path | None = None) -> bool:
    """Whether `version`, a folder or a profile's name with `SUFFIX`, is a version of gates."""
    return (Path(version) / STEPS).is_file() or (str(version).endswith(SUFFIX) and bool(latest(str(version), root)))


def rebuild(version: str | Path, root: Path | None = None) -> list[Path]:
    """Makes a version's tables and figures again from its committed scores and steps; returns the files.

    Raises `DataError` where there is no such version, or a file or training record it was made from is missing or changed.
    """
    root = root or paths.root()
    folder = Path(version)
    if not (folder / STEPS).is_file():
        if "tables" not in (known := latest(str(version), root)):
            raise DataError(f"{version}: no folder with {STEPS} and no profile with a version of gates")
        folder = known["tables"]
    folder = folder.resolve()
    about = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    for file, wanted in about["made_of"].items():
        if sha256(folder / file) != wanted:
            raise DataError(f"{folder / file}: not the one its {MANIFEST} was written for; restore the file")
    here = {path.name: path for path in committed()}
    if missing := sorted(set(about["records"]) - set(here)):
        raise DataError(
            f"{folder}: made from the training record(s) {', '.join(missing)}, which are not in experiments/training"
        )
    made_of = Measured(
        score_frames.read(folder / SCORES),
        gate_steps.read(folder / STEPS),
        tuple(_trained([here[name] for name in about["records"]])),
        tuple(about["models"]),
    )
    about["rebuilt"] = {"code": provenance.code_hash(), "git": provenance.git()}
    home = folder.parent.name
    figures = (folder.parents[2] if folder.parents[1].name == KINDS["tables"] else root) / KINDS["figures"] / home / folder.name
    return outputs(home.removesuffix(SUFFIX)).make(made_of, {"tables": folder, "figures": figures}, about)


def _trained(folders: Sequence[Path]) -> list[Record]:
    return [r for r in records(folders) if r.kind == "rl" and r.method == "gru_mem"]
