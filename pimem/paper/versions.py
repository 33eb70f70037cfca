"""Versioned outputs: a folder of tables and one of figures a version, all of it recomputed from its own `scores.csv`.

`paper_tables/<profile>/<version>/` holds scores.csv, tables, comparisons and manifest.json; `figures/<profile>/<version>/` the
figures and a manifest. A version is a date and a hash over the runs that were scored (each run's hash covers its specification,
prompts, weights and data), how many samples of each, and the package's code. Manifests are written last: a folder without
one is unfinished.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from pimem import paths, provenance
from pimem.config import canonical_hash
from pimem.errors import DataError, StoreError, nearest
from pimem.journal import replace_file
from pimem.paper import comparison, figures, render, tables
from pimem.paper.cells import Absent, with_rows_before_rl
from pimem.paper.scores import read, validate, write

KINDS = {"tables": "paper_tables", "figures": "figures"}
"""What a version has a folder of, and where in the repository."""

_NAME = re.compile(r"\d{4}-\d{2}-\d{2}-[0-9a-f]{10}(?:-\d+)?")


def digest(scores: pd.DataFrame, code: str | None = None) -> str:
    """Ten hex digits over the runs scored, their sample counts and the package's code."""
    counts = {str(run): int(n) for run, n in scores.groupby("run").size().items()}
    return canonical_hash({"runs": counts, "code": code or provenance.code_hash()}, 10)


def publish(
    scores: pd.DataFrame,
    *,
    root: Path | None = None,
    same_model: Mapping[str, str] | None = None,
    before_rl: Mapping[str, str] | None = None,
    level: float = 0.95,
    **manifest: Any,
) -> dict[str, Path]:
    """Makes the version of these scores, or finds it where it is already made; returns its folder of each kind.

    The scores are of one profile. `same_model` maps our models to the paper's where they are the same; `before_rl` maps models
    to what reinforcement learning made of them, so that one table has both. Keyword arguments go into the manifest beside the
    provenance of this process. Another set of scores of the same runs and code (a failed sample that was tried again, say)
    becomes a version of its own, with a number behind its name. Raises `DataError` for scores of several profiles,
    `StoreError` where something cannot be written.
    """
    scores = validate(scores, "scores")
    profiles = sorted(set(scores["profile"]))
    if len(profiles) != 1:
        raise DataError(f"scores of {len(profiles)} profiles ({', '.join(profiles)}): a version is of one")
    root = root or paths.root()
    folders = _claim(root, profiles[0], digest(scores), scores)
    if not all((folder / "manifest.json").is_file() for folder in folders.values()):
        about = {**provenance.collect(), **manifest, "level": level}
        about |= {"same_model": dict(same_model or {}), "before_rl": dict(before_rl or {})}
        _make(scores, folders, about)
    for folder in folders.values():
        replace_file(folder.parent / "latest", folder.name + "\n")
    return folders


def rebuild(version: str | Path, root: Path | None = None) -> list[Path]:
    """Makes a version's tables and figures again from its committed scores; returns the files.

    `version` is its folder under `paper_tables/`, or a profile, whose latest version is taken. Needs no model and no data.
    Raises `DataError` where there is no such version, or its scores are missing, damaged or not those of its manifest.
    """
    root = root or paths.root()
    folder = Path(version)
    if not (folder / "scores.csv").is_file():
        known = latest(str(version), root)
        if "tables" not in known:
            made = [p.parent.name for p in sorted((root / KINDS["tables"]).glob("*/latest"))]
            hint = nearest(str(version), made) if made else "No profile has one yet; `pimem run PROFILE` makes it."
            raise DataError(f"{version}: no folder with scores.csv and no profile with a version. {hint}")
        folder = known["tables"]
    scores = read(folder / "scores.csv")
    about: dict[str, Any] = {}
    if (folder / "manifest.json").is_file():
        about = _manifest(folder)
        if about["scores"] != _sha(folder / "scores.csv"):
            raise DataError(f"{folder / 'scores.csv'}: not the scores its manifest.json was written for; restore the file")
        about["rebuilt"] = {"code": provenance.code_hash(), "git": provenance.git()}
    folder = folder.resolve()
    profile = scores["profile"].iloc[0]
    figure_root = folder.parents[2] if folder.parents[1].name == KINDS["tables"] else root
    return _make(scores, {"tables": folder, "figures": figure_root / KINDS["figures"] / profile / folder.name}, about)


