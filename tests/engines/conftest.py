"""Engines started once for a module, and a real server once for all."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_bench import Started, scripted, started

from pimem.config import EngineSpec, ModelSpec
from pimem.engines.base import build
from pimem.engines.vllm_engine import kill_group


@pytest.fixture(scope="session")
def vllm_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of a real vLLM server with the tiny model on a loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm_server") / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_model), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--no-enable-chunked-prefill"]
    command += ["--max-model-len", "2048", "--max-num-batched-tokens", "4096", "--gpu-memory-utilization", "0.2"]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}
    with log.open("wb") as out:
        server = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + 600
        while True:
            assert server.poll() is None, f"the server died:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"the server is not up:\n{log.read_text()[-3000:]}"
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                break
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        kill_group(server)


@pytest.fixture(
    scope="module",
    params=[
        "scripted",
        "transformers",
        pytest.param("vllm", marks=pytest.mark.engine),
        pytest.param("openai_api", marks=pytest.mark.engine),
        pytest.param("transformers on cuda", marks=pytest.mark.gpu),
        pytest.param("vllm on cuda", marks=pytest.mark.gpu),
    ],
)
def bench(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Started]:
    """Each of the four engines over the tiny model (the scripted one over its tokenizer), on the CPU and on a GPU."""
    kind, _, device = request.param.partition(" on ")
    if kind == "scripted":
        with started(scripted, tiny_model, tiny_model) as it:
            yield it
        return
    url = request.getfixturevalue("vllm_server") if kind == "openai_api" else None
    spec = EngineSpec(kind=kind, device=device or "cpu", eager=True, url=url, max_batch_tokens=4096, gpu_memory=0.3)
    with started(build, tiny_model, spec, ModelSpec(path=str(tiny_model))) as it:
        yield it
