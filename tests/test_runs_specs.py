"""Runs from specifications alone: everything is loaded from what they name, and one engine serves all runs of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs_standin import CALLS, Counted, Questions, Reads

from pimem import runs
from pimem.config import EngineSpec, Execution, ModelSpec, PiMemSpec, RunSpec, SamplingSpec, TaskSpec, VanillaSpec
from pimem.engines import lazy
from pimem.records import to_json
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
