"""The process in which vLLM lives: `python -m pimem.engines.vllm_worker SOCKET`, started by `pimem.engines.vllm_engine` only.

It heads its own process group. A watchdog forked before anything heavy holds the read end of a pipe from the parent: when the
parent is gone, however it died, the whole group is killed, vLLM's own children included.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import functools
import os
import signal
import sys
from typing import Any

TOKEN = "PIMEM_WORKER_TOKEN"
"""Environment variable with the secret that the first frame must show."""


def die_with_parent() -> None:
    """Ties the process group to the parent: by the pipe on standard input, and by the kernel's death signal."""

    def kill_group(*_: object) -> None:
        os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.fork() == 0:
        # SIGTERM may come to the whole group; the watchdog must outlast the process it watches over.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while os.read(0, 1):
            pass
        kill_group()
    signal.signal(signal.SIGTERM, kill_group)
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def engine_args(wanted: dict[str, Any], on_cpu: bool) -> dict[str, Any]:
    """vLLM's arguments; what differs on a CPU and why stands here."""
    if not on_cpu:
        return wanted
    return wanted | {
        # A request seed with a prompt split over steps kills the CPU engine; unsplit prompts must fit one step.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(wanted["max_num_batched_tokens"], wanted["max_model_len"]),
        "enforce_eager": True,
        # On a CPU this is the share of all RAM that must be free at start; the KV space has a variable of its own.
        "gpu_memory_utilization": min(wanted["gpu_memory_utilization"], 0.2),
    }


async def serve(path: str) -> None:
    from pimem.engines.wire import pack, receive

    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(pack({"token": os.environ.pop(TOKEN)}))
    first = await receive(reader)
    if first is None:
        return
    try:
        engine, info = _start(first[0])
    except BaseException as error:
        writer.write(pack({"op": "fatal", "error": f"{type(error).__name__}: {error}"}))
        await writer.drain()
        raise
    writer.write(pack({"op": "ready", "info": info}))
    running: dict[int, asyncio.Task[None]] = {}
    while (frame := await receive(reader)) is not None:
        message, ids = frame
        if message["op"] == "close":
            break
        number = message["id"]
        if message["op"] == "cancel":
            if number in running:
                running[number].cancel()
            continue
        task = asyncio.create_task(_answer(engine, writer, number, message, ids.tolist()))
        running[number] = task
        task.add_done_callback(functools.partial(_forget, running, number))
    for task in list(running.values()):
        task.cancel()
    engine.shutdown()
    # Nothing is left to do but the interpreter's own farewell, which takes seconds with torch loaded.
    os._exit(0)


def _forget(running: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    running.pop(number, None)


def _start(wanted: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    from pimem import rope

    on_cpu = current_platform.is_cpu()
    device = wanted.pop("device")
    if device != "auto" and (device == "cpu") != on_cpu:
        raise RuntimeError(
            f"device {device} was asked for, but this vLLM {vllm.__version__} runs on {current_platform.device_type}"
        )
    args = engine_args(wanted, on_cpu)
    known = {f.name for f in dataclasses.fields(AsyncEngineArgs)}
    if missing := sorted(set(args) - known):
        raise RuntimeError(f"vLLM {vllm.__version__} does not take {', '.join(missing)}")
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**args))
    config = engine.vllm_config
    loaded = rope.read_back(config.model_config.hf_text_config)
    return engine, {
        "vllm": vllm.__version__,
        "device": "cpu" if on_cpu else current_platform.get_device_name(),
        "window": config.model_config.max_model_len,
        "own_window": loaded["window"],
        "rope": loaded["rope"],
        "rope_factor": loaded["rope_factor"],
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "tensor_parallel": config.parallel_config.tensor_parallel_size,
        "kv_blocks": config.cache_config.num_gpu_blocks,
        "block_tokens": config.cache_config.block_size,
        "vocabulary": config.model_config.get_vocab_size(),
    }


async def _answer(engine: Any, writer: asyncio.StreamWriter, number: int, message: dict[str, Any], ids: list[int]) -> None:
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.exceptions import EngineDeadError

    from pimem.engines.wire import pack

    wanted = message["sampling"]
    try:
        params = SamplingParams(
            max_tokens=wanted["max_tokens"],
            temperature=wanted["temperature"],
            top_p=wanted["top_p"],
            stop=wanted["stop"],
            stop_token_ids=[] if wanted["ignore_eos"] else message["stop_ids"],
            include_stop_str_in_output=True,
            seed=wanted["seed"],
            logprobs=0 if wanted["logprobs"] else None,
            ignore_eos=wanted["ignore_eos"],
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        outputs = [out async for out in engine.generate(TokensPrompt(prompt_token_ids=ids), params, str(number))]
        if not outputs or not outputs[-1].finished:
            raise RuntimeError("vLLM ended the request without an answer")
        out = outputs[-1].outputs[0]
        tokens = list(out.token_ids)
        logprobs = [step[token].logprob for token, step in zip(tokens, out.logprobs, strict=True)] if out.logprobs else None
        reply = pack(
            {
                "op": "done",
                "id": number,
                "text": out.text,
                "finish": out.finish_reason,
                "cached": outputs[-1].num_cached_tokens,
                "logprobs": logprobs,
            },
            tokens,  # type: ignore[arg-type]
        )
    except asyncio.CancelledError:
        return
    except EngineDeadError as error:
        writer.write(pack({"op": "fatal", "error": f"{type(error).__name__}: {error}"}))
        return
    except Exception as error:
        cause = error.__cause__ or error
        # A refused value stays refused; anything else may have been the moment.
        retryable = not isinstance(cause, ValueError | TypeError)
        reply = pack({"op": "failed", "id": number, "error": f"{type(cause).__name__}: {cause}", "retryable": retryable})
    with contextlib.suppress(ConnectionError):
        writer.write(reply)
        await writer.drain()


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(serve(sys.argv[1]))
