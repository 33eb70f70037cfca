"""Runs from specifications alone: everything is loaded from what they name, and one engine serves all runs of a model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs_standin import CALLS, Counted, Questions, Reads

from pimem import models, runs
from pimem.config import EngineSpec, Execution, ModelSpec, PiMemSpec, RunSpec, SamplingSpec, TaskSpec, VanillaSpec
from pimem.engines import lazy
from pimem.engines.scripted import Scripted
from pimem.errors import DataError, EngineError
from pimem.records import CallKey, to_json
from pimem.store import RunStore

EXECUTION = Execution(concurrency=4, inflight_tokens=5_000)


def test_one_engine_serves_all_runs_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[tuple[str, Counted]] = []
    closed = []

    async def build(engine: EngineSpec, model: ModelSpec) -> Counted:
        made = Counted()
        made.close = lambda: close(model.path)  # type: ignore[method-assign, assignment]
        engines.append((model.path, made))
        return made

    async def close(path: str) -> None:
        closed.append(path)

    monkeypatch.setattr(lazy, "build", build)
    monkeypatch.setattr(runs, "prepare", lambda *_: runs.Parts(Questions(), Reads(), "w"))  # type: ignore[arg-type]
    specs = [
        RunSpec(PiMemSpec(max_turns=turns), ModelSpec(model), TaskSpec("stand-in", 10))
        for turns, model in ((1, "a"), (1, "b"), (2, "a"))
    ]
    stores = runs.run_sync(specs, 2, EngineSpec(), EXECUTION, tmp_path, progress="none")
    assert [s.identity["run"]["model"]["path"] for s in stores] == ["a", "b", "a"]
    assert [s.identity["run"]["method"]["max_turns"] for s in stores] == [1, 1, 2]
    assert [(path, len(made.answered)) for path, made in engines] == [("a", 4 * CALLS), ("b", 2 * CALLS)]
    assert closed == ["a", "b"]
    again = runs.run_sync(specs, 2, EngineSpec(), EXECUTION, tmp_path, progress="none")
    assert len(engines) == 2
    assert [s.path for s in again] == [s.path for s in stores]


@pytest.fixture
def spec(tiny_model: Path) -> Any:
    def make(method: Any, **more: Any) -> RunSpec:
        task = TaskSpec("niah_single_1", 900)
        return RunSpec(method, ModelSpec(str(tiny_model), window=2048), task, SamplingSpec(temperature=0), "small", **more)

    return make


def test_a_run_from_specifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Any) -> None:
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "home"))
    method = PiMemSpec(chunk_tokens=600, memory_tokens=60, read_tokens=60, answer_tokens=60)
    specs = [spec(method), spec(VanillaSpec(answer_tokens=60))]
    engine = EngineSpec("scripted", seed=3)
    stores = runs.run_sync(specs, 3, engine, EXECUTION, tmp_path / "runs", progress="none")
    for store in stores:
        assert [t.status for t in store.traces()] == ["answered"] * 3
        assert all(len(s.answers) == 1 and len(s.evidence) == 1 for s in store.samples())
        assert store.identity["weights"] == "scripted-3"
        opened = RunStore.open(store.path)
        assert [to_json(t) for t in opened.traces()] == [to_json(t) for t in store.traces()]
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*.json*")}
    runs.run_sync(specs, 3, engine, EXECUTION, tmp_path / "runs", progress="none")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "runs").rglob("*.json*")} == before


METHOD = PiMemSpec(chunk_tokens=600, memory_tokens=60, read_tokens=60, answer_tokens=60)


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Samples whose final calls fail; every engine is a script from now on."""
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "home"))
    bad: set[str] = set()

    def script(key: CallKey, prompt: np.ndarray) -> str:
        if key.phase == "final" and key.sample in bad:
            raise EngineError("HTTP 500: garbage", retryable=False)
        if "all read much" in bad:
            return "word " * 800
        return "<check>no</check>" if key.phase == "read" else "said"

    async def build(engine: EngineSpec, model: ModelSpec) -> Scripted:
        return Scripted(script, model.window)

    monkeypatch.setattr(lazy, "build", build)
    return bad


def test_a_run_whose_samples_all_fail_at_the_engine_is_an_error_and_goes_on_once_it_is_mended(
    tmp_path: Path, spec: Any, failing: set[str]
) -> None:
    names = [f"niah_single_1-900-{i}" for i in range(3)]

    def go(method: Any = METHOD, **more: Any) -> RunStore:
        return runs.run_sync([spec(method)], 3, EngineSpec(), EXECUTION, tmp_path / "runs", progress="none", **more)[0]

    failing.update(names)
    with pytest.raises(EngineError, match=r"all 3 samples failed at a model request, the first one so: .*HTTP 500: garbage"):
        go()
    assert len(go(retry_failed=False).failures(3)) == 3
    failing.discard(names[1])
    assert list(go().failures(3)) == [0, 2]
    assert go().counts.calls == 0
    failing.clear()
    store = go()
    assert (store.failures(3), store.counts.calls) == ({}, 2)


def test_failures_of_a_method_are_no_failures_of_the_engine(tmp_path: Path, spec: Any, failing: set[str]) -> None:
    failing.add("all read much")
    method = dataclasses.replace(METHOD, read_tokens=900, merge=False, select=False)
    (store,) = runs.run_sync([spec(method)], 2, EngineSpec(), EXECUTION, tmp_path / "runs", progress="none")
    assert all("more than the window" in why for why in store.failures(2).values())
    assert len(store.failures(2)) == 2


def test_a_server_has_the_weights_and_its_model_is_named_by_what_is_known(
    tmp_path: Path, tiny_model: Path, spec: Any, failing: set[str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors":
            (bare / file.name).symlink_to(file)
    served = [EngineSpec("openai_api", served_model=name) for name in (None, "a", "b")]
    hashes = [runs.weights_hash(engine, bare) for engine in served]
    assert len(set(hashes)) == 3
    assert all(h.startswith("served-") for h in hashes)
    assert runs.weights_hash(served[1], tiny_model) == runs.weights_hash(EngineSpec(), tiny_model)
    there = dataclasses.replace(spec(METHOD), model=ModelSpec(str(bare), window=2048))
    (store,) = runs.run_sync([there], 1, served[1], EXECUTION, tmp_path / "runs", progress="none")
    assert store.identity["weights"] == hashes[1]
    with pytest.raises(DataError, match="no weights"):
        runs.run_sync([there], 1, EngineSpec(), EXECUTION, tmp_path / "runs", progress="none")


def test_end_tokens_are_part_of_what_answers(tmp_path: Path, tiny_model: Path) -> None:
    for file in tiny_model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    ends = tmp_path / "generation_config.json"
    ends.unlink(missing_ok=True)
    hashes = [runs.weights_hash(EngineSpec(), tmp_path)]
    for ids in ([2], [2, 0]):
        ends.write_text(json.dumps({"eos_token_id": ids}))
        hashes.append(runs.weights_hash(EngineSpec(), tmp_path))
    assert len(set(hashes)) == 3
    assert models.fingerprint(tmp_path) == models.fingerprint(tiny_model)
