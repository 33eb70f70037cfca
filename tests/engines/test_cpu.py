"""Packed linear layers give what the plain ones give."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest
import torch

from pimem.engines import cpu

pytestmark = pytest.mark.skipif(not cpu.usable(), reason="this torch has no oneDNN")


@pytest.mark.parametrize("rows", [(1,), (4,), (3, 37), (2, 1, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_gives_the_same_sums(rows: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(48, 80, bias=bias)
    x = torch.randn(*rows, 48)
    with torch.inference_mode():
        packed = cpu.PackedLinear(plain)(x)
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
    assert cpu.pack(model) == 2
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
    assert cpu.pack(model) == 1
    with torch.inference_mode():
        x = torch.randn(2, 8)
        torch.testing.assert_close(model["head"](x), x @ before.T, atol=1e-5, rtol=1e-5)
        assert torch.equal(model["embedding"].weight, before)


REUSE = """
import resource, torch
from pimem.engines import cpu
assert cpu.keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(8 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([faults() for _ in range(8)][-1])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
def test_memory_of_a_freed_tensor_is_used_again_without_new_pages() -> None:
    done = subprocess.run([sys.executable, "-c", REUSE], capture_output=True, text=True, check=True)
    # Four tensors of 32 MiB are 32,768 pages.
    assert int(done.stdout) < 1000
