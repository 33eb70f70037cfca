"""Attention over rows that lie packed behind one another, without the mask of all pairs that sdpa would build for them.

Importing this module registers it with transformers under the name `packed`; verl imports it in every process
(`actor_rollout_ref.model.external_lib`). A pack of n tokens then costs the sum of its rows' squares instead of n squared, with
torch alone: its variable-length kernels, asked for directly or, where that does not work, through jagged nested tensors.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

NAME = "packed"
logger = logging.getLogger(__name__)
_TOLERANCE = 0.03
"""Largest difference to the masked computation that the check at first use allows, in units of the values' spread."""


class Rows:
    """Where the rows of a pack begin. Found once for a pack: all layers get the same positions."""

    def __init__(self, positions: torch.Tensor):
        flat = positions.reshape(-1)
        starts = torch.nonzero(flat == 0).reshape(-1)
        end = starts.new_tensor([len(flat)])
        self.offsets = torch.cat([starts, end])
        self.short = self.offsets.to(torch.int32)
        lengths = self.offsets.diff()
        self.least, self.most = int(lengths.min()), int(lengths.max())

    @functools.cached_property
    def mask(self) -> torch.Tensor:
        """Which tokens each one attends to: bool, (tokens, tokens)."""
        at = torch.arange(int(self.offsets[-1]), device=self.offsets.device)
        row = torch.bucketize(at, self.offsets[1:], right=True)
        return (row[:, None] == row[None, :]) & (at[:, None] >= at[None, :])

    @classmethod
    def of(cls, positions: torch.Tensor) -> Rows:
        known = getattr(positions, "_pimem_rows", None)
        if known is None:
            known = cls(positions)
            positions._pimem_rows = known  # type: ignore[attr-defined]
        return known


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_ids: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention within each row of a pack; transformers' signature.

    `query`: (1, heads, tokens, size); `key`, `value`: (1, fewer heads, tokens, size); `position_ids`: (1, tokens), 0 where a
    row begins. Returns (1, tokens, heads, size). Raises `ValueError` for several packs at once and for a mask.
    """
    if query.shape[0] != 1 or attention_mask is not None or position_ids is None:
        raise ValueError(f"attention {NAME!r} is for one pack of rows with their positions and no mask; use sdpa")
    way = _way(query.device.type, query.dtype, query.shape[1], key.shape[1], query.shape[3])
    return way(query[0], key[0], value[0], Rows.of(position_ids), scaling)[None], None


def _direct(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows, scale: float | None) -> torch.Tensor:
    """(heads, tokens, size) to (tokens, heads, size), by the kernel alone: it shares keys and values between heads itself, and
    a layer costs a few calls where nested tensors cost dozens, which decides for a small model.
    """
    flat = (x.transpose(0, 1).contiguous() for x in (q, k, v))
    most = rows.most
    found = torch.ops.aten._flash_attention_forward(*flat, rows.short, rows.short, most, most, 0.0, True, False, scale=scale)
    return found[0]


def _jagged(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows, scale: float | None) -> torch.Tensor:
    """The same through nested tensors, for which torch chooses the kernel."""

    def nested(x: torch.Tensor) -> torch.Tensor:
        flat = x.transpose(0, 1).contiguous()
        made = torch.nested.nested_tensor_from_jagged(flat, rows.offsets, min_seqlen=rows.least, max_seqlen=rows.most)
        return made.transpose(1, 2)

    k, v = _repeated(q, k, v)
    out = F.scaled_dot_product_attention(nested(q), nested(k), nested(v), is_causal=True, scale=scale)
    return out.transpose(1, 2).values()


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rows: Rows, scale: float | None) -> torch.Tensor:
    """The same over all pairs, those of other rows and later tokens masked."""
    k, v = _repeated(q, k, v)
    mask = rows.mask
    return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale)[0].transpose(0, 1)


def _repeated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values once for every head of the query."""
    repeat = q.shape[0] // k.shape[0]
    return k.repeat_interleave(repeat, dim=0), v.repeat_interleave(repeat, dim=0)


Way = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Rows, float | None], torch.Tensor]


@functools.cache
def _way(device: str, dtype: torch.dtype, heads: int, fewer: int, size: int) -> Way:
    """The fastest way that gives here what the masked computation gives, gradients included; tried once.

    `fewer`: heads of keys and values; `size`: of a head.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.enable_grad(), torch.autocast(device, enabled=False):
        made = [torch.randn(n, 96, size, generator=generator).to(device, dtype) for n in (heads, fewer, fewer, heads)]
        rows = Rows(torch.cat([torch.arange(n) for n in (40, 2, 54)])[None].to(device))

        def tried(way: Way) -> tuple[torch.Tensor, ...]:
            q, k, v = (x.clone().requires_grad_() for x in made[:3])
            out = way(q, k, v, rows, None)
            return (out, *torch.autograd.grad(out, (q, k, v), made[3].transpose(0, 1)))

        wanted = tried(_masked)
        for way in (_direct, _jagged):
            try:
                found = tried(way)
            except RuntimeError as error:
                logger.info("attention %r: %s does not run here (%s)", NAME, way.__name__, error)
                continue
            worst = max(float(((a - b).abs().max() / b.float().std()).detach()) for a, b in zip(found, wanted, strict=True))
            if worst < _TOLERANCE * (10 if dtype != torch.float32 else 1):
                return way
            logger.warning("attention %r: %s is off by %.3f here", NAME, way.__name__, worst)
    logger.warning("attention %r: torch's variable-length kernels do not serve here; using a mask", NAME)
    return _masked


def _no_mask(*_: Any, **__: Any) -> None:
    """transformers asks how to build a mask for this kind of attention: there is none."""


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _no_mask)


_register()
