"""The durable store of one run: finished samples with their traces, and every finished call of the unfinished ones.

Its folder, `<root>/<task>-<length>/<method>-<hash>/`:

    spec.json         the run's identity; the hash in the folder's name is its hash
    journal-*.jsonl   one file a process: every call as it ended
    traces-*.jsonl    one file a process: samples that are through, with all that scoring needs
    *.damaged         text of lines that could not be trusted, kept as found
    locks             byte i is held by the process at work on sample i
    manifest.json     written last: who ran how much of it with what

Nothing is ever rewritten. What a line says holds if its checksum does; otherwise it is set aside and its work is made anew.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pimem.config import RunSpec, as_dict, canonical_hash
from pimem.errors import ConfigError, StoreError
from pimem.journal import Line, Locks, Log, end_of_lines, replace_file, scan, seal
from pimem.progress import Counts
from pimem.records import (
    CallKey,
    Completion,
    Sample,
    Sampling,
    Trace,
    completion_from_json,
    sample_from_json,
    sampling_from_json,
    trace_from_json,
    without_context,
)

FORMAT = 1
"""Of the lines; raised when older ones can no longer be read."""

_STRING = rb'("(?:[^"\\]|\\.)*")'
_TRACE = re.compile(rb'\{"sample":' + _STRING + rb',"index":(\d+),"status":"(answered|failed)","at":([0-9.e+]+),')
_CALL = re.compile(rb'\{"sample":' + _STRING + rb',"key":')
_SESSION = b'{"session":'
_WRITERS = 1 << 40
"""Locks from this number on say that the writer of a file lives."""


class Known(NamedTuple):
    """A call that is in the store."""

    prompt_hash: str
    sampling: Sampling
    completion: Completion


class Outcome(NamedTuple):
    """A sample that is through, and where its line stands."""

    status: Literal["answered", "failed"]
    at: float
    file: Path
    offset: int


def folder_of(root: Path, run: RunSpec, identity: Mapping[str, Any]) -> Path:
    """Where a run's store lies. Raises `ConfigError` for a task name that is no plain name."""
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", run.task.name):
        raise ConfigError(f"task name {run.task.name!r}: only letters, digits, '.', '_' and '-' are allowed")
    return root / f"{run.task.name}-{run.task.length}" / f"{run.method.method}-{canonical_hash(identity)}"


