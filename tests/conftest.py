"""Fixtures that more than one test folder uses. Nothing here touches a network."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

TINY_TEXT = (
    "The quick brown fox jumps over the lazy dog.",
    "What is the answer to the question? The answer is forty two.",
    "The memory holds what every section said: nothing new, yes or no.",
    "A lighthouse keeper in Brest wrote 1234567890 letters, and none was answered.",
    "<check>yes</check> <check>no</check> \\boxed{Paris} Äpfel, naïve café, 東京.",
)


def make_tiny_tokenizer(folder: Path) -> None:
    """A byte-level BPE of about 400 tokens with a ChatML template; every string encodes and decodes back."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TINY_TEXT, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def make_tiny_model(folder: Path, window: int = 2048) -> Path:
    """A random two-layer Llama in float32 with the tokenizer above: some 130,000 weights, the same ones every time."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    make_tiny_tokenizer(folder)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=window,
        initializer_range=0.15,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, 0], pad_token_id=0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny tokenizer alone, for tests that need no weights."""
    folder = tmp_path_factory.mktemp("tiny_tokenizer")
    make_tiny_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random model with weights, tokenizer, chat template and a window of 2,048; stop ids 2 and 0."""
    folder = make_tiny_model(tmp_path_factory.mktemp("tiny_model"))
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 400
    return folder
