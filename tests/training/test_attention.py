"""Packed attention equals a model's own attention row by row, values and gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pimem.training import attention


def test_a_pack_gives_what_each_row_gives_alone(tiny_model: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager").eval()
    packed = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=attention.NAME).eval()
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 400, (n,), generator=generator) for n in (7, 1, 30, 12)]
    ids = torch.cat(rows)[None]
    positions = torch.cat([torch.arange(len(r)) for r in rows])[None]
    together = packed(input_ids=ids, attention_mask=None, position_ids=positions, use_cache=False).logits[0]
    alone = torch.cat([model(input_ids=r[None], use_cache=False).logits[0] for r in rows])
    assert torch.allclose(together, alone, atol=1e-5)
    weight = torch.randn(alone.shape, generator=generator)
    for one, logits in ((packed, together), (model, alone)):
        (logits * weight).sum().backward()
        assert one.model.layers[0].self_attn.q_proj.weight.grad is not None
    for (name, a), (_, b) in zip(packed.named_parameters(), model.named_parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, atol=1e-3, rtol=1e-3), name


def test_without_kernels_it_falls_back_to_a_mask(caplog: pytest.LogCaptureFixture) -> None:
    attention._way.cache_clear()
    assert attention._way("cpu", torch.float32, 3, 1, 16) is attention._masked
    assert "using a mask" in caplog.text


def masked_with_an_error(*given: Any) -> torch.Tensor:
    return attention._masked(*given) * 1.5


def test_the_first_way_that_agrees_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def right(*given: Any) -> torch.Tensor:
        return attention._masked(*given)

    monkeypatch.setattr(attention, "_direct", right)
    attention._way.cache_clear()
    assert attention._way("cpu", torch.float32, 4, 2, 16) is right
    monkeypatch.setattr(attention, "_direct", masked_with_an_error)
    monkeypatch.setattr(attention, "_jagged", right)
    attention._way.cache_clear()
    assert attention._way("cpu", torch.float32, 4, 2, 16) is right
    attention._way.cache_clear()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_kernels_agree_with_the_mask(dtype: torch.dtype) -> None:
    attention._way.cache_clear()
    assert attention._way("cuda", dtype, 9, 3, 64) is attention._direct


def test_rows_are_found_once_for_a_pack() -> None:
    positions = torch.cat([torch.arange(4), torch.arange(2), torch.arange(9)])[None]
    rows = attention.Rows.of(positions)
    assert rows.offsets.tolist() == [0, 4, 6, 15]
    assert (rows.least, rows.most) == (2, 9)
    assert attention.Rows.of(positions) is rows


def test_what_is_no_pack_is_refused() -> None:
    q = torch.zeros(2, 1, 3, 4)
    with pytest.raises(ValueError, match="one pack of rows"):
        attention.attention(None, q, q, q, None, position_ids=torch.zeros(2, 3))
