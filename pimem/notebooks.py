"""`pimem run`: a profile's notebooks, executed by papermill one after the other.

The committed notebook and its parameters go in; the executed copy in `runs/notebooks/<profile>/` is the record. All work
lies in the run store below, so executing again costs what is missing and nothing else.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pimem import paths
from pimem.errors import ConfigError, nearest
from pimem.profiles import Profile

START_SECONDS = 600
"""How long a kernel may take to start on a loaded machine."""


def executed(profile: Profile, notebook: str) -> Path:
    """Where the executed copy of a notebook lies."""
    return paths.runs() / "notebooks" / profile.name / f"{notebook}.ipynb"


def run(profile: Profile, given: str, *, only: Sequence[str] | None = None, dry_run: bool = False) -> int:
    """Executes the notebooks in the profile's order and prints a line for each; returns 0, or 1 where one failed.

    `given` is what the notebooks get as their `profile` parameter. A failed notebook ends the run: those behind it need it.
    Its executed copy holds the error. Raises `ConfigError` for an unknown notebook.
    """
    for name in only or ():
        if name not in profile.notebooks:
            raise ConfigError(f"profile {profile.name}: no notebook {name!r}; {nearest(name, profile.notebooks)}")
    chosen = [name for name in profile.notebooks if not only or name in only]
    given = str(Path(given).resolve()) if Path(given).is_file() else given
    print(f"profile {profile.name}: {profile.about}")
    if dry_run:
        return _say_plan(profile, given, chosen)
    began = time.monotonic()
    for name in chosen:
        print(f"{name} ...", flush=True)
        started = time.monotonic()
        failure = _execute(profile, given, name)
        took = f"{time.monotonic() - started:.0f} s"
        if failure:
            print(f"{name} failed after {took}: {failure}\n  see {executed(profile, name)}", file=sys.stderr)
            return 1
        print(f"{name} done in {took}: {executed(profile, name)}", flush=True)
    print(f"{len(chosen)} notebook(s) in {time.monotonic() - began:.0f} s")
    _say_results(profile)
    return 0


def _execute(profile: Profile, given: str, name: str) -> str | None:
    """The one-line reason a notebook failed for, None where it did not."""
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    _listen()
    source, target = paths.root() / "notebooks" / f"{name}.ipynb", executed(profile, name)
    if not source.is_file():
        raise ConfigError(f"{source}: the profile names this notebook, but there is none")
    target.parent.mkdir(parents=True, exist_ok=True)
    os.environ["PIMEM_PROGRESS"] = "log"
    try:
        papermill.execute_notebook(
            source,
            target,
            parameters={"profile": given},
            kernel_name="python3",
            progress_bar=False,
            log_output=True,
            start_timeout=START_SECONDS,
            kernel_manager_class=_local_kernel(),
            cwd=paths.root(),
        )
    except papermill.PapermillExecutionError as error:
        return f"cell {error.exec_count}: {error.ename}: {error.evalue}"
    except (DeadKernelError, CellTimeoutError) as error:
        return f"the kernel died: {error}"
    finally:
        os.environ.pop("PIMEM_PROGRESS", None)
    return None


def _local_kernel() -> type:
    """A kernel reached through sockets in the file system: no open port, and no two kernels after the same one."""
    from jupyter_client.manager import AsyncKernelManager

    return type("LocalKernel", (AsyncKernelManager,), {"transport": "ipc"})


def _listen() -> None:
    """Passes on what the notebooks' progress says, and of papermill's own messages nothing but warnings."""
    logger = logging.getLogger("papermill")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(_Line())
        handler.setLevel(logging.WARNING)
        handler.addFilter(lambda record: bool(record.getMessage().strip()))
        logger.addHandler(handler)
        logger.propagate = False


class _Line(logging.Formatter):
    """A message as one indented line."""

    def format(self, record: logging.LogRecord) -> str:
        return "  " + record.getMessage().strip()


def _say_plan(profile: Profile, given: str, chosen: Sequence[str]) -> int:
    from pimem.study import Study

    for name in chosen:
        section = profile.notebooks[name]
        print(f"\n{name}")
        if section.tasks:
            print(Study(name, given).plan().to_string(index=False))
    return 0


def _say_results(profile: Profile) -> None:
    from pimem.paper import versions

    for kind, folder in versions.latest(profile.name).items():
        print(f"{kind}: {folder}")
        for path in sorted(folder.iterdir()):
            print(f"  {path.name}")
