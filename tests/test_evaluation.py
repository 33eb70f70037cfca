"""The evaluation loop: nothing twice, nothing lost, whatever ends a run."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import runs_standin
from runs_standin import CALLS, READS, RUN, Counted, Questions, Reads, go, start

from pimem import evaluation, journal
from pimem.config import Execution
from pimem.engines.base import EngineInfo
from pimem.engines.lazy import LazyEngine
from pimem.errors import BudgetError, ConfigError, DataError, EngineError, PimemError, StoreError
from pimem.evaluation import JournalEngine
from pimem.progress import Counts
from pimem.records import CallKey, Completion, Sampling, to_json
from pimem.store import RunStore


def said(store: RunStore) -> list[object]:
    return [to_json(trace) for trace in store.traces()]


def spawn(root: Path, calls: Path, **options: object) -> subprocess.Popen[str]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, runs_standin.__file__, str(root), f"--calls={calls}", *flags]
    paths = os.pathsep.join([str(Path(evaluation.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """Traces of six samples, made in one go."""
    return said(go(tmp_path_factory.mktemp("whole"), 6, Counted()))


def test_a_run_is_stored_with_all_that_scoring_needs(tmp_path: Path) -> None:
    store = go(tmp_path, 3, Counted())
    samples, traces = list(store.samples()), list(store.traces())
    assert [t.sample for t in traces] == ["q0", "q1", "q2"]
    assert traces[2].response == "q2/1/final/0: ünï \ud800"
    assert [len(t.calls()) for t in traces] == [CALLS] * 3
    assert samples[1].answers == ("1",)
    assert samples[1].evidence[0].text == "gold"
    assert (samples[1].cluster, samples[1].meta, samples[1].question) == ("c1", {"i": 1}, "What is 1?")
    manifest = store.manifest()
    assert manifest is not None
    assert (manifest["n"], manifest["answered"], manifest["failed"]) == (3, 3, 0)
    assert manifest["last"]["calls"] == 3 * CALLS
    (session,) = manifest["sessions"]
    assert session["engine"]["info"]["model"] == "counted"
    assert session["execution"]["concurrency"] == 8
    assert "numpy" in session["provenance"]["packages"]


def test_a_complete_run_asks_nothing_and_builds_nothing(tmp_path: Path) -> None:
    before = said(go(tmp_path, 4, Counted()))
    files = sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.rglob("*-*.jsonl"))
    engine, task = Counted(), Questions()
    assert said(go(tmp_path, 4, engine, task=task)) == before
    assert (engine.answered, task.built) == ([], [])
    assert sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.rglob("*-*.jsonl")) == files


def test_more_samples_make_only_what_is_missing(tmp_path: Path, whole: list[object]) -> None:
    go(tmp_path, 2, Counted())
    engine, task = Counted(), Questions()
    store = go(tmp_path, 6, engine, task=task)
    assert said(store) == whole
    assert task.built == [2, 3, 4, 5]
    assert len(engine.answered) == 4 * CALLS
    assert len(list(store.traces(2))) == 2


@pytest.mark.parametrize("kill_at", [1, 4, CALLS, 2 * CALLS + 3, 6 * CALLS])
def test_killed_and_run_again_makes_no_finished_call_twice(tmp_path: Path, whole: list[object], kill_at: int) -> None:
    calls = tmp_path / "calls"
    killed = spawn(tmp_path, calls, kill_at=kill_at)
    assert killed.wait() == -signal.SIGKILL
    assert (len(calls.read_text().splitlines()) if calls.exists() else 0) == kill_at - 1
    store = go(tmp_path, 6, Counted(calls))
    made = calls.read_text().splitlines()
    assert len(made) == len(set(made)) == 6 * CALLS
    assert said(store) == whole
    assert store.damage == []


def test_killed_from_outside_at_any_time(tmp_path: Path, whole: list[object]) -> None:
    calls = tmp_path / "calls"
    for wait in (0.05, 0.15, 0.3):
        process = spawn(tmp_path, calls, latency=0.02)
        while not calls.exists():
            time.sleep(0.01)
        time.sleep(wait)
        process.kill()
        process.wait()
    assert said(go(tmp_path, 6, Counted(calls))) == whole
    made = calls.read_text().splitlines()
    assert set(made) == {str(c.key) for t in RunStore.open(next(tmp_path.glob("*/*"))).traces() for c in t.calls()}
    # A call may be cut off between its end in the engine and its line in the journal, at most once a kill and slot.
    assert len(made) - len(set(made)) <= 3


def test_two_processes_share_one_store(tmp_path: Path, whole: list[object]) -> None:
    calls = tmp_path / "calls"
    both = [spawn(tmp_path, calls, latency=0.03) for _ in range(2)]
    assert [p.communicate()[0].strip() for p in both] == ["6", "6"]
    made = calls.read_text().splitlines()
    assert len(made) == len(set(made)) == 6 * CALLS
    assert said(RunStore.open(next(tmp_path.glob("*/*")))) == whole


def test_the_work_of_a_process_that_dies_is_taken_over(tmp_path: Path, whole: list[object]) -> None:
    calls = tmp_path / "calls"
    dies = spawn(tmp_path, calls, latency=0.05, kill_at=9)
    while not calls.exists():
        time.sleep(0.01)
    store = go(tmp_path, 6, Counted(calls, latency=0.01))
    assert dies.wait() == -signal.SIGKILL
    made = calls.read_text().splitlines()
    assert len(made) == len(set(made)) == 6 * CALLS
    assert said(store) == whole


async def test_two_loops_in_one_process_share_one_store(tmp_path: Path, whole: list[object]) -> None:
    engine = Counted(latency=0.01)
    one, two = await asyncio.gather(start(tmp_path, 6, engine), start(tmp_path, 6, engine))
    assert said(one) == said(two) == whole
    assert len(engine.answered) == len(set(engine.answered)) == 6 * CALLS


async def test_cancelling_leaves_a_store_that_goes_on(tmp_path: Path, whole: list[object]) -> None:
    engine = Counted(latency=0.02)
    task = asyncio.create_task(start(tmp_path, 6, engine))
    while len(engine.answered) < 12:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.running == 0
    store = await start(tmp_path, 6, engine)
    assert said(store) == whole
    assert len(engine.answered) == len(set(engine.answered)) == 6 * CALLS


def test_a_torn_last_line_is_cut_off_and_made_anew(tmp_path: Path, whole: list[object]) -> None:
    killed = spawn(tmp_path, tmp_path / "calls", kill_at=12)
    killed.wait()
    file = next(tmp_path.rglob("journal-*.jsonl"))
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) in (12, 13)  # a header, and what was written before the kill took effect
    file.write_bytes(b"".join(lines)[:-25])
    engine = Counted()
    store = go(tmp_path, 6, engine)
    assert said(store) == whole
    assert len(engine.answered) == 6 * CALLS - (len(lines) - 2)
    assert file.read_bytes() == b"".join(lines[:-1])
    assert lines[-1][:-25].decode() in file.with_suffix(".damaged").read_text().replace('\\"', '"').replace("\\\\", "\\")
    assert "torn" in store.damage[0]
    assert str(file) in store.damage[0]


def test_a_damaged_line_is_reported_kept_and_made_anew(tmp_path: Path, whole: list[object]) -> None:
    # Before any sample is whole: the calls of one that is are never needed again.
    spawn(tmp_path, tmp_path / "calls", kill_at=CALLS - 1).wait()
    file = next(tmp_path.rglob("journal-*.jsonl"))
    lines = file.read_bytes().splitlines(keepends=True)
    at = lines[4].index(b'"text":"') + 9
    lines[4] = lines[4][:at] + bytes([lines[4][at] ^ 1]) + lines[4][at + 1 :]
    file.write_bytes(b"".join(lines))
    engine = Counted()
    store = go(tmp_path, 6, engine)
    assert said(store) == whole
    assert len(engine.answered) == 6 * CALLS - (len(lines) - 2)  # a header and the damaged call
    assert store.damage == [f"{file}, line 5: damaged; skipped, and what it held is made anew"]
    kept = file.with_suffix(".damaged")
    once = kept.read_bytes()
    assert once.count(b"\n") == 1
    go(tmp_path, 7, engine)
    assert kept.read_bytes() == once
    manifest = store.manifest()
    assert manifest is not None
    assert manifest["n"] == 7


@pytest.mark.parametrize("torn", [False, True])
def test_damage_is_said_once_whether_or_not_anything_is_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], torn: bool
) -> None:
    go(tmp_path, 3, Counted())
    file = next(tmp_path.rglob("journal-*.jsonl"))
    data = bytearray(file.read_bytes())
    if torn:
        file.write_bytes(data[:-9])
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    capsys.readouterr()
    go(tmp_path, 3, Counted(), progress="log")
    said = capsys.readouterr().err
    assert said.count("its last line was torn" if torn else "damaged; skipped") == 1
    assert str(file) in said
    assert f"its text is in {file.stem}.damaged" in said
    go(tmp_path, 3, Counted(), progress="log")
    assert str(file) not in capsys.readouterr().err


def test_a_damaged_trace_is_made_again_from_the_journal_alone(tmp_path: Path, whole: list[object]) -> None:
    go(tmp_path, 6, Counted())
    file = next(tmp_path.rglob("traces-*.jsonl"))
    data = bytearray(file.read_bytes())
    data[data.index(b'"sample":"q3"') + 40] ^= 4
    file.write_bytes(data)
    engine = Counted()
    store = go(tmp_path, 6, engine)
    assert engine.answered == []
    assert said(store) == whole
    assert len(store.damage) == 1


def test_a_full_disk_stops_the_run_and_harms_nothing(
    tmp_path: Path, whole: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = 9_000
    write = os.write

    def full(fd: int, data: memoryview) -> int:
        nonlocal left
        if left <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = write(fd, data[:left])
        left -= done
        return done

    engine = Counted()
    monkeypatch.setattr(journal.os, "write", full)
    monkeypatch.setattr(evaluation.provenance, "collect", dict)
    with pytest.raises(StoreError, match=r"the disk is full\. Everything up to here is safe"):
        go(tmp_path, 6, engine)
    monkeypatch.undo()
    kept = {p: p.read_bytes() for p in tmp_path.rglob("*-*.jsonl")}
    lines = [line for path in kept for line in journal.scan(path)]
    assert sum(len(line.data) for line in lines) == sum(map(len, kept.values()))  # no torn end
    assert all(line.ok for line in lines)
    stored = sum(b'"key":[1,"' in line.data and line.data.startswith(b'{"sample":') for line in lines)
    assert stored >= CALLS
    again = Counted()
    store = go(tmp_path, 6, again)
    assert said(store) == whole
    assert all(path.read_bytes() == data for path, data in kept.items())
    calls = {str(c.key) for t in store.traces() for c in t.calls()}
    assert len(again.answered) + sum(b'"prompt":' in line.data for line in lines) == len(calls)


def test_failed_samples_stay_in_the_denominator_and_are_tried_again(tmp_path: Path) -> None:
    engine = Counted()
    engine.fail = {"q1": "the server hung up"}
    store = go(tmp_path, 4, engine)
    assert [t.status for t in store.traces()] == ["answered", "failed", "answered", "answered"]
    assert store.failures(4) == {1: "the server hung up"}
    manifest = store.manifest()
    assert manifest is not None
    assert (manifest["answered"], manifest["failed"]) == (3, 1)
    engine.answered.clear()
    assert [t.status for t in go(tmp_path, 4, engine, retry_failed=False).traces()].count("failed") == 1
    assert engine.answered == []
    engine.fail = {}
    store = go(tmp_path, 4, engine)
    assert [t.status for t in store.traces()] == ["answered"] * 4
    assert len(engine.answered) == CALLS
    assert store.failures(4) == {}
    manifest = store.manifest()
    assert manifest is not None
    assert (manifest["answered"], manifest["failed"]) == (4, 0)


def test_samples_under_way_are_bounded_by_their_tokens(tmp_path: Path) -> None:
    task, engine = Questions(), Counted(latency=0.001)
    most = 0

    class Watching(Reads):
        async def run(self, *args: object) -> object:
            nonlocal most
            most = max(most, len(task.built) - len(store_lines()))
            return await super().run(*args)

    def store_lines() -> list[bytes]:
        return [line for p in tmp_path.rglob("traces-*.jsonl") for line in p.read_bytes().splitlines()[1:]]

    go(tmp_path, 30, engine, task=task, workflow=Watching(), execution=Execution(concurrency=6, inflight_tokens=250))
    assert most <= 2 + 1 + 1  # two under way, one that waits for room, one that is just being declared done
    assert engine.most <= 6


def test_budget_errors_fail_their_sample_or_end_a_run_in_which_all_do(tmp_path: Path) -> None:
    class Small(Reads):
        async def run(self, question: str, *args: object) -> object:
            if question in refused:
                raise BudgetError("the question is too long")
            return await super().run(question, *args)

    refused = {"What is 1?"}
    store = go(tmp_path, 2, Counted(), workflow=Small())
    assert store.failures(2) == {1: "the question is too long"}
    refused = {"What is 0?", "What is 1?"}
    with pytest.raises(BudgetError, match="too long"):
        go(tmp_path / "other", 2, Counted(), workflow=Small())


def test_errors_name_their_cause(tmp_path: Path) -> None:
    class Wrong(Reads):
        async def run(self, *args: object) -> object:
            raise ConfigError("the context is empty")

    with pytest.raises(ConfigError, match="sample q0: the context is empty"):
        go(tmp_path, 2, Counted(), workflow=Wrong())
    with pytest.raises(ConfigError, match="at least one sample"):
        go(tmp_path, 0, Counted())
    with pytest.raises(DataError, match="no sample 3"):
        go(tmp_path, 5, Counted(), task=Questions(count=3))
    assert len(RunStore.open(next(tmp_path.glob("*/*"))).outcomes) <= 3
    with pytest.raises(DataError, match="samples 0 and 1 have the same id 'x'"):
        go(tmp_path / "twice", 2, Counted(), task=Questions(ids=("x", "x")))


def test_no_sample_id_reaches_the_file_system(tmp_path: Path) -> None:
    ids = ("../../../evil", "/etc/passwd", 'a"b\\c\n{"sample":"x"', "nul\0", "é\ud800" * 300, "..", "")
    root = tmp_path / "deep" / "root"
    store = go(root, len(ids), Counted(), task=Questions(ids))
    assert [t.sample for t in store.traces()] == list(ids)
    assert [p.name for p in tmp_path.iterdir()] == ["deep"]
    assert [p.name for p in root.iterdir()] == ["stand-in-100"]
    names = sorted(p.name.partition("-")[0] for p in next(root.glob("*/*")).iterdir())
    assert names == ["journal", "locks", "manifest.json", "spec.json", "traces"]
    engine = Counted()
    go(root, len(ids), engine, task=Questions(ids))
    assert engine.answered == []


async def test_a_stored_call_counts_only_for_the_same_prompt_and_sampling(tmp_path: Path) -> None:
    key, prompt, sampling = CallKey("s", 1, "read", 0), np.arange(5, dtype=np.uint32), Sampling(4, seed=1)
    with RunStore.create(tmp_path, RUN, {}) as store:
        await JournalEngine(Counted(), store, Counts()).generate(prompt, sampling, key)
    with RunStore.create(tmp_path, RUN, {}) as store:
        counts = Counts()
        engine = JournalEngine(Counted(), store, counts)
        await engine.begin("s")
        first = await engine.generate(prompt, sampling, key)
        assert (counts.replayed, counts.calls, counts.stale) == (1, 0, 0)
        assert first.text == "s/1/read/0: ünï \ud800"
        assert first.logprobs == (-0.1, -1e-300, -0.3)
        await engine.generate(prompt + 1, sampling, key)
        await engine.generate(prompt, Sampling(4, seed=2), key)
        assert (counts.replayed, counts.calls, counts.stale) == (1, 2, 2)
        engine.end("s")
    with RunStore.create(tmp_path, RUN, {}) as store:
        assert [len(known) for known in store.calls("s").values()] == [3]


def test_an_engine_starts_only_when_it_is_needed(tmp_path: Path) -> None:
    started = []

    async def begin() -> Counted:
        started.append(1)
        return Counted()

    def lazy() -> LazyEngine:
        return LazyEngine(begin, EngineInfo("scripted", "m", 64))

    go(tmp_path, 2, lazy())
    assert started == [1]
    go(tmp_path, 2, lazy())
    assert started == [1]


def test_an_engine_that_does_not_start_ends_the_run_at_once(tmp_path: Path) -> None:
    tries = []

    async def begin() -> Counted:
        tries.append(1)
        raise EngineError("no such device")

    with pytest.raises(PimemError, match="the engine did not start: no such device"):
        go(tmp_path, 3, LazyEngine(begin, EngineInfo("vllm", "m", 64)))
    assert tries == [1]
    assert RunStore.open(next(tmp_path.glob("*/*"))).outcomes == {}


def test_an_engine_that_is_gone_ends_the_run_and_no_sample_counts_as_wrong(tmp_path: Path) -> None:
    class Dying(Counted):
        async def generate(self, *args: object) -> Completion:
            if len(self.answered) >= CALLS + 2:
                raise EngineError("the worker died", retryable=False, gone=True)
            return await super().generate(*args)  # type: ignore[arg-type]

    async def begin() -> Counted:
        return Dying()

    with pytest.raises(PimemError, match="the engine has ended: the worker died"):
        go(tmp_path, 4, LazyEngine(begin, EngineInfo("vllm", "m", 64)), execution=Execution(concurrency=1))
    assert [o.status for o in RunStore.open(next(tmp_path.glob("*/*"))).outcomes.values()] == ["answered"]
    engine = Counted()
    assert [t.status for t in go(tmp_path, 4, engine).traces()] == ["answered"] * 4
    assert len(engine.answered) == 4 * CALLS - (CALLS + 2)


async def test_reads_of_earlier_samples_and_merges_go_first(tmp_path: Path) -> None:
    order = Counted(latency=0.001)
    await start(tmp_path, 3, order, execution=Execution(concurrency=1, inflight_tokens=1))
    by_sample = [name.split("/")[0] for name in order.answered]
    assert by_sample == ["q0"] * CALLS + ["q1"] * CALLS + ["q2"] * CALLS
    assert [name.split("/")[2] for name in order.answered[:CALLS]] == ["read"] * READS + ["merge", "final"]
