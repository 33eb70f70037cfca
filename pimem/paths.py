"""Where things lie: the repository this package runs from, and the folders it reads and writes."""

from __future__ import annotations

import os
from pathlib import Path

from pimem.errors import ConfigError


def root() -> Path:
    """The repository: PIMEM_ROOT, else the nearest folder with `experiments/profiles` upwards from here, or from this package.

    Raises `ConfigError` where there is none.
    """
    named = os.environ.get("PIMEM_ROOT")
    for start in [Path(named)] if named else [Path.cwd(), Path(__file__).parent]:
        for folder in [start, *start.parents]:
            if (folder / "experiments" / "profiles").is_dir():
                return folder.resolve()
    raise ConfigError("no folder with experiments/profiles here or above; run from a clone of the repository or set PIMEM_ROOT")


def runs() -> Path:
    """The run store: PIMEM_RUNS, else `runs/` in the repository."""
    return Path(os.environ.get("PIMEM_RUNS") or root() / "runs")
