"""The client against small servers that behave, misbehave, and do not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from engine_bench import KEY

from pimem.config import EngineSpec, ModelSpec
from pimem.engines.openai_api import OpenAIEngine, start
from pimem.errors import ConfigError, EngineError
from pimem.records import Sampling
from pimem.tokens import Tokenizer

CARD = {"id": "tiny", "object": "model", "owned_by": "vllm", "max_model_len": 4096}
IDS = np.arange(3, 40, dtype=np.uint32)
Answer = Callable[[dict[str, Any]], Awaitable[web.StreamResponse]]


def said(body: dict[str, Any], text: str = "yes </check> more", **usage: Any) -> dict[str, Any]:
    counts = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 4} | usage
    return {"choices": [{"text": text, "finish_reason": "length"}], "usage": counts}


class Server:
    """A fake server: `answers` are used up first, then it behaves; keeps the bodies it was sent."""

    def __init__(self, cards: Any = (CARD,), text_only: bool = False):
        self.cards = cards
        self.text_only = text_only
        self.answers: list[Answer] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []

    async def models(self, request: web.Request) -> web.Response:
        self.headers.append(request.headers)
        return web.json_response({"object": "list", "data": list(self.cards)} if self.cards is not None else ["garbage"])

    async def completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.text_only and not isinstance(body["prompt"], str):
            return web.json_response({"error": "prompt must be a string"}, status=400)
        if self.answers:
            return await self.answers.pop(0)(body)
        reply = said(body)
        if self.text_only:
            reply["usage"]["prompt_tokens"] = 40
        return web.json_response(reply)


@asynccontextmanager
async def serving(server: Server, folder: Path, **fields: Any) -> AsyncIterator[OpenAIEngine]:
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/completions", server.completions)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    engine = None
    try:
        spec = EngineSpec(kind="openai_api", url=f"http://127.0.0.1:{port}/v1/", **fields)
        engine = await start(spec, ModelSpec(path=str(folder)))
        yield engine
    finally:
        if engine:
            await engine.close()
        await runner.cleanup()


def plain(body: str | bytes, status: int = 200) -> Answer:
    async def answer(_: dict[str, Any]) -> web.Response:
        return web.Response(body=body.encode() if isinstance(body, str) else body, status=status)

    return answer


def reply(change: Callable[[dict[str, Any]], Any]) -> Answer:
    async def answer(body: dict[str, Any]) -> web.Response:
        good = said(body)
        return web.json_response(change(good) or good)

    return answer


async def test_ids_go_out_as_ids_with_all_that_vllm_must_be_told(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "sesame")
    server = Server()
    async with serving(server, tiny_model, api_key_env="SERVER_KEY") as engine:
        assert engine.info.takes_ids
        assert engine.info.model == "tiny"
        sampling = Sampling(9, 0.7, 0.95, stop=("</check>",), seed=11)
        done = await engine.generate(IDS, sampling, KEY)
    body = server.bodies[-1]
    assert body["prompt"] == IDS.tolist()
    assert (body["max_tokens"], body["temperature"], body["top_p"], body["seed"]) == (9, 0.7, 0.95, 11)
    assert (body["stop"], body["include_stop_str_in_output"]) == (["</check>"], True)
    assert (body["repetition_penalty"], body["top_k"], body["return_token_ids"]) == (1.0, -1, True)
    assert server.headers[0]["Authorization"] == "Bearer sesame"
    assert "sesame" not in repr(engine.info)
    assert (done.prompt_tokens, done.generated_tokens, done.finish, done.extra) == (37, 4, "length", {})
    assert done.token_ids is None
    assert done.cached_tokens is None


async def test_what_vllm_says_more_is_kept(tiny_model: Path) -> None:
    def more(good: dict[str, Any]) -> None:
        good["choices"][0] |= {"token_ids": [5, 6, 7, 2], "finish_reason": "stop", "stop_reason": None}
        good["choices"][0]["logprobs"] = {"token_logprobs": [-0.5, -1, 0, -2.25]}
        good["usage"]["prompt_tokens_details"] = {"cached_tokens": 32}

    server = Server()
    async with serving(server, tiny_model) as engine:
        server.answers = [reply(more)]
        done = await engine.generate(IDS, Sampling(9, logprobs=True), KEY)
    assert done.token_ids == (5, 6, 7, 2)
    assert done.logprobs == (-0.5, -1.0, 0.0, -2.25)
    assert done.cached_tokens == 32
    assert done.finish == "stop"


async def test_a_text_only_server_gets_text_and_the_completion_says_so(tiny_model: Path) -> None:
    server = Server(cards=[{"id": "other", "owned_by": "someone"}], text_only=True)
    async with serving(server, tiny_model) as engine:
        assert not engine.info.takes_ids
        done = await engine.generate(IDS, Sampling(9, stop=("</check>", "never")), KEY)
        with pytest.raises(EngineError, match="ignore_eos") as refused:
            await engine.generate(IDS, Sampling(9, ignore_eos=True), KEY)
        assert not refused.value.retryable
    body = server.bodies[-1]
    assert body["prompt"] == Tokenizer.load(tiny_model).decode(IDS)
    assert not {"stop", "top_k", "repetition_penalty", "ignore_eos"} & set(body)
    assert (done.text, done.finish) == ("yes </check>", "stop")
    assert done.extra == {"prompt_as_text": True, "stopped_here": True}


BAD = [
    (plain("busy", 500), True, "HTTP 500: 'busy'"),
    (plain("slow down", 429), True, "HTTP 429"),
    (plain("too long", 400), False, "HTTP 400: 'too long'"),
    (plain("who are you", 401), False, "api_key_env"),
    (plain("<html>proxy</html>"), True, "not JSON"),
    (plain(b"\xff\xfe\x00"), True, "not JSON"),
    (plain("[1, 2]"), True, "not a JSON object"),
    (plain('{"choices": [{"text": "x", "finish_reason": "stop"}], "usage": NaN}'), True, "NaN is not a JSON number"),
    (plain("[" * 100_000), True, "not JSON"),
    (reply(lambda good: {"object": "error"}), True, r"choices\[0\].text"),
    (reply(lambda good: good["choices"][0].update(text="yes \ud83d")), True, "half a surrogate pair"),
    (reply(lambda good: good["choices"].clear()), True, r"choices\[0\].text"),
    (reply(lambda good: good["choices"][0].pop("text") and None), True, r"choices\[0\].text"),
    (reply(lambda good: good["choices"][0].update(finish_reason=["?"])), True, "only stop and length"),
    (reply(lambda good: good.pop("usage") and None), True, "usage.prompt_tokens"),
    (reply(lambda good: good["usage"].update(completion_tokens=-4)), True, "usage.prompt_tokens"),
    (reply(lambda good: good["usage"].update(prompt_tokens=30)), False, "read 30 prompt tokens of 37"),
]


@pytest.mark.parametrize(("answer", "retryable", "words"), BAD, ids=[words for *_, words in BAD])
async def test_bad_answers_are_errors_and_the_next_good_one_counts(
    tiny_model: Path, answer: Answer, retryable: bool, words: str
) -> None:
    server = Server()
    async with serving(server, tiny_model) as engine:
        server.answers = [answer]
        with pytest.raises(EngineError, match=words) as failure:
            await engine.generate(IDS, Sampling(4), KEY)
        assert failure.value.retryable is retryable
        assert str(KEY) in str(failure.value)
        assert (await engine.generate(IDS, Sampling(4), KEY)).text == "yes </check> more"


@pytest.mark.parametrize("values", [[-1.0, float("-inf"), -1.0, -1.0], [-1.0], [None, -1.0, -1.0, -1.0], None])
async def test_logprobs_that_are_none_are_errors(tiny_model: Path, values: Any) -> None:
    def change(good: dict[str, Any]) -> None:
        good["choices"][0]["logprobs"] = {"token_logprobs": values}

    server = Server()
    async with serving(server, tiny_model) as engine:
        server.answers = [reply(change)]
        with pytest.raises(EngineError, match=r"log-probabilities|JSON number"):
            await engine.generate(IDS, Sampling(4, logprobs=True), KEY)


async def test_a_time_out_is_retryable(tiny_model: Path) -> None:
    async def slow(_: dict[str, Any]) -> web.Response:
        await asyncio.sleep(5)
        return web.Response()

    server = Server()
    async with serving(server, tiny_model, timeout=1.0) as engine:
        server.answers = [slow]
        with pytest.raises(EngineError, match="no answer within 1 s") as failure:
            await engine.generate(IDS, Sampling(4), KEY)
        assert failure.value.retryable


async def test_a_server_that_is_down(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match="cannot be reached") as failure:
        await start(EngineSpec(kind="openai_api", url="http://127.0.0.1:9/v1"), ModelSpec(path=str(tiny_model)))
    assert failure.value.retryable


async def test_a_server_that_goes_down_later(tiny_model: Path) -> None:
    async with serving(Server(), tiny_model) as engine:
        assert engine.info.model == "tiny"
    with pytest.raises(EngineError, match="closed") as failure:
        await engine.generate(IDS, Sampling(4), KEY)
    assert not failure.value.retryable


@pytest.mark.parametrize(
    ("cards", "fields", "error", "words"),
    [
        ([], {}, EngineError, "lists no model"),
        (None, {}, EngineError, "not a JSON object"),
        ([CARD, CARD | {"id": "second"}], {}, ConfigError, "name one of second, tiny"),
        ([CARD], {"served_model": "huge"}, ConfigError, "has no 'huge', only tiny"),
        ([CARD | {"max_model_len": 1024}], {}, ConfigError, "more than the 1,024"),
    ],
)
async def test_models_that_do_not_fit(tiny_model: Path, cards: Any, fields: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        async with serving(Server(cards), tiny_model, **fields):
            pass


async def test_the_address_must_be_one(tiny_model: Path) -> None:
    bad = ["localhost:8000/v1", "http://[half", "nonsense", "http:///v1", "http://host:port/v1", "http://host:65536/v1"]
    for url in (None, *bad, "http://host:0/v1"):
        with pytest.raises(ConfigError, match="no address of a server"):
            await start(EngineSpec(kind="openai_api", url=url), ModelSpec(path=str(tiny_model)))


async def test_no_secret_is_stored_or_shown(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("http://me:pass@127.0.0.1:9/v1", "http://me@127.0.0.1:9/v1"):
        with pytest.raises(ConfigError, match="holds a user or password") as refused:
            await start(EngineSpec(kind="openai_api", url=url), ModelSpec(path=str(tiny_model)))
        assert "me" not in str(refused.value).split("which")[0]
    for key in ("abc\n", "a\u00e9c", "a\rb"):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with pytest.raises(ConfigError, match="OPENAI_API_KEY: this variable's key") as refused:
            await start(EngineSpec(kind="openai_api", url="http://127.0.0.1:9/v1"), ModelSpec(path=str(tiny_model)))
        assert key not in str(refused.value)


async def test_adapters_beside_a_model_are_not_taken_for_it(tiny_model: Path) -> None:
    server = Server([CARD, {"id": "adapter", "owned_by": "vllm", "parent": "tiny"}])
    async with serving(server, tiny_model) as engine:
        assert engine.info.model == "tiny"


async def test_as_many_connections_as_requests(tiny_model: Path) -> None:
    gate = asyncio.Event()
    count = 0

    async def wait(body: dict[str, Any]) -> web.Response:
        nonlocal count
        count += 1
        if count == 110:
            gate.set()
        await gate.wait()
        return web.json_response(said(body))

    server = Server()
    async with serving(server, tiny_model) as engine:
        server.answers = [wait] * 110
        done = await asyncio.wait_for(asyncio.gather(*(engine.generate(IDS, Sampling(4), KEY) for _ in range(110))), 60)
    assert len(done) == 110
