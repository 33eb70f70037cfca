"""Adapters that ship with the package, and how one is merged into its base.

An adapter is a folder with factors `<layer>.a`, shape (rank, in), and `<layer>.b`, shape (out, rank), `adapter.json` and a
model card. A file of factors stays small enough for any host of repositories; several hold slices of the rank, which belong
behind one another. Merging gives W + scale * B A, rounded to the weight's own dtype: plain weights for any engine.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimem.errors import DataError
from pimem.packages import sha256

FOLDER = Path(__file__).parent
MANIFEST = "adapter.json"
LARGEST = 16_000_000
"""Bytes of a file of factors."""


@dataclass(frozen=True)
class Adapter:
    """What an adapter's manifest says of it."""

    folder: Path
    base: str
    """Name of the base model in the catalogue."""
    base_fingerprint: str
    """`pimem.models.fingerprint` of the base it was trained on."""
    scale: float
    files: dict[str, str]
    """SHA-256 of each file of factors, the first ranks first."""
    licence: str
    about: str

    @property
    def sha256(self) -> str:
        """Of all its factors."""
        return hashlib.sha256(" ".join(self.files.values()).encode()).hexdigest()


def shipped() -> dict[str, Adapter]:
    """The adapters in this package by name. Raises `DataError` for a damaged manifest."""
    return {path.parent.name: read(path.parent) for path in sorted(FOLDER.glob(f"*/{MANIFEST}"))}


def read(folder: Path) -> Adapter:
    """The adapter in a folder. Raises `DataError` where its manifest does not read."""
    try:
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        made = Adapter(folder, *(facts[name] for name in ("base", "base_fingerprint", "scale", "files", "licence", "about")))
        if not made.files or not all(Path(name).name == name and len(digest) == 64 for name, digest in made.files.items()):
            raise ValueError("files: not names with their SHA-256")
        return made
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{folder / MANIFEST}: not the manifest of an adapter ({type(error).__name__}: {error})") from error


def factors(adapter: Adapter) -> dict[str, Any]:
    """All its factors, the files' slices behind one another. Raises `DataError` for damage."""
    import torch
    from safetensors.torch import load_file

    parts = []
    for name, digest in adapter.files.items():
        path = adapter.folder / name
        if not path.is_file() or sha256(path) != digest:
            raise DataError(f"{path}: {'damaged (wrong SHA-256)' if path.is_file() else 'missing'}; get the package again")
        parts.append(load_file(path))
    if any(part.keys() != parts[0].keys() for part in parts):
        raise DataError(f"{adapter.folder}: its files name different layers; get the package again")
    return {name: torch.cat([part[name] for part in parts], 0 if name.endswith(".a") else 1) for name in parts[0]}


def save(made: Mapping[str, Any], folder: Path, manifest: Mapping[str, Any], largest: int = LARGEST) -> None:
    """Writes an adapter: factors in files of at most `largest` bytes, then what is known about it, with the files' SHA-256."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    rank = max(factor.shape[0] for name, factor in made.items() if name.endswith(".a"))
    each = sum(factor.nbytes for factor in made.values()) / rank
    # The header of such a file is under a hundredth of it.
    step = max(1, int(0.99 * largest / each))
    cuts = [slice(first, first + step) for first in range(0, rank, step)]
    names = [
        f"adapter-{i}-of-{len(cuts)}.safetensors" if len(cuts) > 1 else "adapter.safetensors" for i in range(1, len(cuts) + 1)
    ]
    for name, cut in zip(names, cuts, strict=True):
        part = {n: (f[cut] if n.endswith(".a") else f[:, cut]).contiguous() for n, f in made.items()}
        save_file(part, folder / name)
    facts = {**manifest, "files": {name: sha256(folder / name) for name in names}}
    (folder / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def merge(adapter: Adapter, base: Path, target: Path) -> None:
    """Writes the model folder `base` with the adapter merged in to the folder `target`.

    Raises `DataError` for damaged adapter weights and a base of several weight files, and as `merged`.
    """
    from safetensors.torch import load_file, save_file

    weights = base / "model.safetensors"
    if not weights.is_file():
        raise DataError(f"{weights}: missing; an adapter is merged into a model with one weight file")
    made = merged(load_file(weights), factors(adapter), adapter.scale)
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
