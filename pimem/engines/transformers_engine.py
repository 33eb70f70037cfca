"""A model in this process through transformers: on a CPU or one GPU, requests batched.

One thread owns the model. It takes the oldest request and those of similar length behind it, pads them on the left, and lets
`generate` decode; finished rows are answered at once and leave the batch when half of it is done. Every row brings its own
budget, stop strings, temperature and random generator, so what else runs decides nothing about a request but the rounding of
sums.
"""

from __future__ import annotations

import asyncio
import collections
import gc
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import LogitsProcessorList, StoppingCriteriaList

from pimem import models, rope
from pimem.config import EngineSpec, ModelSpec
from pimem.engines import cpu
from pimem.engines.base import EngineInfo, refuse
from pimem.engines.rows import Row, RowSampler, RowStop
from pimem.errors import ConfigError, EngineError
from pimem.records import CallKey, Completion, Sampling
from pimem.tokens import Tokenizer

LINGER = 0.005, 0.3
"""Least and most seconds waited before a batch for requests that belong with it: those sent together, and those that follow
from the answers of the batch before. Between the two, a twentieth of the time that one took."""
LOOK_AHEAD = 512
"""Waiting requests that are looked at for ones of similar length."""
PADDING = 1.25
"""Most padded tokens of a batch, in tokens that are meant."""


async def start(engine: EngineSpec, model: ModelSpec) -> TransformersEngine:
    """Loads the model in a thread.

    Raises `DataError` for a folder that holds no usable model, `ConfigError` for a window larger than the model's own,
    `EngineError` where the device is missing or the weights do not fit it.
    """
    return await asyncio.to_thread(_load, engine, model)


def _load(engine: EngineSpec, model: ModelSpec) -> TransformersEngine:
    folder = models.resolve(model)
    device = engine.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise EngineError("device: cuda was asked for, and torch sees no GPU; use device: cpu or auto", retryable=False)
    transformers.utils.logging.disable_progress_bar()
    try:
        weights = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, model.dtype), attn_implementation="sdpa", local_files_only=True
        )
        weights = weights.to(device).eval()
        if device == "cpu":
            cpu.prepare(weights)
    except Exception as error:
        raise EngineError(f"{folder}: the model does not load ({type(error).__name__}: {error})", retryable=False) from error
    return TransformersEngine(weights, Tokenizer.load(folder), folder, engine, model)


