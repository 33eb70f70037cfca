"""Low-rank updates of a model's linear layers, in plain torch: trained as a parametrisation, kept apart, merged once.

W' = W + scale * B A with A of shape (rank, in) and B of shape (out, rank) (Hu et al. 2021, LoRA). The sum is rounded to the
weight's own dtype in training as well, so what is trained is what is served after merging.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from pimem.adapters import MANIFEST, WEIGHTS, merged
from pimem.errors import DataError
from pimem.packages import sha256


class LowRank(nn.Module):
    """The parametrisation of one weight; both factors float32, B zero at the start."""

    def __init__(self, weight: torch.Tensor, rank: int, scale: float):
        super().__init__()
        out, into = weight.shape
        self.a = nn.Parameter(torch.randn(rank, into, device=weight.device) / into**0.5)
        self.b = nn.Parameter(torch.zeros(out, rank, device=weight.device))
        self.scale = scale

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return (weight.float() + self.scale * (self.b @ self.a)).to(weight.dtype)


class Full(nn.Module):
    """An update of full rank, for comparison."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.delta = nn.Parameter(torch.zeros_like(weight, dtype=torch.float32))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return (weight.float() + self.delta).to(weight.dtype)


def targets(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers of the model's blocks, by name; the output matrix, tied to the embedding, is none of them."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and ".layers." in name:
            yield name, module


def attach(model: nn.Module, rank: int, scale: float) -> list[nn.Parameter]:
    """Freezes `model`, adds an update to each target and returns what is to be trained. Rank 0: an update of full rank."""
    model.requires_grad_(False)
    found = list(targets(model))
    if not found:
        raise DataError(f"{type(model).__name__}: no linear layer to adapt was found under '.layers.'")
    trained: list[nn.Parameter] = []
    for _, module in found:
        update = LowRank(module.weight, rank, scale) if rank else Full(module.weight)
        parametrize.register_parametrization(module, "weight", update)
        trained += update.parameters()
    return trained


def detach(model: nn.Module) -> None:
    """Takes all updates off; the model is the base again."""
    for _, module in list(targets(model)):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The updates attached to `model` as bfloat16 tensors `<layer>.a` and `<layer>.b`."""
    out = {}
    for name, module in targets(model):
        update = module.parametrizations.weight[0]  # type: ignore[union-attr, index]
        for part in ("a", "b"):
            out[f"{name}.{part}"] = getattr(update, part).detach().to(torch.bfloat16).cpu().contiguous()
    return out


def save(model: nn.Module, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Writes the updates and what is known about them; the manifest comes last, with the weights' SHA-256."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(model), folder / WEIGHTS)
    facts = {**manifest, "sha256": sha256(folder / WEIGHTS)}
    (folder / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def apply(model: nn.Module, adapter: Mapping[str, torch.Tensor], scale: float) -> None:
    """Merges an adapter into a loaded model's own weights."""
    weights = {name: value.detach().cpu() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for name, value in merged(weights, adapter, scale).items():
            if f"{name.removesuffix('.weight')}.a" in adapter:
                model.get_parameter(name).copy_(value)


def difference(
    base: Mapping[str, torch.Tensor], trained: Mapping[str, torch.Tensor], rank: int
) -> tuple[dict[str, torch.Tensor], float]:
    """The best adapter of `rank` for the step from `base` to `trained`, and the share of the step's squared norm it keeps.

    By truncated singular value decomposition of each block's linear weights; the singular values are split evenly between the
    factors, which are bfloat16. What changed outside those weights counts as not kept. Raises `DataError` where the two are not
    weights of one architecture, and where nothing changed.
    """
    if sorted(base) != sorted(trained) or any(base[n].shape != trained[n].shape for n in base):
        raise DataError("the two models' weights have other names or shapes, so they have no difference")
    out: dict[str, torch.Tensor] = {}
    total = lost = 0.0
    for name, first in base.items():
        step = trained[name].double() - first.double()
        norm = float(step.square().sum())
        total += norm
        if step.ndim != 2 or ".layers." not in name or not name.endswith(".weight"):
            lost += norm
            continue
        u, s, v = torch.linalg.svd(step.float(), full_matrices=False)
        root = s[:rank].sqrt()
        b, a = u[:, :rank] * root, root[:, None] * v[:rank]
        layer = name.removesuffix(".weight")
        out[f"{layer}.a"], out[f"{layer}.b"] = a.to(torch.bfloat16).contiguous(), b.to(torch.bfloat16).contiguous()
        lost += float((step - out[f"{layer}.b"].double() @ out[f"{layer}.a"].double()).square().sum())
    if not total:
        raise DataError("the two models are the same, so there is nothing to keep")
    return out, 1 - lost / total


def parts(factors: Mapping[str, torch.Tensor], largest: int) -> list[dict[str, torch.Tensor]]:
    """An adapter as a sum of adapters of at most `largest` bytes each; the first ones hold the first ranks."""
    rank = max(factor.shape[0] for name, factor in factors.items() if name.endswith(".a"))
    each = sum(factor.nbytes for factor in factors.values()) / rank
    step = max(1, int(0.99 * largest / each))
    out = []
    for start in range(0, rank, step):
        cut = slice(start, start + step)
        out.append({n: (f[cut] if n.endswith(".a") else f[:, cut]).contiguous() for n, f in factors.items()})
    return out
