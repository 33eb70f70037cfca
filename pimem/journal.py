"""Append-only logs that outlive a killed process, and locks that the kernel takes back.

A log is a file of JSON lines, each closed by a checksum of its own. A line counts from the moment it is written (it then
survives the end of the process); it is durable, against the end of the machine, from the next sync on. Nothing here knows
what a line says.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pimem.errors import StoreError

SYNC_SECONDS = 0.2
"""A written line is synced to disk within about this time."""

_TAIL = len(b',"crc":"00000000"}\n')
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def _plain(value: Any) -> Any:
    """For the JSON encoder: records by their fields, in order; numpy scalars and arrays as numbers and lists."""
    if fields := getattr(value, "__dataclass_fields__", None):
        return {name: getattr(value, name) for name in fields}
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} cannot be stored as JSON")


_encode = json.JSONEncoder(separators=(",", ":"), default=_plain).encode


def seal(record: dict[str, Any]) -> bytes:
    """A record as one line of a log. Raises `StoreError` where it holds something other than records and JSON types."""
    try:
        body = _encode(record)[:-1].encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"a record with the fields {', '.join(record)} cannot be stored: {error}") from None
    return b'%s,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def intact(line: bytes) -> bool:
    """Whether a line is as it was sealed."""
    return line[-_TAIL:] == b',"crc":"%08x"}\n' % zlib.crc32(memoryview(line)[:-_TAIL]) if len(line) > _TAIL else False


class Line(NamedTuple):
    """One whole line of a log, damaged or not."""

    offset: int
    data: bytes
    ok: bool


def scan(path: Path, start: int = 0) -> Iterator[Line]:
    """The whole lines of a log from byte `start` on; a last line without its end is left out."""
    with open(path, "rb", buffering=1 << 20) as file:
        file.seek(start)
        offset = start
        for data in file:
            if not data.endswith(b"\n"):
                return
            yield Line(offset, data, intact(data))
            offset += len(data)


class Log:
    """One append-only file, created at the first line, written and synced by a thread of its own.

    Lines that arrive while the thread is busy are written together. After an error of the disk the file is cut back to its
    last whole line, and every later append raises the same `StoreError`.
    """

    def __init__(self, path: Path, header: Callable[[], bytes] | None = None):
        self.path = path
        self.failure: StoreError | None = None
        self._header = header
        self._wake = threading.Condition()
        self._pending: list[tuple[bytes, bool, asyncio.Future[int]]] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self._fd = -1
        self._size = 0

    async def append(self, line: bytes, durable: bool = False) -> int:
        """Returns the line's offset once it is written; if `durable`, once it is synced as well. Raises `StoreError`."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with self._wake:
            if self.failure:
                raise self.failure
            if self._closing:
                raise StoreError(f"{self.path}: closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"log {self.path.name}", daemon=True)
                self._thread.start()
            self._pending.append((line, durable, future))
            self._wake.notify()
        return await future

    def close(self) -> None:
        """Writes and syncs what is left; idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread:
            self._thread.join()

    def _run(self) -> None:
        synced, unsynced = time.monotonic(), False
        while True:
            with self._wake:
                while not self._pending and not self._closing:
                    left = synced + SYNC_SECONDS - time.monotonic() if unsynced else None
                    if left is not None and left <= 0:
                        break
                    self._wake.wait(left)
                batch, self._pending = self._pending, []
                closing = self._closing
            written: list[int] = []
            try:
                if batch:
                    self._write([line for line, _, _ in batch], written)
                    unsynced = True
                    _tell([(f, at) for (_, durable, f), at in zip(batch, written, strict=True) if not durable])
                if unsynced and (closing or any(d for _, d, _ in batch) or time.monotonic() - synced >= SYNC_SECONDS):
                    os.fsync(self._fd)
                    synced, unsynced = time.monotonic(), False
                _tell([(f, at) for (_, durable, f), at in zip(batch, written, strict=True) if durable])
            except Exception as error:
                self._fail(error, batch, written)
                break
            if closing and not batch:
                break
        if self._fd >= 0:
            os.close(self._fd)

    def _write(self, lines: list[bytes], written: list[int]) -> None:
        """Appends `lines`; `written` gets the offset of each one that is whole on return or on error."""
        if self._fd < 0:
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
            _sync_folder(self.path.parent)
            if self._header:
                self._write_all(self._header())
        offset = self._size
        try:
            self._write_all(b"".join(lines))
        finally:
            for line in lines:
                if offset + len(line) <= self._size:
                    written.append(offset)
                offset += len(line)

    def _write_all(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                done = os.write(self._fd, rest)
                self._size += done
                rest = rest[done:]
        except OSError:
            whole = data.rfind(b"\n", 0, len(data) - len(rest)) + 1
            self._size -= len(data) - len(rest) - whole
            os.ftruncate(self._fd, self._size)
            raise

    def _fail(self, error: Exception, batch: list[tuple[bytes, bool, asyncio.Future[int]]], written: list[int]) -> None:
        full = isinstance(error, OSError) and error.errno in _FULL
        self.failure = StoreError(
            f"{self.path}: {'the disk is full' if full else f'writing failed ({error})'}. Everything up to here is safe in "
            f"{self.path.parent}; {'free some space' if full else 'mend that'} and give the same command again: it goes on "
            "from there"
        )
        self.failure.__cause__ = error
        with self._wake:
            late, self._pending = self._pending, []
        _tell([(f, at) for (_, durable, f), at in zip(batch, written, strict=False) if not durable])
        _tell([(f, self.failure) for _, _, f in (*batch, *late)])


def _tell(results: list[tuple[asyncio.Future[int], int | StoreError]]) -> None:
    """Resolves futures from another thread, in one step of each one's loop."""

    def resolve(mine: list[tuple[asyncio.Future[int], int | StoreError]]) -> None:
        for future, result in mine:
            if not future.done():
                if isinstance(result, StoreError):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    for loop in {future.get_loop() for future, _ in results}:
        # A loop that has ended has nobody left to tell.
        if not loop.is_closed():
            try:
                loop.call_soon_threadsafe(resolve, [(f, r) for f, r in results if f.get_loop() is loop])
            except RuntimeError:
                continue


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, text: str) -> None:
    """Writes a file as a whole or not at all. Raises `StoreError`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreError(f"{path}: could not be written ({error}); what was there before is unharmed") from error


class Locks:
    """Exclusive locks by number on one file, between processes and within this one.

    POSIX locks belong to a process, and all of a file's go when any descriptor of it is closed; so a process has one
    descriptor for each lock file and keeps its own account of who holds what.
    """

    _shared: ClassVar[dict[tuple[int, int, int], Locks]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, path: Path, fd: int, key: tuple[int, int, int]):
        self.path, self._fd, self._key = path, fd, key
        self._held: set[int] = set()
        self._users = 0

    @classmethod
    def open(cls, path: Path) -> Locks:
        """The locks on `path`, which is created if need be; to be closed as often as opened. Raises `StoreError`."""
        with cls._guard:
            try:
                path.touch()
                stat = path.stat()
                key = (os.getpid(), stat.st_dev, stat.st_ino)
                if key not in cls._shared:
                    cls._shared[key] = cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC), key)
            except OSError as error:
                raise StoreError(f"{path}: the lock file cannot be opened ({error})") from error
            cls._shared[key]._users += 1
            return cls._shared[key]

    def acquire(self, number: int) -> bool:
        """False where somebody else, here or in another process, holds it. Raises `StoreError` without lock support."""
        with self._guard:
            if number in self._held:
                return False
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
            except OSError as error:
                if error.errno in (errno.EACCES, errno.EAGAIN):
                    return False
                raise StoreError(
                    f"{self.path}: this file system cannot lock files ({error}), so two processes could do the same work "
                    "twice; keep runs on one that can"
                ) from error
            self._held.add(number)
            return True

    def release(self, number: int) -> None:
        with self._guard:
            if number in self._held:
                self._held.remove(number)
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)

    def close(self) -> None:
        with self._guard:
            self._users -= 1
            if self._users == 0:
                del self._shared[self._key]
                os.close(self._fd)
