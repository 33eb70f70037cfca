"""Append-only logs that outlive a killed process, and locks that the kernel takes back.

A log is a file of JSON lines, each closed by a checksum of its own. A line counts from the moment it is written (it then
survives the end of the process); it is durable, against the end of the machine, from the next sync on. Nothing here knows
what a line says.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple

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


def end_of_lines(file: BinaryIO) -> int:
    """Where the last whole line of an open log ends; whatever stands behind it is torn, or still being written."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - (1 << 16))
        file.seek(start)
        if (at := file.read(end - start).rfind(b"\n")) >= 0:
            return start + at + 1
        end = start
    return 0


class Log:
    """One append-only file, created at the first line.

    A line is written at once, by the caller: it takes microseconds, and a process that is killed the moment after has still
    left it behind. A thread syncs what was written, so nobody waits for a disk. After an error of the disk the file is cut back
    to its last whole line, and every later append raises the same `StoreError`.
    """

    def __init__(self, path: Path, header: Callable[[], bytes] | None = None):
        self.path = path
        self.failure: StoreError | None = None
        self._header = header
        self._wake = threading.Condition()
        self._waiting: list[asyncio.Future[None]] = []
        self._dirty = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._fd = -1
        self._size = 0

    def append(self, line: bytes) -> int:
        """Returns the line's offset; the line outlives this process from now on. Raises `StoreError`."""
        if self.failure:
            raise self.failure
        if self._closing:
            raise StoreError(f"{self.path}: closed")
        try:
            if self._fd < 0:
                self._create()
            offset = self._size
            self._write(line)
        except OSError as error:
            raise self._failed(error) from error
        if not self._dirty:
            with self._wake:
                self._dirty = True
                self._wake.notify()
        return offset

    async def synced(self) -> None:
        """Returns once everything appended so far is on disk for good. Raises `StoreError`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._wake:
            if self.failure:
                raise self.failure
            if self._thread is None or self._closing:
                return
            self._dirty = True
            self._waiting.append(future)
            self._wake.notify()
        await future

    def close(self) -> None:
        """Syncs what is left; idempotent."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread:
            self._thread.join()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _create(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if self._header:
            self._write(self._header())
        self._thread = threading.Thread(target=self._sync, name=f"sync {self.path.name}", daemon=True)
        self._thread.start()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                done = os.write(self._fd, rest)
                rest = rest[done:]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _sync(self) -> None:
        try:
            _sync_folder(self.path.parent)
            while True:
                with self._wake:
                    while not (self._dirty or self._closing):
                        self._wake.wait()
                    closing = self._closing
                    if not (closing or self._waiting):
                        # Somebody who waits for the sync cuts this short.
                        self._wake.wait_for(lambda: self._waiting or self._closing, SYNC_SECONDS)
                    waiting, self._waiting = self._waiting, []
                    dirty, self._dirty = self._dirty, False
                if dirty:
                    os.fsync(self._fd)
                _tell(waiting, None)
                if closing:
                    return
        except OSError as error:
            failure = self._failed(error)
            with self._wake:
                late, self._waiting = self._waiting, []
            _tell([*waiting, *late], failure)

    def _failed(self, error: OSError) -> StoreError:
        full = error.errno in _FULL
        self.failure = StoreError(
            f"{self.path}: {'the disk is full' if full else f'writing failed ({error})'}. Everything up to here is safe in "
            f"{self.path.parent}; {'free some space' if full else 'mend that'} and give the same command again: it goes on "
            "from there"
        )
        return self.failure


def _tell(futures: list[asyncio.Future[None]], failure: StoreError | None) -> None:
    """Resolves futures from another thread; a loop that has ended has nobody left to tell."""

    def resolve(future: asyncio.Future[None]) -> None:
        if not future.done():
            if failure:
                future.set_exception(failure)
            else:
                future.set_result(None)

    for future in futures:
        with contextlib.suppress(RuntimeError):
            future.get_loop().call_soon_threadsafe(resolve, future)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, text: str) -> None:
    """Writes a text file as `replace_bytes` does."""
    replace_bytes(path, text.encode("utf-8"))


def replace_bytes(path: Path, data: bytes) -> None:
    """Writes a file as a whole or not at all, in a folder that is made if need be. Raises `StoreError`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
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
