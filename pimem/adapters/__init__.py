"""Adapters that ship with the package, and how one is merged into its base.

An adapter is a folder with `adapter.safetensors` (factors `<layer>.a`, shape (rank, in), and `<layer>.b`, shape (out, rank)),
`adapter.json` and a model card. Merging gives W + scale * B A, rounded to the weight's own dtype: plain weights for any engine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimem.errors import DataError
from pimem.packages import sha256

FOLDER = Path(__file__).parent
WEIGHTS, MANIFEST = "adapter.safetensors", "adapter.json"


@dataclass(frozen=True)
class Adapter:
    """What an adapter's manifest says of it."""

    folder: Path
    base: str
    """Name of the base model in the catalogue."""
    base_fingerprint: str
    """`pimem.models.fingerprint` of the base it was trained on."""
    scale: float
    sha256: str
    """Of its weights."""
    licence: str
    about: str


def shipped() -> dict[str, Adapter]:
    """The adapters in this package by name. Raises `DataError` for a damaged manifest."""
    return {path.parent.name: read(path.parent) for path in sorted(FOLDER.glob(f"*/{MANIFEST}"))}


def read(folder: Path) -> Adapter:
    """The adapter in a folder. Raises `DataError` where its manifest does not read."""
    try:
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        return Adapter(folder, *(facts[name] for name in ("base", "base_fingerprint", "scale", "sha256", "licence", "about")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / MANIFEST}: not the manifest of an adapter ({type(error).__name__}: {error})") from error


def merge(adapter: Adapter, base: Path, target: Path) -> None:
    """Writes the model folder `base` with the adapter merged in to the folder `target`.

    Raises `DataError` for damaged adapter weights and a base of several weight files, and as `merged`.
    """
    from safetensors.torch import load_file, save_file

    weights = base / "model.safetensors"
    if not weights.is_file():
        raise DataError(f"{weights}: missing; an adapter is merged into a model with one weight file")
    if sha256(adapter.folder / WEIGHTS) != adapter.sha256:
        raise DataError(f"{adapter.folder / WEIGHTS}: damaged (wrong SHA-256); get the package again")
    made = merged(load_file(weights), load_file(adapter.folder / WEIGHTS), adapter.scale)
    for file in base.iterdir():
        if file.is_file() and file.suffix in (".json", ".txt", ".jinja", ".model") and file.name != "pimem.json":
            shutil.copyfile(file, target / file.name)
    save_file(made, target / weights.name, metadata={"format": "pt"})
    (target / weights.name).chmod(0o644)


def merged(base: Mapping[str, Any], adapter: Mapping[str, Any], scale: float) -> dict[str, Any]:
    """Tensors by name with the adapter's added, each in its own dtype.

    Raises `DataError` where the adapter names a weight that the base lacks, or shapes do not fit.
    """
    out = dict(base)
    for name in sorted({name.rpartition(".")[0] for name in adapter}):
        weight, a, b = base.get(f"{name}.weight"), adapter.get(f"{name}.a"), adapter.get(f"{name}.b")
        if weight is None or a is None or b is None:
            raise DataError(f"adapter: {name} is incomplete or not a layer of this model; it belongs to another base")
        if (b.shape[0], a.shape[1]) != tuple(weight.shape) or a.shape[0] != b.shape[1]:
            raise DataError(
                f"adapter: {name} is for a weight of {b.shape[0]} by {a.shape[1]}, the base has {tuple(weight.shape)}; "
                "it belongs to another base"
            )
        out[f"{name}.weight"] = (weight.float() + scale * (b.float() @ a.float())).to(weight.dtype)
    return out
