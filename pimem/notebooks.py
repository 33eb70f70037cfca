"""`pimem run`: a profile's notebooks, executed by papermill.

The committed notebook and its parameters go in; the executed copy in `runs/notebooks/<profile>/` is the record. All work
lies in the run store below, so executing again costs what is missing and nothing else.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
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
    """Executes the notebooks, those that run something first, and prints a line for each; returns 0, or 1 where one failed.

    `given` is what the notebooks get as their `profile` parameter. A notebook that fails leaves the others running
    and the reports unmade; its executed copy holds the error. Raises `ConfigError` for an unknown notebook.
    """
    for name in only or ():
        if name not in profile.notebooks:
            raise ConfigError(f"profile {profile.name}: no notebook {name!r}; {nearest(name, profile.notebooks)}")
    chosen = [name for name in profile.notebooks if not only or name in only]
    given = str(Path(given).resolve()) if Path(given).is_file() else given
    # Kernels run in the repository, wherever this process does.
    for folder in ("PIMEM_ROOT", "PIMEM_RUNS", "PIMEM_HOME"):
        if os.environ.get(folder):
            os.environ[folder] = str(Path(os.environ[folder]).expanduser().resolve())
    print(f"profile {profile.name}: {profile.about}")
    if dry_run:
        return _say_plan(profile, given, chosen)
    began = time.monotonic()
    reports = [name for name in chosen if not profile.notebooks[name].runs]
    right = _side_by_side(profile, given, [name for name in chosen if name not in reports])
    # A report is of what the others have put into the store.
    right = right and all(_say(profile, *_execute(profile, given, name)) for name in reports)
    print(f"{len(chosen)} notebook(s) in {time.monotonic() - began:.0f} s")
    if right:
        _say_results(profile)
    return 0 if right else 1


def _side_by_side(profile: Profile, given: str, names: Sequence[str]) -> bool:
    """Executes notebooks that need nothing of one another, `profile.parallel` at a time; whether all succeeded."""
    if profile.parallel == 1 or len(names) < 2:
        ended = [_say(profile, *_execute(profile, given, name)) for name in names]
        return all(ended)
    # Processes, because papermill changes the working directory of its own.
    with ProcessPoolExecutor(profile.parallel, multiprocessing.get_context("spawn")) as pool:
        running = [pool.submit(_execute, profile, given, name) for name in names]
        try:
            ended = [_say(profile, *done.result()) for done in as_completed(running)]
        except BrokenProcessPool:
            print(
                "a process that executed a notebook was killed, perhaps for want of memory; nothing that was finished is lost, "
                "the same command goes on from there",
                file=sys.stderr,
            )
            return False
    return all(ended)


def _say(profile: Profile, name: str, seconds: float, failure: str | None) -> bool:
    """Prints how a notebook ended; whether it did well."""
    where = executed(profile, name)
    if failure:
        print(f"{name} failed after {seconds:.0f} s: {failure}\n  see {where}", file=sys.stderr)
    else:
        print(f"{name} done in {seconds:.0f} s: {where}", flush=True)
    return failure is None


def _execute(profile: Profile, given: str, name: str) -> tuple[str, float, str | None]:
    """A notebook's name, the seconds it took, and the one-line reason it failed for, None where it did not."""
    import papermill
    from jupyter_client.kernelspec import NoSuchKernel
    from nbclient.exceptions import CellTimeoutError, DeadKernelError

    started = time.monotonic()
    print(f"{name} ...", flush=True)
    _listen(name)
    failure = None
    source, target = paths.root() / "notebooks" / f"{name}.ipynb", executed(profile, name)
    if not source.is_file():
        raise ConfigError(f"{source}: the profile names this notebook, but there is none")
    os.environ["PIMEM_PROGRESS"] = "log"
    sockets = ""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        sockets = tempfile.mkdtemp(prefix="pimem-kernel-")
        papermill.execute_notebook(
            source,
            target,
            parameters={"profile": given},
            kernel_name="python3",
            progress_bar=False,
            log_output=True,
            start_timeout=START_SECONDS,
            kernel_manager_class=_local_kernel(sockets),
            cwd=paths.root(),
        )
    except papermill.PapermillExecutionError as error:
        failure = f"cell {error.exec_count}: {error.ename}: {error.evalue}"
    except (DeadKernelError, CellTimeoutError) as error:
        failure = f"the kernel died: {error}"
    except (NoSuchKernel, RuntimeError) as error:
        failure = f"the kernel did not start: {error}"
    except OSError as error:
        failure = f"its executed copy could not be written ({error}); mend that and give the same command again"
    finally:
        os.environ.pop("PIMEM_PROGRESS", None)
        shutil.rmtree(sockets, ignore_errors=True)
    return name, time.monotonic() - started, failure


def _local_kernel(folder: str) -> type:
    """A kernel reached through sockets in a folder of its own: no open port, and no two kernels at the same one."""
    from jupyter_client.manager import AsyncKernelManager

    return type("LocalKernel", (AsyncKernelManager,), {"transport": "ipc", "ip": f"{folder}/kernel"})


def _listen(name: str) -> None:
    """Passes on what the notebooks' progress says, and of papermill's own messages nothing but warnings."""
    logger = logging.getLogger("papermill")
    for handler in logger.handlers:
        handler.setFormatter(_Line(name))
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(_Line(name))
        handler.setLevel(logging.WARNING)
        handler.addFilter(lambda record: bool(record.getMessage().strip()))
        logger.addHandler(handler)
        logger.propagate = False


class _Line(logging.Formatter):
    """A message as one line behind its notebook's name."""

    def __init__(self, notebook: str):
        super().__init__()
        self.notebook = notebook

    def format(self, record: logging.LogRecord) -> str:
        return f"  {self.notebook}: {record.getMessage().strip()}"


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

    found = [item for name in (profile.name, f"{profile.name}_gates") for item in versions.latest(name).items()]
    for kind, folder in found:
        print(f"{kind}: {folder}")
        for path in sorted(folder.iterdir()):
            print(f"  {path.name}")
