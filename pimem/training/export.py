"""The weights at the end of a run: a plain model folder for every engine, and a low-rank difference that is small to carry."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from pimem import models
from pimem.errors import DataError, StoreError
from pimem.training.settings import CHECKPOINTS
from pimem.training.spec import Run

MODEL, ADAPTER = "model", "adapter"
"""Of a run's folder."""


def weights(run: Run, out: Path, step: int, report: Any = print) -> Path:
    """Writes the checkpoint of `step` as safetensors to `model` in the run's folder, in the dtype the run names; returns it.

    Configuration and tokenizer are those of the model it began with. With `adapter_rank` the difference to that model goes to
    `adapter`. Raises `StoreError` where there is no whole checkpoint, `DataError` where its weights are not that model's.
    """
    source = out / CHECKPOINTS / f"global_step_{step}" / "actor" / "huggingface"
    files = sorted(source.glob("*.safetensors"))
    if not step or not files:
        raise StoreError(f"{source}: no weights to export; train at least to the first checkpoint")
    target, new = out / MODEL, out / f"{MODEL}.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    _convert(run, files, new)
    for file in run.model.iterdir():
        if file.suffix in (".json", ".txt", ".jinja", ".model") and file.name not in (models.MANIFEST, _INDEX):
            shutil.copyfile(file, new / file.name)
    if (source / _INDEX).is_file():
        shutil.copyfile(source / _INDEX, new / _INDEX)
    about = {"began_with": str(run.model), "fingerprint": run.fingerprint, "step": step}
    (new / "training.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    report(f"step {step}: weights in {target}")
    if run.spec.adapter_rank:
        adapter(run, files, step, out / ADAPTER, report)
    return target


_INDEX = "model.safetensors.index.json"


def _convert(run: Run, files: list[Path], target: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    dtype = getattr(torch, run.spec.model.dtype)
    known = _shapes(run.model)
    for file in files:
        tensors = load_file(file)
        for name, value in tensors.items():
            if known.get(name) != tuple(value.shape):
                raise DataError(
                    f"{file}: {name} has shape {tuple(value.shape)}, and in {run.model} {known.get(name, 'there is none')}: "
                    "a checkpoint of another model"
                )
        kept = {name: value.to(dtype).contiguous() if value.is_floating_point() else value for name, value in tensors.items()}
        save_file(kept, target / file.name, metadata={"format": "pt"})


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    out: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as held:
            out |= {name: tuple(held.get_slice(name).get_shape()) for name in held.keys()}  # noqa: SIM118
    return out


def adapter(run: Run, files: list[Path], step: int, folder: Path, report: Any = print) -> None:
    """The low-rank difference between the trained weights, in the precision they were trained in, and the first ones."""
    from safetensors.torch import load_file

    from pimem import adapters
    from pimem.training import lora

    base = {name: value for file in sorted(run.model.glob("*.safetensors")) for name, value in load_file(file).items()}
    trained = {name: value for file in files for name, value in load_file(file).items()}
    factors, kept = lora.difference(base, trained, run.spec.adapter_rank)
    rank, method = run.spec.adapter_rank, run.spec.method.method
    facts = {
        "base": run.spec.model.path,
        "base_fingerprint": run.fingerprint,
        "scale": 1.0,
        "licence": "that of the base",
        "about": f"{method}, step {step} of reinforcement learning, as a difference of rank {rank}",
        "kept": round(kept, 4),
    }
    adapters.save(factors, folder, facts)
    report(f"rank {rank}: {kept:.1%} of the difference's squared norm, in {folder}")
