"""What a run logs as it goes: lines of JSON, each with its step, in files that a resumed run goes on with."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pimem.errors import StoreError

TRAJECTORIES, STEPS = "trajectories.jsonl", "steps.jsonl"
"""Of a run's folder: a line a trajectory, and a line a step with its metrics and times."""


def append(path: Path, step: int, records: Sequence[Mapping[str, Any]]) -> None:
    """Adds records of one step, on disk when this returns. Raises `StoreError` where they cannot be written."""
    now = {"step": step, "time": round(time.time(), 3)}
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps({**now, **record}) + "\n" for record in records))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error}); make room and run the same command again") from error


def read(path: Path) -> list[dict[str, Any]]:
    """All records; a last line that was torn is left out. Raises `StoreError` for another line that does not read."""
    lines = path.read_text(encoding="utf-8").splitlines()
    out = []
    for number, line in enumerate(lines, start=1):
        try:
            out.append(json.loads(line))
        except ValueError as error:
            if number < len(lines):
                raise StoreError(f"{path}: line {number} is not JSON ({error}); restore the file or delete the line") from None
    return out


def forget(path: Path, step: int) -> None:
    """Drops what lies after `step`: a run that goes on from its checkpoint makes that again."""
    if not path.is_file():
        return
    kept = [record for record in read(path) if record["step"] <= step]
    new = path.with_suffix(".new")
    new.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
    os.replace(new, path)
