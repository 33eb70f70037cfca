"""One request inside a batch of the transformers engine: its own sampling, its own end, its own answer.

`generate` draws one way for a whole batch. Here it decodes greedily, and each row that samples gets Gumbel noise from its own
generator on its scaled and truncated scores: the largest is then a draw from the row's own distribution.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, Literal

import numpy as np
import torch
from transformers import LogitsProcessor, StoppingCriteria

from pimem.errors import EngineError
from pimem.records import Completion, Sampling
from pimem.tokens import Tokenizer

_NUCLEUS = 1024
"""Scores sorted at first to find a nucleus; all of them only where these do not hold its mass."""


class Row:
    """A waiting or running request. `answer` is completed by the model's thread and may be cancelled by anyone."""

    def __init__(self, prompt: np.ndarray, sampling: Sampling, tokenizer: Tokenizer, stop_ids: frozenset[int]):
        self.prompt = prompt
        self.sampling = sampling
        self.answer: Future[Completion] = Future()
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.generator: torch.Generator | None = None
        self._tokenizer = tokenizer
        self._stop_ids = frozenset() if sampling.ignore_eos else stop_ids
        # A token holds a byte or more, special ones aside: this many hold the longest stop string.
        self._tail = 8 + max((len(s.encode()) for s in sampling.stop), default=0)
        self._started = time.time()

    @property
    def gone(self) -> bool:
        """Answered, failed or cancelled."""
        return self.answer.done()

    @property
    def left(self) -> int:
        """Tokens that may still be generated."""
        return self.sampling.max_tokens - len(self.ids)

    def begin(self, device: torch.device) -> None:
        """From the start, also after an attempt that ran out of memory."""
        self.ids.clear()
        self.logprobs.clear()
        if self.sampling.temperature > 0:
            self.generator = torch.Generator(device)
            if self.sampling.seed is None:
                self.generator.seed()
            else:
                self.generator.manual_seed(self.sampling.seed & (2**63 - 1))

    def take(self, token: int, logprob: float | None) -> None:
        """The next token; answers the request if it is the last."""
        self.ids.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if token in self._stop_ids:
            self._finish(self._tokenizer.response(self.ids[:-1]), "stop")
        elif (text := self._stopped()) is not None:
            self._finish(text, "stop")
        elif not self.left:
            self._finish(self._tokenizer.response(self.ids), "length")

    def fail(self, error: EngineError) -> None:
        # Cancelled in the same moment: nobody waits for the answer.
        with contextlib.suppress(InvalidStateError):
            self.answer.set_exception(error)

    def _finish(self, text: str, finish: Literal["stop", "length"]) -> None:
        completion = Completion(
            text=text,
            finish=finish,
            prompt_tokens=len(self.prompt),
            generated_tokens=len(self.ids),
            cached_tokens=0,
            token_ids=tuple(self.ids),
            logprobs=tuple(self.logprobs) if self.sampling.logprobs else None,
            started=self._started,
            ended=time.time(),
        )
        with contextlib.suppress(InvalidStateError):
            self.answer.set_result(completion)

    def _stopped(self) -> str | None:
        """The text up to and with the first stop string, if there is one."""
        if not self.sampling.stop:
            return None
        tail = self._tokenizer.response(self.ids[-self._tail :])
        if not any(s in tail for s in self.sampling.stop):
            return None
        text = self._tokenizer.response(self.ids)
        ends = [text.index(s) + len(s) for s in self.sampling.stop if s in text]
        return text[: min(ends)] if ends else None


class RowSampler(LogitsProcessor):
    """Scores such that the largest of each row is that row's draw; keeps the log-probabilities of what was drawn."""

    def __init__(self, rows: Sequence[Row]):
        self.rows = rows
        self.logprobs: list[float] | None = None
        """Of the tokens last drawn, before temperature and truncation; None where no row wants them."""
        self.broken: list[bool] = []
        """Rows without a finite largest score."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        drawn = scores.clone()
        for i, row in enumerate(self.rows):
            if row.generator is not None and not row.gone:
                drawn[i] = perturbed(scores[i], row.sampling, row.generator)
        self.broken = (~torch.isfinite(scores.amax(dim=-1))).tolist()
        self.logprobs = None
        if any(row.sampling.logprobs for row in self.rows):
            chosen = scores.gather(1, drawn.argmax(dim=-1, keepdim=True)).squeeze(1)
            self.logprobs = (chosen - scores.logsumexp(dim=-1)).tolist()
        return drawn


def perturbed(scores: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> torch.Tensor:
    """Scores of one row, shape (vocabulary,), scaled, cut to the nucleus, and with Gumbel noise: their argmax is a sample."""
    scaled = scores / sampling.temperature
    if sampling.top_p < 1:
        probs = scaled.softmax(dim=-1)
        top = probs.topk(min(_NUCLEUS, len(probs))).values
        if top.sum() < sampling.top_p:
            top = probs.sort(descending=True).values
        before = top.cumsum(dim=-1) - top
        smallest = top[before < sampling.top_p][-1]
        scaled = scaled.masked_fill(probs < smallest, -torch.inf)
    noise = torch.empty_like(scaled).exponential_(generator=generator)
    return scaled - noise.clamp_min_(torch.finfo(noise.dtype).tiny).log()


class RowStop(StoppingCriteria):
    """Hands each row its token, and ends the batch when all rows are gone, or half of them and the rest can go on alone."""

    def __init__(self, rows: Sequence[Row], sampler: RowSampler, closed: Callable[[], bool], compact: bool):
        self.rows = rows
        self.sampler = sampler
        self.closed = closed
        self.most_left = len(rows) // 2 if compact else 0

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        logprobs = self.sampler.logprobs
        for i, token in enumerate(input_ids[:, -1].tolist()):
            row = self.rows[i]
            if row.gone:
                continue
            if self.sampler.broken[i]:
                row.fail(
                    EngineError(
                        "the model's scores are not finite: its weights are damaged, or its dtype is too narrow",
                        retryable=False,
                    )
                )
            else:
                row.take(token, logprobs[i] if logprobs else None)
        gone = [row.gone for row in self.rows]
        end = self.closed() or gone.count(False) <= self.most_left
        return torch.tensor([end or g for g in gone], device=input_ids.device)
