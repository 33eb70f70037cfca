"""The transformers engine: right tokens, right distribution, batches, memory, failures."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_bench import KEY, Started, started
from hypothesis import given, settings
from hypothesis import strategies as st

from pimem.config import EngineSpec, ModelSpec
from pimem.engines import transformers_engine
from pimem.engines.base import build
from pimem.engines.rows import perturbed
from pimem.engines.transformers_engine import TransformersEngine
from pimem.errors import ConfigError, DataError, EngineError
from pimem.records import Completion, Sampling

TEXTS = ["The answer", "No section said anything new to the question " * 6, "fox", "Brest? " * 31]


@pytest.fixture(scope="module")
def bench(tiny_model: Path) -> Iterator[Started]:
    spec = EngineSpec(device="cpu", max_batch_tokens=600)
    with started(build, tiny_model, spec, ModelSpec(path=str(tiny_model))) as it:
        yield it


@pytest.fixture
def engine(bench: Started) -> TransformersEngine:
    assert isinstance(bench.engine, TransformersEngine)
    return bench.engine


@pytest.fixture
def batches(engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The prompt lengths of every batch that is decoded from now on."""
    seen: list[list[int]] = []
    decode = engine._decode

    def watched(rows: Any) -> None:
        seen.append([len(row.prompt) for row in rows])
        decode(rows)

    monkeypatch.setattr(engine, "_decode", watched)
    return seen


def by_hand(engine: TransformersEngine, ids: np.ndarray, count: int) -> tuple[list[int], list[float]]:
    """Greedy tokens and their log-probabilities, each from a forward pass over everything before it."""
    tokens, logprobs = ids.tolist(), []
    with torch.inference_mode():
        for _ in range(count):
            scores = engine._weights(input_ids=torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            tokens.append(int(scores.argmax()))
            logprobs.append(float(scores.max()))
    return tokens[len(ids) :], logprobs


def test_batched_greedy_tokens_and_logprobs_equal_a_loop_of_whole_forward_passes(
    bench: Started, engine: TransformersEngine
) -> None:
    done = bench.together([(text, Sampling(6 + 5 * i, logprobs=True, ignore_eos=True)) for i, text in enumerate(TEXTS)])
    for i, (text, completion) in enumerate(zip(TEXTS, done, strict=True)):
        tokens, logprobs = by_hand(engine, bench.ids(text), 6 + 5 * i)
        assert completion.token_ids == tuple(tokens)
        assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_sampled_logprobs_are_those_of_the_model_before_temperature(bench: Started, engine: TransformersEngine) -> None:
    done = bench.ask("The answer", Sampling(8, 0.5, 0.9, seed=4, logprobs=True, ignore_eos=True))
    assert done.token_ids is not None
    ids = [*bench.ids("The answer").tolist(), *done.token_ids]
    with torch.inference_mode():
        scores = engine._weights(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    first = len(ids) - 8
    assert done.logprobs == pytest.approx([float(scores[first + i - 1, t]) for i, t in enumerate(done.token_ids)], abs=1e-4)


def test_samples_follow_temperature_and_nucleus() -> None:
    probs = torch.tensor([0.42, 0.28, 0.16, 0.09, 0.05])
    sampling = Sampling(1, temperature=0.7, top_p=0.9)
    scaled = (probs.log() / 0.7).softmax(-1)
    kept = scaled * (scaled.cumsum(-1) - scaled < 0.9)
    want = kept / kept.sum()
    assert (want > 0).tolist() == [True, True, True, False, False]
    generator = torch.Generator().manual_seed(0)
    drawn = Counter(int(perturbed(probs.log(), sampling, generator).argmax()) for _ in range(4000))
    for token, p in enumerate(want.tolist()):
        assert abs(drawn[token] / 4000 - p) <= 4 * (p * (1 - p) / 4000) ** 0.5


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 3000), st.floats(0.05, 3), st.floats(0.001, 1), st.integers(0, 2**63 - 1))
def test_a_sample_lies_in_the_nucleus(size: int, temperature: float, top_p: float, seed: int) -> None:
    scores = torch.randn(size, generator=torch.Generator().manual_seed(seed % 997)) * 3
    sampling = Sampling(1, temperature=temperature, top_p=top_p)
    chosen = int(perturbed(scores, sampling, torch.Generator().manual_seed(seed)).argmax())
    probs = (scores.double() / temperature).softmax(-1)
    larger = float(probs[probs > probs[chosen]].sum())
    assert larger < top_p + 1e-4


