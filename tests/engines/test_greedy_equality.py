"""The transformers engine and vLLM in float32 say the same, token for token, on the default model."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from engine_bench import KEY, Started, started

from pimem import models
from pimem.config import EngineSpec, ModelSpec
from pimem.engines.base import build
from pimem.errors import DataError
from pimem.records import Completion, Sampling

MODEL = ModelSpec("smollm2-135m", window=1024)
QUESTIONS = (
    "What is the capital of France? Answer in one sentence.",
    "A lighthouse keeper in Brest wrote 1,234 letters. How many letters did the keeper write?",
    "Read the section and note what helps. Section: " + "The harbour was quiet that winter. " * 40 + "What was quiet?",
    "List three colours.",
)

DEVICES = [pytest.param("cpu", marks=pytest.mark.engine), pytest.param("cuda", marks=pytest.mark.gpu)]

pytestmark = pytest.mark.data


def answers(kind: str, device: Literal["cpu", "cuda"]) -> list[Completion]:
    spec = EngineSpec(kind=kind, device=device, max_batch_tokens=2048, gpu_memory=0.3)
    folder = models.resolve(MODEL)
    with started(build, folder, spec, MODEL) as it:
        prompts = [it.tokenizer.chat([{"role": "user", "content": q}]) for q in QUESTIONS]
        return ask_templates(it, prompts)


def ask_templates(it: Started, prompts: list[str]) -> list[Completion]:
    async def all_of_them() -> list[Completion]:
        ids = [it.tokenizer.encode_template(p) for p in prompts]
        return await asyncio.gather(*(it.engine.generate(p, Sampling(24, logprobs=True), KEY) for p in ids))

    return it.portal.call(all_of_them)


@pytest.mark.parametrize("device", DEVICES)
def test_same_greedy_tokens_text_and_ends(device: Literal["cpu", "cuda"]) -> None:
    try:
        models.resolve(MODEL)
    except DataError as error:
        pytest.skip(str(error))
    ours, theirs = answers("transformers", device), answers("vllm", device)
    for a, b in zip(ours, theirs, strict=True):
        assert a.token_ids == b.token_ids
        assert (a.text, a.finish) == (b.text, b.finish)
        # Two attention kernels of a GPU round differently: 0.008 was seen on an H200.
        assert a.logprobs == pytest.approx(b.logprobs, abs=2e-3 if device == "cpu" else 2e-2)
    assert "Paris" in ours[0].text
