"""The store's files: identity, checksums, locks, and how fast it opens."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs_standin import RUN, Counted, go

from pimem import journal, store
from pimem.config import RunSpec, TaskSpec
from pimem.errors import ConfigError, StoreError
from pimem.journal import Locks, Log, intact, scan, seal
from pimem.records import Trace
from pimem.store import RunStore


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.floats(allow_nan=False) | st.lists(st.text())), st.data())
def test_a_sealed_line_is_json_and_any_flipped_bit_shows(record: dict[str, object], data: st.DataObject) -> None:
    record = {"sample": "s", **{k: v for k, v in record.items() if k != "crc"}}
    line = seal(record)
    assert {k: v for k, v in json.loads(line).items() if k != "crc"} == record
    assert line.count(b"\n") == 1
    assert intact(line)
    at = data.draw(st.integers(0, 8 * len(line) - 1))
    flipped = bytearray(line)
    flipped[at // 8] ^= 1 << at % 8
    assert not intact(bytes(flipped))


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(StoreError, match="fields sample, extra cannot be stored: a object"):
        seal({"sample": "s", "extra": object()})


async def test_a_log_keeps_the_order_of_what_it_was_given(tmp_path: Path) -> None:
    log = Log(tmp_path / "a.jsonl", header=lambda: seal({"session": "x"}))
    await log.synced()
    offsets = [log.append(seal({"n": i})) for i in range(500)]
    await asyncio.gather(*(log.synced() for _ in range(9)))
    log.close()
    lines = list(scan(log.path))
    assert [json.loads(line.data).get("n") for line in lines] == [None, *range(500)]
    assert [line.offset for line in lines[1:]] == offsets
    assert [line.offset for line in scan(log.path, offsets[498])] == offsets[498:]
    with pytest.raises(StoreError, match="closed"):
        log.append(b"late\n")


async def test_a_log_is_no_file_until_there_is_a_line(tmp_path: Path) -> None:
    log = Log(tmp_path / "a.jsonl")
    log.close()
    assert list(tmp_path.iterdir()) == []


def test_locks_keep_out_others_in_and_outside_of_this_process(tmp_path: Path) -> None:
    path = tmp_path / "locks"
    other = (
        "import sys; from pathlib import Path; from pimem.journal import Locks; l = Locks.open(Path(sys.argv[1]));"
        "print(int(l.acquire(3)), int(l.acquire(4)))"
    )

    def elsewhere() -> str:
        return subprocess.run([sys.executable, "-c", other, path], capture_output=True, text=True, check=True).stdout.strip()

    one, two = Locks.open(path), Locks.open(path)
    assert one.acquire(3)
    assert not two.acquire(3)
    two.close()
    assert elsewhere() == "0 1"
    one.release(3)
    assert elsewhere() == "1 1"
    assert one.acquire(4)
    one.close()
    assert elsewhere() == "1 1"


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(journal.fcntl, "lockf", unsupported)
    with pytest.raises(StoreError, match="cannot lock files"):
        RunStore.create(tmp_path, RUN, {})


def test_another_identity_is_another_folder(tmp_path: Path) -> None:
    paths = set()
    for identity in ({"prompts": "a"}, {"prompts": "b"}, {"prompts": "a", "data": "c"}):
        with RunStore.create(tmp_path, RUN, identity) as made:
            paths.add(made.path)
    assert len(paths) == 3
    assert {p.parent for p in paths} == {tmp_path / "stand-in-100"}
    assert all(p.name.startswith("pi_mem-") for p in paths)


def test_a_spec_that_is_not_the_runs_own_is_refused(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, RUN, {"prompts": "a"}) as made:
        spec = made.path / "spec.json"
    spec.write_text(spec.read_text().replace('"prompts": "a"', '"prompts": "b"'))
    with pytest.raises(StoreError, match="belongs to another run, different in prompts"):
        RunStore.create(tmp_path, RUN, {"prompts": "a"})
    spec.write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        RunStore.create(tmp_path, RUN, {"prompts": "a"})
    with pytest.raises(StoreError, match="not a run folder"):
        RunStore.open(tmp_path)


def test_where_no_folder_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        RunStore.create(tmp_path / "file", RUN, {})
    with pytest.raises(ConfigError, match="task name"):
        RunStore.create(tmp_path, RunSpec(RUN.method, task=TaskSpec("../up", 1)), {})


def test_reading_changes_nothing(tmp_path: Path) -> None:
    folder = go(tmp_path, 3, Counted()).path
    file = next(folder.glob("traces-*.jsonl"))
    file.write_bytes(file.read_bytes()[:-30])
    before = {p: p.read_bytes() for p in folder.iterdir()}
    opened = RunStore.open(folder)
    assert [t.sample for t in opened.traces()] == ["q0", "q1"]
    assert {p: p.read_bytes() for p in folder.iterdir()} == before
    with pytest.raises(StoreError, match="read only"):
        opened.claim(5)


def test_ten_thousand_samples_open_in_seconds(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, RUN, {}) as made:
        folder = made.path
    trace = Trace("", "pi_mem", "?" * 2000, "answered", notes={"long": "x" * 6000})
    with open(folder / "traces-a-1-0.jsonl", "wb") as traces, open(folder / "journal-a-1-0.jsonl", "wb") as calls:
        for i in range(10_000):
            head = {"sample": f"q{i}", "index": i, "status": "answered", "at": 1.5, "by": "a-1-0"}
            traces.write(seal({**head, "about": {}, "trace": trace}))
            for index in range(10 if i != 77 else 12):
                calls.write(seal({"sample": f"q{i if i != 77 else 'x'}", "key": [1, "read", index], "completion": "y" * 200}))
    began = time.process_time()
    with RunStore.create(tmp_path, RUN, {}) as opened:
        assert time.process_time() - began < 5
        assert len(opened.outcomes) == 10_000
        # Of the calls, only those of the sample that is not through are remembered.
        assert {sample: len(places) for sample, places in opened._calls.items()} == {b'"qx"': 12}


def test_the_first_answer_stands_and_beats_any_failure(tmp_path: Path) -> None:
    with RunStore.create(tmp_path, RUN, {}) as made:
        folder = made.path
    lines = [("failed", 5.0), ("answered", 3.0), ("answered", 4.0), ("failed", 9.0)]
    for i, (status, at) in enumerate(lines):
        head = {"sample": "q", "index": 0, "status": status, "at": at, "by": "x"}
        (folder / f"traces-{i}-1-0.jsonl").write_bytes(seal(head))
    assert RunStore.open(folder).outcomes == {0: store.Outcome("answered", 3.0, folder / "traces-1-1-0.jsonl", 0)}


def test_a_damaged_manifest_says_what_to_do(tmp_path: Path) -> None:
    made = go(tmp_path, 1, Counted())
    for text in ("{", "{}", "[]", '"n"', '{"n": "1"}', "null"):
        (made.path / "manifest.json").write_text(text)
        with pytest.raises(StoreError, match="delete it and run again"):
            made.manifest()
