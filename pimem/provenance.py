"""Where a number came from: code, packages, hardware, model and data. Never the environment, a host's name or a secret."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent


def collect(**more: Any) -> dict[str, Any]:
    """Everything known about this process, as JSON types, with `more` (model and data revisions, say) beside it."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu(),
        "gpus": gpus(),
        "git": git(),
        "code": code_hash(),
        "packages": packages(),
        **more,
    }


def command() -> list[str]:
    """The command line, with the home folder as `~`."""
    home = str(Path.home())
    return [a.replace(home, "~") if len(home) > 1 else a for a in sys.argv]


@functools.cache
def packages() -> dict[str, str]:
    """Installed distributions and their versions."""
    found = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


@functools.cache
def code_hash() -> str:
    """Digest of the package's own code and data files, whatever git says."""
    digest = hashlib.sha256()
    for path in sorted(p for p in PACKAGE.rglob("*") if p.suffix in {".py", ".yaml"}):
        digest.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def git() -> dict[str, Any] | None:
    """Revision of the working tree that holds this package and whether it differs from it; None where there is none."""

    def ask(*args: str) -> str | None:
        return _output("git", "-C", str(PACKAGE), *args)

    # An installed package may lie in somebody else's working tree.
    if ask("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    revision, changes = ask("rev-parse", "HEAD"), ask("status", "--porcelain")
    return {"revision": revision, "dirty": bool(changes)} if revision is not None and changes is not None else None


def cpu() -> dict[str, Any]:
    """Name and usable cores of the processor, and the machine's memory in GiB."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {"name": name, "cores": cores, "memory_gib": round(memory, 1)}


@functools.cache
def gpus() -> list[dict[str, str]]:
    """Name, memory and driver of each NVIDIA GPU; empty where there is none. Loads no GPU library."""
    listed = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    rows = [[cell.strip() for cell in line.split(",")] for line in (listed or "").splitlines()]
    return [dict(zip(("name", "memory", "driver"), row, strict=True)) for row in rows if len(row) == 3]


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
