"""A GGUF file turned into the folder every engine here reads: safetensors, configuration, tokenizer.

Works on the file's own tensors and metadata with the `gguf` reader; of a model's library only the names of weights are used.
Block-quantised weights are expanded in float32 and stored rounded to bfloat16, as the original models are published; loading
them in float32 is exact.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from pimem.errors import DataError

_LAYER = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_q.bias": "self_attn.q_proj.bias",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_k.bias": "self_attn.k_proj.bias",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_v.bias": "self_attn.v_proj.bias",
    "attn_output.weight": "self_attn.o_proj.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
}
_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
_SPLITS = {
    "smollm": None,
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""How the tokenizers of these names cut text before merging; None: single digits, then GPT-2's words."""
_NORMAL, _CONTROL, _USER, _UNUSED = 1, 3, 4, 5
_END_MARKS = ("<|im_end|>", "<|endoftext|>")


def convert(source: Path, folder: Path, dtype: str = "bfloat16") -> None:
    """Writes weights, config.json, generation_config.json and the tokenizer of GGUF file `source` into `folder`.

    The models known here tie the output matrix to the embedding; where a file holds both, quantised apart, the output matrix
    is kept for both, being the finer of the two. Raises `DataError` for a file that is no GGUF, another architecture or
    tokenizer, and a tensor of an unknown name.
    """
    from gguf import GGUFReader

    try:
        reader = GGUFReader(source)
    except (ValueError, IndexError, KeyError) as error:
        raise DataError(f"{source}: not a readable GGUF file ({error})") from error
    meta = {name: field.contents() for name, field in reader.fields.items()}
    architecture, split = meta.get("general.architecture"), meta.get("tokenizer.ggml.pre")
    if architecture not in _ARCHITECTURES or split not in _SPLITS:
        raise DataError(
            f"{source}: architecture {architecture!r} with tokenizer {split!r} cannot be converted; "
            f"known are {', '.join(_ARCHITECTURES)} with {', '.join(_SPLITS)}"
        )
    config = _config(meta, dtype)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation(meta))
    _write_tokenizer(meta, folder, config["max_position_embeddings"])
    _write_weights(reader.tensors, config, folder / "model.safetensors", dtype, str(source))


def _config(meta: dict[str, Any], dtype: str) -> dict[str, Any]:
    kind = meta["general.architecture"]
    heads, width = int(meta[f"{kind}.attention.head_count"]), int(meta[f"{kind}.embedding_length"])
    config = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "hidden_size": width,
        "intermediate_size": int(meta[f"{kind}.feed_forward_length"]),
        "num_hidden_layers": int(meta[f"{kind}.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(meta[f"{kind}.attention.head_count_kv"]),
        "max_position_embeddings": int(meta[f"{kind}.context_length"]),
        "rms_norm_eps": float(f"{meta[f'{kind}.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(meta[f"{kind}.rope.freq_base"]),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": int(meta["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(meta["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(meta["tokenizer.ggml.padding_token_id"]),
        "torch_dtype": dtype,
    }
    if kind == "llama":
        config |= {"head_dim": width // heads, "attention_bias": False, "mlp_bias": False}
    else:
        # The format's version; without it transformers takes any large vocabulary for a faulty one of Mistral's and says so.
        config |= {"use_sliding_window": False, "transformers_version": "4.57.0"}
    return config


def _generation(meta: dict[str, Any]) -> dict[str, Any]:
    tokens = meta["tokenizer.ggml.tokens"]
    ends = [int(meta["tokenizer.ggml.eos_token_id"]), *(tokens.index(m) for m in _END_MARKS if m in tokens)]
    return {
        "bos_token_id": int(meta["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": list(dict.fromkeys(ends)),
        "pad_token_id": int(meta["tokenizer.ggml.padding_token_id"]),
    }


def _write_tokenizer(meta: dict[str, Any], folder: Path, window: int) -> None:
    """Byte-level BPE from the file's vocabulary and merges. Fillers that stand for no text are left out."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    split = meta["tokenizer.ggml.pre"]
    control = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    user = [t for t, kind in zip(tokens, kinds, strict=True) if kind == _USER]
    fillers = {t for t, kind in zip(tokens, kinds, strict=True) if kind == _UNUSED} | {t for t in tokens if _filler(t)}
    vocabulary = {t: i for i, t in enumerate(tokens) if t not in fillers}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, fuse_unk=False, byte_fallback=False))
    words: list[Any] = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if _SPLITS[split] is not None:
        tokenizer.normalizer = normalizers.NFC()
        words = [
            pre_tokenizers.Split(Regex(_SPLITS[split]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t in control if t not in fillers])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t in user if t not in fillers])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")
    marks = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
    config = {name: tokens[meta[f"tokenizer.ggml.{mark}_token_id"]] for name, mark in marks.items()}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": window, "add_prefix_space": False}
    _write_json(folder / "tokenizer_config.json", {**config, "clean_up_tokenization_spaces": False})


def _filler(token: str) -> bool:
    return re.fullmatch(r"\[PAD\d+\]", token) is not None


def _write_weights(tensors: list[Any], config: dict[str, Any], target: Path, dtype: str, where: str) -> None:
    import torch
    from safetensors.torch import save_file

    names = {t.name for t in tensors}
    weights = {}
    for tensor in tensors:
        if tensor.name == "token_embd.weight" and "output.weight" in names:
            continue
        name = _name(tensor.name, where)
        weights[name] = torch.from_numpy(_values(tensor, config)).to(getattr(torch, dtype)).contiguous()
    parts = [part for part in _LAYER.values() if part.endswith("weight") or config["model_type"] == "qwen2"]
    wanted = {f"model.layers.{n}.{part}" for n in range(config["num_hidden_layers"]) for part in parts}
    wanted |= {"model.embed_tokens.weight", "model.norm.weight"}
    if odd := sorted(wanted ^ set(weights)):
        raise DataError(f"{where}: {len(odd)} weights are missing or too many, the first is {odd[0]}; the file is damaged")
    save_file(weights, target, metadata={"format": "pt"})
    target.chmod(0o644)


def _name(name: str, where: str) -> str:
    if name in ("token_embd.weight", "output.weight"):
        return "model.embed_tokens.weight"
    if name == "output_norm.weight":
        return "model.norm.weight"
    match = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    if match is None or match[2] not in _LAYER:
        raise DataError(f"{where}: a tensor named {name!r} has no place in this architecture; the file is of another model")
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}"


def _values(tensor: Any, config: dict[str, Any]) -> np.ndarray:
    """float32 values of one tensor, shape (out, in) or (out,)."""
    from gguf.quants import dequantize

    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    values = values.reshape(tuple(int(n) for n in reversed(tensor.shape)))
    if config["model_type"] == "llama" and tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
        values = _halves(values, config["head_dim"])
    return np.array(values)


def _halves(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head brought from GGUF's interleaved rotary pairs (0, d/2, 1, d/2 + 1, ...) back to two halves."""
    heads = rows.reshape(-1, head_dim // 2, 2, rows.shape[-1])
    return heads.transpose(0, 2, 1, 3).reshape(rows.shape)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
