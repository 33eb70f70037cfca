"""The faster ways of a CPU give what the plain ones give."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from pimem.engines import cpu

packed = pytest.mark.skipif(not cpu.usable(), reason="this torch has no oneDNN")


@packed
@pytest.mark.parametrize("rows", [(1,), (4,), (3, 37), (2, 1, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_layer_gives_the_same_sums(rows: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Linear(48, 80, bias=bias)
    x = torch.randn(*rows, 48)
    with torch.inference_mode():
        got = cpu.PackedLinear(plain)(x)
        assert got.shape == (*rows, 80)
        torch.testing.assert_close(got, plain(x), atol=1e-5, rtol=1e-5)


@packed
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


@packed
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


@pytest.mark.parametrize("masked", [False, True])
def test_one_new_token_attends_as_with_repeated_heads(masked: bool) -> None:
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.num_key_value_groups = 3
    query, key, value = torch.randn(2, 6, 1, 8), torch.randn(2, 2, 11, 8), torch.randn(2, 2, 11, 8)
    mask = torch.ones(2, 1, 1, 11, dtype=torch.bool)
    mask[1, :, :, :4] = False
    got, _ = cpu.attend(module, query, key, value, mask if masked else None, scaling=0.3)
    for row in range(2):
        for head in range(6):
            scores = key[row, head // 3] @ query[row, head, 0] * 0.3
            if masked:
                scores = scores.masked_fill(~mask[row, 0, 0], -torch.inf)
            torch.testing.assert_close(got[row, 0, head], scores.softmax(0) @ value[row, head // 3])


def test_a_roomy_layer_holds_what_a_plain_one_holds() -> None:
    torch.manual_seed(0)
    plain, roomy = cpu.DynamicLayer(), cpu.RoomyLayer()
    for tokens in (5, 1, 1, cpu.SPARE, 1, 2 * cpu.SPARE, 1):
        new = torch.randn(3, 2, tokens, 4), torch.randn(3, 2, tokens, 4)
        for want, got in zip(plain.update(*new), roomy.update(*new), strict=True):
            assert torch.equal(want, got)
        if tokens == 2 * cpu.SPARE:
            for layer in (plain, roomy):
                layer.batch_select_indices(torch.tensor([2, 0]))
            new = torch.randn(2, 2, 1, 4), torch.randn(2, 2, 1, 4)
            assert torch.equal(plain.update(*new)[1], roomy.update(*new)[1])
            break
    assert roomy.get_seq_length() == plain.get_seq_length() == 5 + 1 + 1 + cpu.SPARE + 1 + 2 * cpu.SPARE + 1


def test_a_prepared_model_scores_as_before(tiny_model: Path) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_model, dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    ids = torch.randint(0, model.config.vocab_size, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with torch.inference_mode():
        want = model(ids, attention_mask=mask).logits[:, -1]
        cpu.prepare(model)
        kept = cpu.cache(model)
        model(ids[:, :8], attention_mask=mask[:, :8], past_key_values=kept)
        got = model(ids[:, 8:], attention_mask=mask, past_key_values=kept).logits[:, -1]
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
