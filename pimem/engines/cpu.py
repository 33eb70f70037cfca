"""What makes a float32 model on a CPU faster than torch alone does, without a compiler.

Linear weights are laid out once for oneDNN, as torch's own compiler lays them out when it freezes a model; and memory of freed
tensors stays with the process, where the system would clear it again, page by page, for every layer. LAB_NOTEBOOK.md has the
figures.
"""

from __future__ import annotations

import ctypes

import torch

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Parameters of glibc's `mallopt`."""


class PackedLinear(torch.nn.Module):
    """A `torch.nn.Linear` for inference: the same sums, in another order."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shape (..., in_features) to (..., out_features)."""
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")


def keep_freed_memory() -> bool:
    """Tells the C library to reuse freed memory and not give it back, for this whole process; whether it listened.

    The process then stays as large as it ever was. Other C libraries than glibc have no such call.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, 2_000_000_000), mallopt(_ARENA_MAX, 1)])


def usable() -> bool:
    """Whether this build of torch has oneDNN and the two operations."""
    return torch.backends.mkldnn.is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    )


def pack(model: torch.nn.Module) -> int:
    """Puts packed layers in place of the model's float32 linear layers; returns how many. Their plain weights are let go."""
    packed = 0
    for name, child in model.named_children():
        if type(child) is torch.nn.Linear and child.weight.dtype == torch.float32 and child.weight.device.type == "cpu":
            setattr(model, name, PackedLinear(child))
            packed += 1
        else:
            packed += pack(child)
    return packed
