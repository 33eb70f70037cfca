"""Any server that speaks OpenAI's completions API, through one pool of connections.

Token ids go out as they are where the server takes them (vLLM does), which is tried once, at the start. A server that takes
only text gets the decoded prompt, and every completion is marked. Fields beyond OpenAI's own are sent only to vLLM.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import numpy as np

from pimem import models
from pimem.config import EngineSpec, ModelSpec
from pimem.engines.base import EngineInfo, refuse
from pimem.errors import ConfigError, EngineError
from pimem.records import CallKey, Completion, Sampling
from pimem.tokens import Tokenizer

PROBE = "one two three four five"
"""Sent at the start to see whether the server counts the ids it is given."""
TEXT_LOSS = 0.9
"""A server that takes text may count its tokens differently, but not this much fewer: then it cut the prompt."""
CONNECT_SECONDS = 10.0
_FINISH: dict[str, Literal["stop", "length"]] = {"stop": "stop", "length": "length"}


async def start(engine: EngineSpec, model: ModelSpec) -> OpenAIEngine:
    """Finds the model on the server and tries whether it takes token ids.

    The tokenizer comes from `model`, which needs no weights here. Raises `ConfigError` without a URL, for one with a password
    in it (it would be stored with the run), for a key that no header can hold, for a model the server does not have and for a
    window larger than the server's, `DataError` without a tokenizer, `EngineError` where the server does not answer.
    """
    if not _host(engine.url):
        raise ConfigError(f"engine.url: {engine.url!r} is no address of a server; give one such as http://localhost:8000/v1")
    if "@" in urlsplit(engine.url or "").netloc:
        raise ConfigError("engine.url: holds a user or password, which is stored with a run; use engine.api_key_env for a key")
    if (key := os.environ.get(engine.api_key_env)) and not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{engine.api_key_env}: this variable's key holds a character that no key has, such as a line end")
    folder = await asyncio.to_thread(models.resolve, model, False)
    started = OpenAIEngine(engine, model, await asyncio.to_thread(Tokenizer.load, folder))
    try:
        await started._meet()
    except BaseException:
        await started.close()
        raise
    return started


class _Refused(EngineError):
    def __init__(self, message: str, status: int):
        super().__init__(message, retryable=status in (408, 429) or status >= 500)
        self.status = status


class OpenAIEngine:
    """See the module."""

    def __init__(self, engine: EngineSpec, model: ModelSpec, tokenizer: Tokenizer):
        self.info = EngineInfo("openai_api", engine.served_model or "", model.window)
        self._url = str(engine.url).rstrip("/")
        self._wanted = engine.served_model
        self._extended = model.yarn > 1 or model.beyond
        self._timeout = engine.timeout
        self._tokenizer = tokenizer
        self._is_vllm = False
        self._closed = False
        key = os.environ.get(engine.api_key_env)
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(engine.timeout, connect=min(CONNECT_SECONDS, engine.timeout)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            # A proxy of the environment is meant for servers elsewhere.
            trust_env=_host(self._url) not in ("localhost", "127.0.0.1", "::1"),
        )

    async def _meet(self) -> None:
        card = await self._card()
        self._is_vllm = card.get("owned_by") == "vllm"
        most = card.get("max_model_len")
        if isinstance(most, int) and most < self.info.window:
            raise ConfigError(
                f"model.window: {self.info.window:,} tokens are more than the {most:,} that {card['id']} has at {self._url}"
            )
        if self._extended and not isinstance(most, int):
            raise EngineError(
                f"{self._url} does not say how long its window is, so an extended one cannot be verified; use a vLLM server "
                "started on the extended folder, or an engine of ours",
                retryable=False,
            )
        self.info = EngineInfo(
            "openai_api", str(card["id"]), self.info.window, details={"url": self._url, "server": str(card.get("owned_by"))}
        )
        takes_ids = await self._takes_ids()
        self.info = EngineInfo("openai_api", self.info.model, self.info.window, takes_ids, self.info.details)

    async def _card(self) -> dict[str, Any]:
        """The server's entry for the model."""
        reply = await self._ask("GET", "/models")
        listed = reply.get("data")
        cards = {str(c["id"]): c for c in listed if isinstance(c, dict) and "id" in c} if isinstance(listed, list) else {}
        if not cards:
            raise EngineError(f"{self._url}/models lists no model; is this an OpenAI-compatible server?", retryable=False)
        if self._wanted is None:
            # vLLM lists adapters beside the model they belong to.
            roots = [c for c in cards.values() if not c.get("parent")] or list(cards.values())
            if len(roots) > 1:
                raise ConfigError(f"engine.served_model: {self._url} serves several; name one of {', '.join(sorted(cards))}")
            return roots[0]
        if self._wanted not in cards:
            raise ConfigError(f"engine.served_model: {self._url} has no {self._wanted!r}, only {', '.join(sorted(cards))}")
        return cards[self._wanted]

    async def _takes_ids(self) -> bool:
        ids = self._tokenizer.encode(PROBE)
        body = {"model": self.info.model, "prompt": ids.tolist(), "max_tokens": 1, "temperature": 0.0}
        try:
            reply = await self._ask("POST", "/completions", body)
        except _Refused as error:
            # Servers that know only text differ in how they say so.
            if error.status not in (400, 415, 422, 500, 501):
                raise
            return False
        return _count(reply.get("usage"), "prompt_tokens") == len(ids)

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        """See `Engine`. Retryable: time-outs, lost connections, statuses 429 and 5xx, replies that make no sense."""
        refuse(prompt_ids, sampling, self.info.window)
        if self._closed:
            raise EngineError(f"{key}: the engine is closed", retryable=False)
        if sampling.ignore_eos and not self._is_vllm:
            raise EngineError("ignore_eos is asked for, which this server cannot be told; use a vLLM server", retryable=False)
        started = time.time()
        try:
            reply = await self._ask("POST", "/completions", self._body(prompt_ids, sampling))
            completion = self._completion(reply, prompt_ids, sampling)
        except EngineError as error:
            raise EngineError(f"{key}: {error}", retryable=error.retryable) from None
        completion.started, completion.ended = started, time.time()
        return completion

    async def close(self) -> None:
        """Closes the connections; the server goes on."""
        self._closed = True
        await self._client.aclose()

    def _body(self, prompt_ids: np.ndarray, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.info.model,
            "prompt": prompt_ids.tolist() if self.info.takes_ids else self._tokenizer.decode(prompt_ids),
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.logprobs:
            body["logprobs"] = 0 if self._is_vllm else 1
        if self._is_vllm:
            # vLLM fills what is left out from the model's generation_config.json; a request says all there is to say.
            body |= {
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "return_token_ids": True,
                "add_special_tokens": False,
            }
            body |= {"ignore_eos": sampling.ignore_eos, "stop": list(sampling.stop), "include_stop_str_in_output": True}
        return body

    def _completion(self, reply: dict[str, Any], prompt_ids: np.ndarray, sampling: Sampling) -> Completion:
        choices = reply.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or not isinstance(choice.get("text"), str):
            raise EngineError(f"{self._url} answered without choices[0].text: {_shown(reply)}")
        if any("\ud800" <= c <= "\udfff" for c in choice["text"]):
            raise EngineError(f"{self._url} answered with half a surrogate pair, which is no text: {_shown(reply)}")
        text, finish = choice["text"], _FINISH.get(str(choice.get("finish_reason")))
        if finish is None:
            raise EngineError(
                f"{self._url} ended a completion with {choice.get('finish_reason')!r}; only stop and length are known"
            )
        usage = reply.get("usage")
        prompt_tokens, generated = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        if prompt_tokens is None or generated is None:
            raise EngineError(f"{self._url} answered without usage.prompt_tokens and completion_tokens: {_shown(reply)}")
        short = prompt_tokens != len(prompt_ids) if self.info.takes_ids else prompt_tokens < TEXT_LOSS * len(prompt_ids)
        if short:
            raise EngineError(
                f"{self._url} read {prompt_tokens:,} prompt tokens of {len(prompt_ids):,}: it cuts prompts, raise its window "
                "(or the model's tokenizer is another one)",
                retryable=False,
            )
        extra: dict[str, Any] = {} if self.info.takes_ids else {"prompt_as_text": True}
        if not self._is_vllm and (ends := [text.index(s) + len(s) for s in sampling.stop if s in text]):
            # Others drop the stop string without saying which it was, so they were not told of any.
            text, finish = text[: min(ends)], "stop"
            extra["stopped_here"] = True
        details = usage.get("prompt_tokens_details") if isinstance(usage, dict) else None
        ids = _numbers(choice.get("token_ids"), int)
        return Completion(
            text=text,
            finish=finish,
            prompt_tokens=prompt_tokens,
            generated_tokens=generated,
            cached_tokens=_count(details, "cached_tokens"),
            token_ids=tuple(ids) if ids and len(ids) == generated else None,
            logprobs=self._logprobs(choice, generated) if sampling.logprobs else None,
            extra=extra,
        )

    def _logprobs(self, choice: dict[str, Any], generated: int) -> tuple[float, ...]:
        told = choice.get("logprobs")
        values = _numbers(told.get("token_logprobs") if isinstance(told, dict) else None, int | float)
        if values is None or len(values) != generated or not all(map(math.isfinite, values)):
            raise EngineError(f"{self._url} was asked for log-probabilities and did not give one a token", retryable=False)
        return tuple(float(v) for v in values)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One exchange; the reply's JSON object. Raises `EngineError` for anything else."""
        url = f"{self._url}{path}"
        try:
            response = await self._client.request(method, url, json=body)
        except httpx.TimeoutException:
            raise EngineError(f"{url}: no answer within {self._timeout:g} s (timeout)") from None
        except httpx.InvalidURL as error:
            raise ConfigError(f"engine.url: {self._url!r} is no address of a server: {error}") from None
        except httpx.HTTPError as error:
            raise EngineError(f"{url}: the server cannot be reached or hung up ({type(error).__name__}: {error})") from None
        except RuntimeError as error:
            raise EngineError(f"{url}: the engine was closed before it answered ({error})", retryable=False) from None
        if response.status_code != 200:
            code = response.status_code
            hint = "; set the key in the environment variable of engine.api_key_env" if code in (401, 403) else ""
            raise _Refused(f"{url}: HTTP {code}: {response.text[:300]!r}{hint}", code)
        try:
            reply = json.loads(response.content, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise EngineError(f"{url}: the answer is not JSON ({error}): {response.text[:100]!r}") from None
        if not isinstance(reply, dict):
            raise EngineError(f"{url}: the answer is not a JSON object: {_shown(reply)}")
        return reply


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _count(usage: Any, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _numbers(values: Any, kind: Any) -> list[Any] | None:
    fit = isinstance(values, list) and all(isinstance(v, kind) and not isinstance(v, bool) for v in values)
    return values if fit else None


def _host(url: str | None) -> str | None:
    try:
        parts = urlsplit(url or "")
        port = parts.port
    except ValueError:
        return None
    return parts.hostname if parts.scheme in ("http", "https") and port != 0 else None


def _shown(reply: Any) -> str:
    return json.dumps(reply)[:200]
