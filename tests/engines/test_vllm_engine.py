"""vLLM's process: what it costs to have one die, be killed or not come up, and that none is ever left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from engine_bench import KEY, Started, children, started

import pimem
from pimem.config import EngineSpec, ModelSpec
from pimem.engines.base import build
from pimem.engines.vllm_engine import VllmEngine
from pimem.engines.vllm_worker import engine_args
from pimem.errors import EngineError
from pimem.records import Completion, Sampling

PACKAGE = str(Path(pimem.__file__).parents[1])
WANTED = {
    "max_model_len": 8192,
    "max_num_batched_tokens": 4096,
    "gpu_memory_utilization": 0.9,
    "enforce_eager": False,
    "enable_prefix_caching": True,
}


def test_arguments_on_a_gpu_are_those_asked_for_and_on_a_cpu_those_it_survives() -> None:
    assert engine_args(dict(WANTED), on_cpu=False) == WANTED
    on_cpu = engine_args(dict(WANTED), on_cpu=True)
    assert on_cpu["enable_chunked_prefill"] is False
    assert on_cpu["max_num_batched_tokens"] == 8192
    assert on_cpu["gpu_memory_utilization"] == 0.2
    assert on_cpu["enforce_eager"] is True
    assert on_cpu["enable_prefix_caching"] is True


async def test_without_vllm_it_says_what_to_install(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EngineError, match="install the extra 'cpu-full'") as failure:
        await build(EngineSpec(kind="vllm"), ModelSpec(path=str(tiny_model)))
    assert not failure.value.retryable


async def test_a_worker_that_cannot_start_shows_its_log_and_leaves_nothing(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "vllm.py").write_text("raise ImportError('a library it needs is of another version')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    before = children(os.getpid())
    with pytest.raises(EngineError, match="ImportError: a library it needs is of another version") as failure:
        await build(EngineSpec(kind="vllm"), ModelSpec(path=str(tiny_model)))
    assert "worker.log" in str(failure.value)
    assert not failure.value.retryable
    assert children(os.getpid()) == before


def test_the_worker_and_its_children_die_with_their_parent(tmp_path: Path) -> None:
    """The worker's group is killed though the parent, killed itself, could do nothing; without vLLM."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys, time\n"
        "code = 'from pimem.engines.vllm_worker import die_with_parent; import subprocess, time; die_with_parent();'\n"
        'code += \'subprocess.Popen(["sleep", "60"]); print("up", flush=True); time.sleep(60)\'\n'
        "worker = subprocess.Popen([sys.executable, '-c', code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,\n"
        "                          start_new_session=True)\n"
        "worker.stdout.readline()\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PACKAGE})
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    descendants = children(parent.pid)
    assert len(descendants) == 3, "the worker, its watchdog and its child"
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 10
    while alive := [pid for pid in descendants if _runs(pid)]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def bench(tiny_model: Path) -> Iterator[Started]:
    spec = EngineSpec(kind="vllm", device="cpu", max_batch_tokens=2048)
    with started(build, tiny_model, spec, ModelSpec(path=str(tiny_model))) as it:
        yield it


@pytest.mark.engine
def test_it_reports_what_the_prefix_cache_gave(bench: Started) -> None:
    text = "The memory holds what every section said. " * 40
    assert bench.ask(text, Sampling(2)).cached_tokens == 0
    again = bench.ask(text + "And more.", Sampling(2))
    assert again.cached_tokens is not None
    assert again.cached_tokens > 100
    assert bench.engine.info.details["dtype"] == "float32"
    json.dumps(bench.engine.info.details)


@pytest.mark.engine
def test_seeded_prompts_longer_than_a_step_together_do_not_kill_it(bench: Started) -> None:
    prompts = [np.full(1500 + i, 5 + i, dtype=np.uint32) for i in range(6)]

    async def all_of_them() -> list[Completion]:
        sampled = Sampling(4, 0.8, 0.95, seed=3, ignore_eos=True)
        return await asyncio.gather(*(bench.engine.generate(p, sampled, KEY) for p in prompts))

    assert [d.generated_tokens for d in bench.portal.call(all_of_them)] == [4] * 6


@pytest.mark.engine
def test_a_killed_worker_fails_requests_with_its_log_and_leaves_no_process(bench: Started) -> None:
    """Last in this file: the engine is gone afterwards."""
    engine = bench.engine
    assert isinstance(engine, VllmEngine)
    assert engine._process is not None
    group = {engine._process.pid, *children(engine._process.pid)}
    assert len(group) >= 3

    async def kill_midway() -> BaseException:
        asked = asyncio.create_task(engine.generate(bench.ids("fox"), Sampling(1900, ignore_eos=True), KEY))
        await asyncio.sleep(1)
        assert engine._process is not None
        os.kill(engine._process.pid, signal.SIGKILL)
        (outcome,) = await asyncio.gather(asked, return_exceptions=True)
        assert isinstance(outcome, BaseException)
        return outcome

    failure = bench.portal.call(kill_midway)
    assert isinstance(failure, EngineError)
    assert "the vLLM worker died" in str(failure)
    assert isinstance(failure, EngineError)
    assert failure.gone
    assert "worker.log" in str(failure)
    with pytest.raises(EngineError, match="the vLLM worker died"):
        bench.ask("fox", Sampling(2))
    bench.portal.call(engine.close)
    deadline = time.monotonic() + 5
    while alive := [pid for pid in group if _runs(pid)]:
        assert time.monotonic() < deadline, f"still there: {alive}"
        time.sleep(0.05)
