"""What makes a float32 model on a CPU faster than transformers and torch alone do, without a compiler.

Linear weights are laid out once for oneDNN, as torch's own compiler lays them out when it freezes a model. Decoding neither
copies the keys and values it has for each new token nor repeats them for every head that shares them. Memory of freed tensors
stays with the process, where the system would clear it again, page by page, for every layer. LAB_NOTEBOOK.md has the figures.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

ATTENTION = "pimem_cpu"
"""Name under which transformers finds `attend`."""
SPARE = 128
"""Tokens for which a cache layer takes room ahead."""
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
"""Parameters of glibc's `mallopt`."""


def prepare(model: Any) -> None:
    """Makes a float32 model on the CPU, in evaluation mode, ready for fast inference, for good: it cannot be trained after."""
    keep_freed_memory()
    model.set_attn_implementation(ATTENTION)
    if usable():
        pack(model)


def attend(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **args: Any
) -> tuple[torch.Tensor, None]:
    """Attention as transformers calls it; of a single new token without copies of the heads that share keys.

    `query` (rows, heads, tokens, size), `key` and `value` (rows, shared heads, all tokens, size); gives (rows, tokens, heads,
    size). Heads of a group stand in for the tokens of a query, which a single token leaves free.
    """
    rows, heads, tokens, size = query.shape
    shared = key.shape[1]
    if tokens != 1 or (mask is not None and mask.shape[1] != 1):
        return sdpa_attention_forward(module, query, key, value, mask, **args)
    grouped = query.reshape(rows, shared, heads // shared, size)
    out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=args.get("scaling"))
    return out.reshape(rows, 1, heads, size), None


AttentionInterface.register(ATTENTION, attend)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)


class RoomyLayer(DynamicLayer):
    """A cache layer with room ahead, so that a token is written and not everything before it."""

    keys: torch.Tensor
    values: torch.Tensor

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        """Appends along the tokens; returns all keys and values, views of what is kept."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._room: list[torch.Tensor] = []
        used = self.get_seq_length()
        end = used + key_states.shape[-2]
        if not self._room or end > self._room[0].shape[-2]:
            grown = []
            for new, old in ((key_states, self.keys), (value_states, self.values)):
                room = new.new_empty(*new.shape[:-2], end + SPARE, new.shape[-1])
                if used:
                    room[..., :used, :] = old
                grown.append(room)
            self._room = grown
        for room, new in zip(self._room, (key_states, value_states), strict=True):
            room[..., used:end, :] = new
        self.keys, self.values = (room[..., :end, :] for room in self._room)
        return self.keys, self.values

    def crop(self, max_length: int) -> None:
        super().crop(max_length)
        self._room = []

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._room = []

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        super().batch_select_indices(indices)
        self._room = []


def cache(model: Any) -> DynamicCache:
    """An empty cache for the model; layers of other kinds than plain attention are transformers' own."""
    made = DynamicCache(config=model.config)
    made.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in made.layers]
    return made


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
