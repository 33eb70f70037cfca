"""An engine behind a portal, for tests that hold engines to something."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pimem.engines.base import Engine
from pimem.engines.scripted import Scripted
from pimem.portal import Portal
from pimem.records import CallKey, Completion, Sampling
from pimem.tokens import Tokenizer, digest

KEY = CallKey("sample", 1, "read", 0)


@dataclass
class Started:
    """An engine behind a portal, over the tiny model's tokenizer."""

    engine: Engine
    portal: Portal
    tokenizer: Tokenizer

    def ids(self, text: str) -> np.ndarray:
        return self.tokenizer.encode(text)

    def ask(self, text: str, sampling: Sampling) -> Completion:
        return self.portal.call(self.engine.generate, self.ids(text), sampling, KEY)

    def together(self, requests: list[tuple[str, Sampling]]) -> list[Completion]:
        async def all_of_them() -> list[Completion]:
            return await asyncio.gather(*(self.engine.generate(self.ids(t), s, KEY) for t, s in requests))

        return self.portal.call(all_of_them)


@contextlib.contextmanager
def started(make: Callable[..., Coroutine[Any, Any, Engine]], folder: Path, *args: Any) -> Iterator[Started]:
    with Portal() as portal:
        engine = portal.call(make, *args)
        portal.on_close(engine.close)
        yield Started(engine, portal, Tokenizer.load(folder))


def children(pid: int) -> set[int]:
    """Processes that descend from `pid`, zombies left out."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found = {pid}
    while grown := {p for p, parent in parents.items() if parent in found} - found:
        found |= grown
    return found - {pid}


async def scripted(folder: Path) -> Engine:
    """The scripted engine with answers long enough to cut: words that depend on the prompt."""

    def script(key: CallKey, prompt: np.ndarray) -> str:
        return " ".join(f"The answer to {digest(prompt)[:6]} is {i}." for i in range(200))

    return Scripted(script, 2048, Tokenizer.load(folder))
