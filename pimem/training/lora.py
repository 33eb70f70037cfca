"""Low-rank updates of a model's linear layers, in plain torch: trained beside frozen weights, kept apart, merged once.

W' = W + scale * B A with A of shape (rank, in) and B of shape (out, rank) (Hu et al. 2021, LoRA). The sum is rounded to the
weight's own dtype in training as well, so what is trained is what is served after merging.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from pimem.adapters import merged
from pimem.errors import DataError


class Adapted(nn.Module):
    """A frozen linear layer with an update of its weight; its factors are float32, and the update zero at the start."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float):
        super().__init__()
        out, into = linear.weight.shape
        device = linear.weight.device
        self.linear, self.scale = linear, scale
        self.a = nn.Parameter(torch.randn(rank, into, device=device) / into**0.5) if rank else None
        self.b = nn.Parameter(torch.zeros((out, rank) if rank else (out, into), device=device))

    def weight(self) -> torch.Tensor:
        """The sum, in the dtype of the frozen weight."""
        update = self.b if self.a is None else self.b @ self.a
        return (self.linear.weight.float() + self.scale * update).to(self.linear.weight.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight(), self.linear.bias)


def targets(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers of the model's blocks, by name; the output matrix, tied to the embedding, is none of them."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and ".layers." in name and not name.endswith(".linear"):
            yield name, module


def attach(model: nn.Module, rank: int, scale: float) -> list[nn.Parameter]:
    """Freezes `model`, adds an update to each target and returns what is to be trained. Rank 0: an update of full rank.

    Raises `DataError` for a model without such layers.
    """
    model.requires_grad_(False)
    found = list(targets(model))
    if not found:
        raise DataError(f"{type(model).__name__}: no linear layer to adapt was found under '.layers.'")
    for name, linear in found:
        model.set_submodule(name, Adapted(linear, rank, scale))
    return [p for _, module in adapted(model) for p in (module.a, module.b) if p is not None]


def adapted(model: nn.Module) -> Iterator[tuple[str, Adapted]]:
    """The layers with an update, by name."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, Adapted))


def detach(model: nn.Module) -> None:
    """Takes all updates off; the model is the base again."""
    for name, module in list(adapted(model)):
        model.set_submodule(name, module.linear)


def tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The low-rank updates attached to `model` as bfloat16 tensors `<layer>.a` and `<layer>.b`."""
    pairs = ((f"{name}.{part}", getattr(module, part)) for name, module in adapted(model) for part in ("a", "b"))
    return {name: factor.detach().to(torch.bfloat16).cpu().contiguous() for name, factor in pairs}


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
