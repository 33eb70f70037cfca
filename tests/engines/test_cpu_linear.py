"""Packed linear layers give what the plain ones give."""

from __future__ import annotations

import pytest
import torch

from pimem.engines import cpu_linear

pytestmark = pytest.mark.skipif(not cpu_linear.usable(), reason="this torch has no oneDNN")


@pytest.mark.parametrize("rows", [(1,), (4,), (3, 37), (2, 1, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_gives_the_same_sums(rows: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(48, 80, bias=bias)
    x = torch.randn(*rows, 48)
    with torch.inference_mode():
        packed = cpu_linear.PackedLinear(plain)(x)
        assert packed.shape == (*rows, 80)
        torch.testing.assert_close(packed, plain(x), atol=1e-5, rtol=1e-5)


def test_packing_takes_every_float32_linear_layer_and_nothing_else() -> None:
    class Special(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8),
        torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.LayerNorm(4)),
        Special(4, 4),
        torch.nn.Linear(4, 4, dtype=torch.bfloat16),
    )
    special = model[2]
    assert cpu_linear.pack(model) == 2
    assert [type(layer).__name__ for layer in (model[0], model[1][0], model[1][1], model[3])] == [
        "PackedLinear",
        "PackedLinear",
        "LayerNorm",
        "Linear",
    ]
    assert model[2] is special


def test_the_weights_of_a_shared_embedding_stay() -> None:
    embedding, head = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16, bias=False)
    head.weight = embedding.weight
    model = torch.nn.ModuleDict({"embedding": embedding, "head": head})
    before = embedding.weight.detach().clone()
    assert cpu_linear.pack(model) == 1
    with torch.inference_mode():
        x = torch.randn(2, 8)
        torch.testing.assert_close(model["head"](x), x @ before.T, atol=1e-5, rtol=1e-5)
        assert torch.equal(model["embedding"].weight, before)