class RunStore:
    """One run's folder. Read it with `RunStore.open`; `RunStore.create` is for the evaluation loop.

    Of a finished sample, memory holds where its line stands; of an unfinished one, where the lines of its calls stand.
    """

    def __init__(self, path: Path, identity: dict[str, Any], *, write: bool):
        self.path = path
        self.identity = identity
        self.outcomes: dict[int, Outcome] = {}
        self.damage: list[str] = []
        """Damaged or torn lines found by this object, as sentences."""
        self.news: list[str] = []
        """Those of them that nobody had found before."""
        self.counts = Counts()
        """What the evaluation loop that made this object has done; all zero in a store that was only opened."""
        self.session: Callable[[], dict[str, Any]] = dict
        """What the manifest is to say of this process; asked when a file's first line is written."""
        self._guard = threading.RLock()
        self._seen: dict[Path, tuple[int, int]] = {}
        self._calls: dict[bytes, list[tuple[Path, int]]] = {}
        self._answered: set[bytes] = set()
        self._claims: set[int] = set()
        self._writer = _WRITERS
        self._locks: Locks | None = None
        self._logs: tuple[Log, Log] | None = None
        try:
            if write:
                self._locks = Locks.open(path / "locks")
                self.name = self._new_name(self._locks)
                self._journal, self._traces = (
                    Log(path / f"{k}-{self.name}.jsonl", self._header) for k in ("journal", "traces")
                )
                self._logs = self._journal, self._traces
                self._repair()
            self.refresh()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: str | Path) -> RunStore:
        """An existing store, to read; changes nothing in it. Raises `StoreError` where there is none."""
        path = Path(path)
        return cls(path, _read_spec(path / "spec.json"), write=False)

    @classmethod
    def create(cls, root: str | Path, run: RunSpec, identity: dict[str, Any]) -> RunStore:
        """The store of a run, new or as it was left, to write; torn ends of dead processes' files are cut off.

        Raises `StoreError` where it cannot be written or where its spec.json says it is another run's.
        """
        identity = {**identity, "run": as_dict(run), "format": FORMAT}
        path = folder_of(Path(root), run, identity)
        spec = path / "spec.json"
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{path}: the run folder cannot be made ({error}); choose another folder") from error
        if not spec.exists():
            replace_file(spec, json.dumps(identity, indent=1, sort_keys=True) + "\n")
        found = _read_spec(spec)
        if canonical_hash(found) != canonical_hash(identity):
            differ = sorted(k for k in found.keys() | identity.keys() if found.get(k) != identity.get(k))
            raise StoreError(
                f"{spec}: belongs to another run, different in {', '.join(differ)}. It was edited, or its folder renamed: "
                "move the folder away and start again"
            )
        return cls(path, identity, write=True)

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Writes out what is left and gives every lock back; reading still works. Idempotent."""
        for log in self._logs or ():
            log.close()
        if self._locks:
            for number in (*self._claims, self._writer):
                self._locks.release(number)
            self._locks.close()
            self._locks = None
        self._claims.clear()

    def refresh(self) -> None:
        """Takes in what other processes have added. Raises `StoreError` where a file cannot be read."""
        with self._guard:
            own = {log.path for log in self._logs or ()}
            try:
                # Traces first: the calls of finished samples need not be kept.
                for path in (*sorted(self.path.glob("traces-*.jsonl")), *sorted(self.path.glob("journal-*.jsonl"))):
                    if path not in own:
                        self._take_in(path)
            except OSError as error:
                raise StoreError(f"{self.path}: the store cannot be read ({error})") from error

    def _take_in(self, path: Path) -> None:
        start, number = self._seen.get(path, (0, 0))
        if path.stat().st_size <= start:
            return
        traces, offset = path.name.startswith("traces-"), start
        for line in scan(path, start):
            number, offset = number + 1, line.offset + len(line.data)
            match = (_TRACE if traces else _CALL).match(line.data) if line.ok else None
            if match is None:
                if not (line.ok and line.data.startswith(_SESSION)):
                    self._set_aside(path, number, line)
            elif traces:
                self._through(match[1], int(match[2]), Outcome(_status(match[3]), float(match[4]), path, line.offset))
            elif match[1] not in self._answered:
                self._calls.setdefault(match[1], []).append((path, line.offset))
        self._seen[path] = offset, number

    def _through(self, sample: bytes, index: int, new: Outcome) -> None:
        old = self.outcomes.get(index)
        # The first answer stands; of failures the latest.
        if old is None or (old.status == "failed" and (new.status == "answered" or new.at >= old.at)):
            self.outcomes[index] = new
        if new.status == "answered":
            self._answered.add(sample)
            self._calls.pop(sample, None)

    def _set_aside(self, path: Path, number: int, line: Line) -> None:
        what = f"{path}, line {number}: damaged; skipped, and what it held is made anew"
        self._keep_text(path, line.offset, line.data, what)

    def _keep_text(self, path: Path, offset: int, data: bytes, what: str) -> None:
        self.damage.append(what)
        kept = path.with_suffix(".damaged")
        if self._locks and not (kept.exists() and b'{"offset": %d,' % offset in kept.read_bytes()):
            self.news.append(f"{what}; its text is in {kept.name}")
            with open(kept, "a", encoding="ascii") as file:
                file.write(json.dumps({"offset": offset, "text": data.decode("latin-1")}) + "\n")

    def _repair(self) -> None:
        """Cuts off the unfinished last lines of processes that are gone; their text is kept."""
        for path in sorted(self.path.glob("*-*.jsonl")):
            try:
                self._cut(path)
            except OSError as error:
                raise StoreError(f"{path}: its torn last line could not be cut off ({error})") from error

    def _cut(self, path: Path) -> None:
        assert self._locks
        with open(path, "rb+") as file:
            size, end = file.seek(0, os.SEEK_END), end_of_lines(file)
            # A writer that lives is only not done with its line.
            if end < size and self._locks.acquire(writer := _writer_lock(path.stem.partition("-")[2])):
                try:
                    file.seek(end)
                    what = f"{path}: its last line was torn; cut off, and what it held is made anew"
                    self._keep_text(path, end, file.read(), what)
                    file.truncate(end)
                finally:
                    self._locks.release(writer)

    def _new_name(self, locks: Locks) -> str:
        host = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
        for number in range(1 << 20):
            name = f"{host}-{os.getpid()}-{number}"
            taken = any((self.path / f"{kind}-{name}.jsonl").exists() for kind in ("journal", "traces"))
            if not taken and locks.acquire(lock := _writer_lock(name)):
                self._writer = lock
                return name
        raise StoreError(f"{self.path}: no name left for this process's files")

    def _header(self) -> bytes:
        return seal({"session": self.name, "format": FORMAT, "at": time.time(), **self.session()})

    def claim(self, index: int) -> bool:
        """Takes a sample for this object until `release` or `close`; False where somebody else is at it.

        What others have written up to now is known afterwards, so `outcomes` are to be looked at again.
        """
        if self._locks is None:
            raise StoreError(f"{self.path}: open to read only")
        if not self._locks.acquire(index):
            return False
        self._claims.add(index)
        self.refresh()
        return True

    def release(self, index: int) -> None:
        if self._locks and index in self._claims:
            self._claims.discard(index)
            self._locks.release(index)

    def calls(self, sample: str) -> dict[CallKey, list[Known]]:
        """The finished calls of an unfinished sample, by key."""
        with self._guard:
            places = list(self._calls.get(json.dumps(sample).encode(), ()))
        found: dict[CallKey, list[Known]] = {}
        for path in {p: None for p, _ in places}:
            with open(path, "rb") as file:
                for offset in (at for p, at in places if p == path):
                    file.seek(offset)
                    data = json.loads(file.readline())
                    known = Known(
                        data["prompt"], sampling_from_json(data["sampling"]), completion_from_json(data["completion"])
                    )
                    found.setdefault(CallKey(sample, *data["key"]), []).append(known)
        return found

    def add_call(self, key: CallKey, prompt_hash: str, sampling: Sampling, completion: Completion) -> None:
        """From its return on, the call outlives this process. Raises `StoreError`."""
        record = {"sample": key.sample, "key": key[1:], "prompt": prompt_hash, "sampling": sampling, "completion": completion}
        self._journal.append(seal(record))

    async def add_trace(self, index: int, sample: Sample, trace: Trace) -> None:
        """Returns once the sample's trace is on disk for good. Raises `StoreError`."""
        at = time.time()
        about = {name: value for name, value in without_context(sample).items() if name != "id"}
        head = {"sample": sample.id, "index": index, "status": trace.status, "at": at, "by": self.name}
        line = await asyncio.to_thread(seal, {**head, "about": about, "trace": trace})
        offset = self._traces.append(line)
        await self._traces.synced()
        with self._guard:
            outcome = Outcome(trace.status, at, self._traces.path, offset)
            self._through(json.dumps(sample.id).encode(), index, outcome)

    def records(self, n: int | None = None) -> Iterator[tuple[Sample, Trace]]:
        """Samples that are through (of the first `n`), in order, one in memory at a time; contexts are left out (empty)."""
        for index in sorted(i for i in self.outcomes if n is None or i < n):
            data = self._read(self.outcomes[index])
            sample = sample_from_json({"id": data["sample"], **data["about"]})
            yield sample, trace_from_json(data["trace"])

    def traces(self, n: int | None = None) -> Iterator[Trace]:
        """Traces of the samples that are through, failed ones included, in order."""
        return (trace for _, trace in self.records(n))

    def samples(self, n: int | None = None) -> Iterator[Sample]:
        """The samples of `traces`, in the same order, with answers and evidence but without their contexts."""
        return (sample for sample, _ in self.records(n))

    def _read(self, outcome: Outcome) -> dict[str, Any]:
        with open(outcome.file, "rb") as file:
            file.seek(outcome.offset)
            return json.loads(file.readline())

    def failures(self, n: int) -> dict[int, str]:
        """Why samples among the first `n` failed, by index."""
        failed = [i for i, o in self.outcomes.items() if i < n and o.status == "failed"]
        return {i: self._read(self.outcomes[i])["trace"]["failure"] or "no reason given" for i in sorted(failed)}

    def sessions(self) -> list[dict[str, Any]]:
        """What every process that wrote here said of itself, oldest first."""
        found: dict[str, dict[str, Any]] = {}
        for path in self.path.glob("*-*.jsonl"):
            for line in scan(path):
                if line.ok and line.data.startswith(_SESSION):
                    said = {k: v for k, v in json.loads(line.data).items() if k != "crc"}
                    found.setdefault(said["session"], said)
                break
        return sorted(found.values(), key=lambda said: said["at"])

    def manifest(self) -> dict[str, Any] | None:
        """What `write_manifest` wrote, if it did."""
        try:
            found = json.loads((self.path / "manifest.json").read_text(encoding="utf-8"))
            if not isinstance(found["n"], int):
                raise ValueError("its n is no number")
            return found
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self.path / 'manifest.json'}: damaged ({error}); delete it and run again: it is made anew"
            ) from None

    def write_manifest(self, n: int, **more: Any) -> None:
        """Says that the first `n` samples are through. Raises `StoreError`."""
        counts = {s: sum(o.status == s for i, o in self.outcomes.items() if i < n) for s in ("answered", "failed")}
        record = {"identity": self.identity, "n": n, **counts, **more, "damage": self.damage, "sessions": self.sessions()}
        replace_file(self.path / "manifest.json", json.dumps(record, indent=1) + "\n")


def _status(text: bytes) -> Literal["answered", "failed"]:
    return "answered" if text == b"answered" else "failed"


def _writer_lock(name: str) -> int:
    return _WRITERS + zlib.crc32(name.encode())


def _read_spec(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreError(f"{path.parent}: not a run folder (it has no spec.json)") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: damaged ({error}); move the folder away and start again") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise StoreError(f"{path}: not of format {FORMAT}; this version of the package cannot read it")
    return data