def test_a_batch_holds_similar_lengths_within_its_tokens_and_starts_with_the_oldest(
    bench: Started, batches: list[list[int]]
) -> None:
    long, short = "Brest? " * 40, "fox jumps"
    n_long, n_short = len(bench.ids(long)), len(bench.ids(short))
    bench.together([(long, Sampling(2)), *[(short, Sampling(2))] * 5, *[(long, Sampling(2))] * 4])
    assert batches[0][0] == n_long
    assert Counter(n for batch in batches for n in batch) == {n_long: 5, n_short: 5}
    for batch in batches:
        assert len(set(batch)) == 1
        assert len(batch) == 1 or sum(batch) <= 600
    assert [n_short] * 5 in batches


def test_rows_that_ended_leave_the_batch(bench: Started, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    forward = engine._weights.forward

    def watched(*args: Any, **kwargs: Any) -> Any:
        widths.append(len(kwargs["input_ids"]))
        return forward(*args, **kwargs)

    monkeypatch.setattr(engine._weights, "forward", watched)
    done = bench.together([(f"fox {i}", Sampling(3 if i else 30, ignore_eos=True)) for i in range(8)])
    assert [d.generated_tokens for d in done] == [30] + [3] * 7
    assert widths == [8] * 3 + [1] * 27
    tokens, _ = by_hand(engine, bench.ids("fox 0"), 30)
    assert done[0].token_ids == tuple(tokens)


def test_out_of_memory_halves_the_batch_and_repeats_no_answer(
    bench: Started, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [(f"fox {i}", Sampling(6, 0.8, seed=i, ignore_eos=True)) for i in range(8)]
    want = [d.token_ids for d in bench.together(asked)]
    generate = engine._generate
    sizes: list[int] = []

    def tight(rows: Any) -> None:
        sizes.append(len(rows))
        if len(rows) > 2:
            raise torch.OutOfMemoryError("no room")
        generate(rows)

    monkeypatch.setattr(engine, "_generate", tight)
    assert [d.token_ids for d in bench.together(asked)] == want
    assert sizes == [8, 4, 2, 2, 4, 2, 2]

    def never(rows: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(engine, "_generate", never)
    with pytest.raises(EngineError, match="do not fit the memory of cpu even alone") as failure:
        bench.ask("fox", Sampling(2))
    assert not failure.value.retryable


def test_a_failure_reaches_only_its_batch_and_the_engine_goes_on(
    bench: Started, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_generate", lambda rows: 1 / 0)
        with pytest.raises(EngineError, match="the model failed \\(ZeroDivisionError"):
            bench.ask("fox", Sampling(2))
    assert bench.ask("fox", Sampling(2)).prompt_tokens == len(bench.ids("fox"))


def test_scores_that_are_not_finite_are_an_error_of_that_row(
    bench: Started, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = engine._weights.forward

    def broken(*args: Any, **kwargs: Any) -> Any:
        out = forward(*args, **kwargs)
        out.logits[0] = torch.nan
        return out

    monkeypatch.setattr(engine._weights, "forward", broken)

    async def two() -> list[Completion | BaseException]:
        asked = (engine.generate(bench.ids(t), Sampling(2, ignore_eos=True), KEY) for t in ("fox 1", "fox 2"))
        return await asyncio.gather(*asked, return_exceptions=True)

    first, second = bench.portal.call(two)
    assert isinstance(first, EngineError)
    assert "not finite" in str(first)
    assert isinstance(second, EngineError | Completion)


def test_foreign_ids_are_refused(bench: Started) -> None:
    with pytest.raises(EngineError, match="token 151,643; the model knows 400") as refused:
        bench.portal.call(bench.engine.generate, np.array([5, 151_643], dtype=np.uint32), Sampling(2), KEY)
    assert not refused.value.retryable


def test_a_time_out_is_retryable(tiny_model: Path) -> None:
    spec = EngineSpec(device="cpu", timeout=0.05)
    with started(build, tiny_model, spec, ModelSpec(path=str(tiny_model))) as it:
        with pytest.raises(EngineError, match=r"no answer within 0.05 s") as failure:
            it.ask("fox", Sampling(1800, ignore_eos=True))
        assert failure.value.retryable


def test_close_answers_what_waits_and_ends_the_thread(tiny_model: Path) -> None:
    before = threading.active_count()
    spec = EngineSpec(device="cpu", max_batch_tokens=8)
    with started(build, tiny_model, spec, ModelSpec(path=str(tiny_model))) as it:

        async def close_midway() -> list[Completion | BaseException]:
            asked = [it.engine.generate(it.ids("fox"), Sampling(1800, ignore_eos=True), KEY) for _ in range(3)]
            running = asyncio.gather(*asked, return_exceptions=True)
            await asyncio.sleep(0.3)
            await it.engine.close()
            return await running

        outcomes = it.portal.call(close_midway)
        assert [str(o) for o in outcomes] == ["the engine was closed before it answered"] * 3
    assert threading.active_count() <= before


async def test_a_start_that_is_cancelled_leaves_no_model_behind(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, go_on = threading.Event(), threading.Event()
    made: list[weakref.ref[TransformersEngine]] = []
    load = transformers_engine._load

    def slowly(*args: Any) -> TransformersEngine:
        loading.set()
        go_on.wait(20)
        engine = load(*args)
        made.append(weakref.ref(engine))
        return engine

    monkeypatch.setattr(transformers_engine, "_load", slowly)
    start = asyncio.create_task(transformers_engine.start(EngineSpec(device="cpu"), ModelSpec(path=str(tiny_model))))
    await asyncio.to_thread(loading.wait, 20)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)
    assert start.cancelled()
    go_on.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    gc.collect()
    assert [engine() for engine in made] == [None]


def test_what_cannot_start_says_why(tiny_model: Path, tmp_path: Path) -> None:
    def attempt(engine: EngineSpec, model: ModelSpec) -> None:
        asyncio.run(build(engine, model))  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"4,096 tokens are more than the 2,048"):
        attempt(EngineSpec(), ModelSpec(path=str(tiny_model), window=4096))
    if not torch.cuda.is_available():
        with pytest.raises(EngineError, match="no GPU"):
            attempt(EngineSpec(device="cuda"), ModelSpec(path=str(tiny_model)))
    with pytest.raises(DataError, match=r"config\.json"):
        attempt(EngineSpec(), ModelSpec(path=str(tmp_path)))
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "no_such_type"}))
    with pytest.raises(EngineError, match="the model does not load") as failure:
        attempt(EngineSpec(), ModelSpec(path=str(tmp_path)))
    assert not failure.value.retryable


def test_generation_defaults_of_the_model_do_not_enter(tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "generation_config.json"
    extra = {"do_sample": True, "repetition_penalty": 5.0, "top_k": 2, "max_new_tokens": 3}
    path.write_text(json.dumps(json.loads(path.read_text()) | extra))
    with started(build, tmp_path, EngineSpec(device="cpu"), ModelSpec(path=str(tmp_path))) as it:
        done = it.ask("The answer", Sampling(20, ignore_eos=True))
        assert isinstance(it.engine, TransformersEngine)
        tokens, _ = by_hand(it.engine, it.ids("The answer"), 20)
    assert done.token_ids == tuple(tokens)