def coverage(folder: Path) -> str:
    """How much of each table of a version was run, a line a table. Raises `StoreError` where its manifest is damaged."""
    counts = _manifest(folder).get("cells", {})
    return "\n".join(f"{name:22} {c['run']:4} of {c['of']:4} cells run" for name, c in counts.items())


def latest(profile: str, root: Path | None = None) -> dict[str, Path]:
    """The newest version's folder of each kind, for the kinds that have one."""
    found = {}
    for kind, place in KINDS.items():
        pointer = (root or paths.root()) / place / profile / "latest"
        if pointer.is_file():
            folder = pointer.parent / pointer.read_text(encoding="utf-8").strip()
            if folder.is_dir():
                found[kind] = folder
    return found


def _claim(root: Path, profile: str, hashed: str, scores: pd.DataFrame) -> dict[str, Path]:
    """The folders of these scores: those of an earlier version with the same scores, or new ones. Writes scores.csv."""
    home = root / KINDS["tables"] / profile
    same = sorted(p for p in home.glob(f"*-{hashed}*") if _NAME.fullmatch(p.name)) if home.is_dir() else []
    wanted = scores.to_csv(index=False)
    for folder in same:
        path = folder / "scores.csv"
        if not path.is_file() or read(path).to_csv(index=False) == wanted:
            name = folder.name
            break
    else:
        name = f"{time.strftime('%Y-%m-%d', time.gmtime())}-{hashed}" + (f"-{len(same) + 1}" if same else "")
    write(scores, home / name / "scores.csv")
    return {kind: root / place / profile / name for kind, place in KINDS.items()}


def _make(scores: pd.DataFrame, folders: Mapping[str, Path], about: Mapping[str, Any]) -> list[Path]:
    version, level, same_model = folders["tables"].name, about.get("level", 0.95), about.get("same_model", {})
    made: dict[str, list[Path]] = {"tables": [folders["tables"] / "scores.csv"], "figures": []}
    named, skipped = with_rows_before_rl(scores, about.get("before_rl", {})), {}
    built = [tables.build(name, named, version=version, level=level, same_model=same_model) for name in tables.PLANS]
    for table in built:
        made["tables"] += render.write(table, folders["tables"])
    frames = {
        "methods": ("PI-Mem against the other methods, same model and samples", _compare_methods(named, version, level)),
        "with_published": (
            "Ours against the paper's printed numbers, same model",
            comparison.with_published(built),
        ),
    }
    for name, (title, frame) in frames.items():
        if frame.empty:
            skipped[name] = "nothing to compare"
        else:
            made["tables"] += comparison.write(frame, folders["tables"], f"comparison_{name}", title)
    for name, draw in figures.FIGURES.items():
        try:
            made["figures"] += figures.write(*draw(named, version=version, level=level), folders["figures"], name)
        except Absent as error:
            skipped[name] = str(error)
    for kind, folder in folders.items():
        files = {path.name: _sha(path) for path in made[kind]}
        record = {**about, "version": version, "profile": scores["profile"].iloc[0], "scores": _sha(made["tables"][0])}
        record |= {"samples": len(scores), "runs": sorted(set(scores["run"])), "files": files, "skipped": skipped}
        record["cells"] = {table.name: {"run": table.run, "of": len(table.cells)} for table in built}
        replace_file(folder / "manifest.json", json.dumps(record, indent=1, default=str) + "\n")
    return [*made["tables"], *made["figures"], *(folder / "manifest.json" for folder in folders.values())]


def _compare_methods(scores: pd.DataFrame, version: str, level: float) -> pd.DataFrame:
    if "pi_mem" not in set(scores["method"]):
        return pd.DataFrame()
    return comparison.methods(scores, version=version, level=level)


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        record["scores"]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path}: damaged ({error}); restore it, or delete it and rebuild from scores.csv") from None
    return record