class TransformersEngine:
    """See the module. `weights` is a causal language model on its device, in evaluation mode."""

    def __init__(self, weights: Any, tokenizer: Tokenizer, folder: Path, engine: EngineSpec, model: ModelSpec):
        config = weights.config.get_text_config()
        loaded = rope.read_back(config)
        if loaded["window"] is not None and model.window > loaded["window"]:
            raise ConfigError(
                f"model.window: {model.window:,} tokens are more than the {loaded['window']:,} the model was made for"
            )
        # What the rotary layers themselves run with, where they say so.
        kinds = {str(m.rope_type) for m in weights.modules() if isinstance(getattr(m, "rope_type", None), str)}
        loaded["rope"] = kinds.pop() if len(kinds) == 1 else loaded["rope"]
        rope.check(model, loaded | {"window": loaded["window"] or model.window})
        self.info = EngineInfo(
            "transformers",
            str(folder),
            model.window,
            details={
                "transformers": transformers.__version__,
                "torch": torch.__version__,
                "device": torch.cuda.get_device_name() if weights.device.type == "cuda" else "cpu",
                "threads": torch.get_num_threads(),
                "dtype": model.dtype,
                "own_window": loaded["window"],
                "rope": loaded["rope"],
                "rope_factor": loaded["rope_factor"],
            },
        )
        self._weights = weights
        self._tokenizer = tokenizer
        self._vocabulary = weights.get_input_embeddings().num_embeddings
        self._stop_ids = frozenset(tokenizer.stop_ids)
        self._pad = min(self._stop_ids, default=0)
        # The state of a linear-attention layer cannot be cut to some of its rows.
        self._compact = "linear_attention" not in (getattr(config, "layer_types", None) or ())
        self._most = engine.max_batch_tokens
        self._timeout = engine.timeout
        # What the model's author thinks good sampling is must not enter: a request says all there is to say.
        weights.generation_config = transformers.GenerationConfig(pad_token_id=self._pad)
        self._waiting: collections.deque[Row] = collections.deque()
        self._wake = threading.Condition()
        self._closed = False
        # Started by the first request: an engine whose start was cancelled has nobody who would close it.
        self._thread: threading.Thread | None = None

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        """See `Engine`. A request that waited or ran longer than the engine's timeout raises a retryable `EngineError`."""
        refuse(prompt_ids, sampling, self.info.window)
        if int(np.max(prompt_ids)) >= self._vocabulary:
            raise EngineError(
                f"prompt holds token {int(np.max(prompt_ids)):,}; the model knows {self._vocabulary:,}: was the prompt made "
                "with another model's tokenizer?",
                retryable=False,
            )
        row = Row(np.asarray(prompt_ids), sampling, self._tokenizer, self._stop_ids)
        with self._wake:
            if self._closed:
                raise EngineError(f"{key}: the engine is closed", retryable=False)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="pimem-model", daemon=True)
                self._thread.start()
            self._waiting.append(row)
            self._wake.notify()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(row.answer), self._timeout)
        except TimeoutError:
            raise EngineError(f"{key}: no answer within {self._timeout:g} s (timeout)") from None

    async def close(self) -> None:
        """Ends after the forward pass that runs; requests not answered raise `EngineError`."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._weights = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _serve(self) -> None:
        took = 0.0
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
            if not self._closed:
                time.sleep(min(max(LINGER[0], took / 20), LINGER[1]))
            with self._wake:
                if self._closed:
                    rows = list(self._waiting)
                    self._waiting.clear()
                else:
                    rows = self._take()
            if self._closed:
                for row in rows:
                    row.fail(EngineError("the engine was closed before it answered", retryable=False))
                return
            if rows:
                began = time.monotonic()
                self._decode(rows)
                took = time.monotonic() - began

    def _take(self) -> list[Row]:
        """The oldest waiting request and those most like it in length that fit a batch beside it."""
        waiting = [row for row in self._waiting if not row.gone]
        self._waiting = collections.deque(waiting)
        if not waiting:
            return []
        oldest = len(waiting[0].prompt)
        batch: list[Row] = []
        longest = meant = 0
        for row in sorted(waiting[:LOOK_AHEAD], key=lambda row: abs(len(row.prompt) - oldest)):
            longest, meant = max(longest, len(row.prompt)), meant + len(row.prompt)
            padded = longest * (len(batch) + 1)
            if batch and (padded > self._most or padded > PADDING * meant):
                break
            batch.append(row)
        taken = set(map(id, batch))
        self._waiting = collections.deque(row for row in waiting if id(row) not in taken)
        return batch

    def _decode(self, rows: list[Row]) -> None:
        """Answers every row, in halves where the device's memory does not hold them together."""
        try:
            with torch.inference_mode():
                self._generate(rows)
            return
        except Exception as error:
            left = [row for row in rows if not row.gone]
            if not _out_of_memory(error):
                for row in left:
                    row.fail(EngineError(f"the model failed ({type(error).__name__}: {error})", retryable=False))
                return
        # Only here, past the except block, does nothing hold the failed batch's tensors any more.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if len(left) == 1:
            left[0].fail(
                EngineError(
                    f"{len(left[0].prompt):,} prompt tokens do not fit the memory of {self.info.details['device']} even alone",
                    retryable=False,
                )
            )
            return
        for half in (left[: len(left) // 2], left[len(left) // 2 :]):
            if half:
                self._decode(half)

    def _generate(self, rows: Sequence[Row]) -> None:
        device = self._weights.device
        for row in rows:
            row.begin(device)
        longest = max(len(row.prompt) for row in rows)
        ids = np.full((len(rows), longest), self._pad, dtype=np.int64)
        mask = np.zeros((len(rows), longest), dtype=np.int64)
        for i, row in enumerate(rows):
            ids[i, longest - len(row.prompt) :] = row.prompt
            mask[i, longest - len(row.prompt) :] = 1
        input_ids, attention = torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)
        cache = cpu.cache(self._weights) if device.type == "cpu" else None
        while rows:
            sampler = RowSampler(rows)
            out = self._weights.generate(
                input_ids,
                attention_mask=attention,
                past_key_values=cache,
                generation_config=transformers.GenerationConfig(
                    max_new_tokens=max(row.left for row in rows),
                    do_sample=False,
                    pad_token_id=self._pad,
                    return_dict_in_generate=True,
                ),
                logits_processor=LogitsProcessorList([sampler]),
                stopping_criteria=StoppingCriteriaList([RowStop(rows, sampler, lambda: self._closed, self._compact)]),
            )
            if self._closed:
                for row in rows:
                    row.fail(EngineError("the engine was closed before it answered", retryable=False))
                return
            keep = [i for i, row in enumerate(rows) if not row.gone]
            if not keep:
                return
            rows = [rows[i] for i in keep]
            index = torch.tensor(keep, device=device)
            cache = out.past_key_values
            cache.batch_select_indices(index)
            input_ids = out.sequences[index]
            attention = torch.nn.functional.pad(attention[index], (0, input_ids.shape[1] - attention.shape[1]), value=1)
            del out


def _out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)
