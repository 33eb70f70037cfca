"""What every engine promises, held against all four."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from engine_bench import KEY, Started

from pimem.engines.base import Engine
from pimem.errors import EngineError
from pimem.records import Completion, Sampling

TEXT = "What is the answer to the question? The memory holds nothing new."


def is_model(bench: Started) -> bool:
    return bench.engine.info.kind != "scripted"


def test_says_what_it_is(bench: Started) -> None:
    assert isinstance(bench.engine, Engine)
    assert bench.engine.info.window == 2048
    assert bench.engine.info.takes_ids


def test_completion_is_whole(bench: Started) -> None:
    before = time.time()
    done = bench.ask(TEXT, Sampling(max_tokens=12, ignore_eos=is_model(bench)))
    assert done.finish == "length"
    assert done.prompt_tokens == len(bench.ids(TEXT))
    assert done.generated_tokens == 12
    assert done.token_ids is not None
    assert len(done.token_ids) == 12
    assert done.text == bench.tokenizer.hf.decode(done.token_ids, skip_special_tokens=True).rstrip("\ufffd")
    assert done.logprobs is None
    assert before <= done.started <= done.ended <= time.time()


def test_refuses_before_any_work(bench: Started) -> None:
    start = time.monotonic()
    full = np.full(2048, 5, dtype=np.uint32)
    for prompt, sampling in (
        (full[:0], Sampling(max_tokens=4)),
        (full, Sampling(max_tokens=1)),
        (full[:2000], Sampling(max_tokens=49)),
        (full[:10], Sampling(max_tokens=0)),
    ):
        with pytest.raises(EngineError) as refused:
            bench.portal.call(bench.engine.generate, prompt, sampling, KEY)
        assert not refused.value.retryable
    assert time.monotonic() - start < 1


def test_the_window_can_be_filled_to_the_last_token(bench: Started) -> None:
    prompt = np.full(2040, 5, dtype=np.uint32)
    sampling = Sampling(max_tokens=8, ignore_eos=is_model(bench))
    assert bench.portal.call(bench.engine.generate, prompt, sampling, KEY).generated_tokens == 8


def test_a_stop_string_ends_the_text_and_stays_in_it(bench: Started) -> None:
    free = bench.ask(TEXT, Sampling(max_tokens=40, ignore_eos=is_model(bench)))
    at = next(i for i in range(8, len(free.text)) if free.text[i : i + 3].isascii() and free.text[i : i + 3].isprintable())
    stop = free.text[at : at + 3]
    done = bench.ask(TEXT, Sampling(max_tokens=40, stop=("never said", stop), ignore_eos=is_model(bench)))
    assert done.finish == "stop"
    assert done.text == free.text[: free.text.index(stop) + 3]
    assert done.generated_tokens < 40


def test_an_end_token_ends_the_text(bench: Started) -> None:
    if not is_model(bench):
        pytest.skip("a script has no end token")
    asked = [(f"{TEXT} {i}", Sampling(max_tokens=60, temperature=1.3, seed=i)) for i in range(24)]
    done = bench.together(asked)
    ended = [d for d in done if d.finish == "stop"]
    assert ended, "24 random texts of 60 tokens over 400 words, and none met an end token"
    for completion in done:
        assert completion.token_ids is not None
        assert (completion.token_ids[-1] in bench.tokenizer.stop_ids) == (completion.finish == "stop")
        assert not set(completion.token_ids[:-1]) & set(bench.tokenizer.stop_ids)
        assert "<|" not in completion.text
    on = bench.ask(asked[done.index(ended[0])][0], Sampling(60, 1.3, seed=done.index(ended[0]), ignore_eos=True))
    assert on.generated_tokens == 60
    assert on.token_ids is not None
    assert ended[0].token_ids == on.token_ids[: ended[0].generated_tokens]


@pytest.mark.parametrize("sampling", [Sampling(24), Sampling(24, 0.7, 0.95, seed=3)], ids=["greedy", "sampled"])
def test_same_request_same_tokens_whatever_else_runs(bench: Started, sampling: Sampling) -> None:
    alone = bench.ask(TEXT, sampling)
    crowd = [(f"No {i}. " * (1 + i % 9), Sampling(5 + i, 1.0, seed=i)) for i in range(16)]
    crowded = bench.together([*crowd[:8], (TEXT, sampling), *crowd[8:], (TEXT, sampling)])
    assert crowded[8].token_ids == crowded[-1].token_ids == alone.token_ids
    assert bench.ask(TEXT, sampling).token_ids == alone.token_ids


def test_seeds_and_temperature_matter(bench: Started) -> None:
    if not is_model(bench):
        pytest.skip("a script does not sample")
    sampled = {bench.ask(TEXT, Sampling(12, 1.0, seed=seed)).token_ids for seed in range(4)}
    assert len(sampled) == 4
    assert bench.ask(TEXT, Sampling(12, 1.0, 1e-6, seed=1)).token_ids == bench.ask(TEXT, Sampling(12)).token_ids
    assert bench.ask(TEXT, Sampling(12, 1.0)).generated_tokens > 0


def test_logprobs_one_a_token(bench: Started) -> None:
    done = bench.ask(TEXT, Sampling(10, 0.7, 0.95, seed=5, logprobs=True))
    assert done.logprobs is not None
    assert len(done.logprobs) == done.generated_tokens
    assert all(-30 < value <= 0 for value in done.logprobs)


def test_a_cancelled_request_is_freed(bench: Started) -> None:
    if not is_model(bench):
        pytest.skip("a script answers at once")

    async def cancel_some() -> Completion:
        long = Sampling(700, 1.0, seed=1, ignore_eos=True)
        tasks = [asyncio.create_task(bench.engine.generate(bench.ids(f"{TEXT} {i}"), long, KEY)) for i in range(4)]
        await asyncio.sleep(0.3)
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
        return await bench.engine.generate(bench.ids(TEXT), Sampling(5), KEY)

    start = time.monotonic()
    assert bench.portal.call(cancel_some).generated_tokens <= 5
    cancelled = time.monotonic() - start
    start = time.monotonic()
    bench.ask(TEXT, Sampling(700, 1.0, seed=1, ignore_eos=True))
    assert cancelled < 0.3 + 0.8 * (time.monotonic() - start)


def test_a_cut_character_is_no_error(bench: Started) -> None:
    ids = bench.ids("東京")
    for cut in range(1, len(ids)):
        assert bench.portal.call(bench.engine.generate, ids[:cut], Sampling(3), KEY).prompt_tokens == cut


def test_many_at_once(bench: Started) -> None:
    asked = [(f"{TEXT} {i}", Sampling(4 + i % 5)) for i in range(64)]
    done = bench.together(asked)
    assert [d.prompt_tokens for d in done] == [len(bench.ids(text)) for text, _ in asked]
    assert all(0 < d.generated_tokens <= s.max_tokens for d, (_, s) in zip(done, asked, strict=True))
    assert len({d.token_ids for d in done}) > 5


def test_close_is_final_and_idempotent(bench: Started) -> None:
    """Last in this file: the engine is gone afterwards."""
    bench.portal.call(bench.engine.close)
    bench.portal.call(bench.engine.close)
    if is_model(bench):
        with pytest.raises(EngineError, match="closed") as refused:
            bench.ask(TEXT, Sampling(4))
        assert not refused.value.retryable
