"""What a task is, the one place that builds them, and the keeping of what a built sample was made of.

A task yields samples lazily: sample i is the same however many are asked for, in whichever process, and a 3.6-million-token
context exists only while it is in use.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pimem.config import TaskSpec, canonical_hash
from pimem.errors import ConfigError, DataError, nearest
from pimem.packages import home
from pimem.records import Sample
from pimem.tokens import Tokenizer


class Task(Protocol):
    """Questions over long contexts.

    `samples` yields samples `start` to `start + n - 1`, building each when it is asked for. It raises `ConfigError` for a
    number of samples the task does not have, and `DataError` where a sample no longer comes out as when it was first built.
    """

    name: str
    metric: str
    """How its answers are scored: sub_em, multi_recall or accuracy."""
    unit: str
    """What `length` counts: documents or tokens."""
    data_hash: str
    """Digest of everything the samples are drawn from."""

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]: ...


@dataclass(frozen=True)
class Known:
    """A task by name, before it is built."""

    module: str
    about: str


TASKS: dict[str, Known] = {
    "hotpotqa": Known("hotpotqa", "two-hop questions over n HotpotQA paragraphs; length counts documents"),
    "niah_single_1": Known("niah", "one number under a word, in repeated filler"),
    "niah_single_2": Known("niah", "one number under a word, in essays"),
    "niah_single_3": Known("niah", "one long code under a word, in essays"),
    "niah_multikey_1": Known("niah", "one number under a word, three more words in essays"),
    "niah_multikey_2": Known("niah", "one number under a word, among nothing but such lines"),
    "niah_multikey_3": Known("niah", "one long code under a long code, among nothing but such lines"),
    "niah_multivalue": Known("niah", "four numbers under one word, in essays"),
    "niah_multiquery": Known("niah", "four numbers under four words, in essays, all asked for"),
    "variable_tracking": Known("variable_tracking", "five variables that come to hold one number, in repeated filler"),
    "common_words": Known("word_counts", "the ten words that stand most often in a numbered list"),
    "frequent_words": Known("word_counts", "the three made-up words that stand most often in a coded text"),
    "squad": Known("squad", "one-hop questions over SQuAD paragraphs, one of which holds the answer"),
    "longbench_v2": Known(
        "longbench_v2", "multiple-choice questions over real documents; length is the most tokens of a context"
    ),
}
"""Every task. Lengths count tokens, but for hotpotqa, whose parameter `unit` decides."""

RULER = {
    **{name: name for name in TASKS if name.startswith("niah_")},
    "vt": "variable_tracking",
    "cwe": "common_words",
    "fwe": "frequent_words",
    "qa_1": "squad",
    "qa_2": "hotpotqa",
}
"""RULER's thirteen tasks by its names for them, and ours."""

OOD = tuple(ours for name, ours in RULER.items() if name not in ("cwe", "qa_2"))
"""The eleven tasks that the paper calls out of distribution (section 4)."""


def build(task: TaskSpec, tokenizer: Tokenizer) -> Task:
    """The task that `task` specifies, over `tokenizer`'s tokens.

    Raises `ConfigError` for an unknown task or parameter and an impossible length, `DataError` where its data is not here.
    """
    if task.name not in TASKS:
        hint = f"RULER's {task.name} is {RULER[task.name]} here. " if task.name in RULER else ""
        raise ConfigError(f"unknown task {task.name!r}; {hint}{nearest(task.name, TASKS)}")
    return import_module(f"pimem.tasks.{TASKS[task.name].module}").build(task, tokenizer)


def check_range(n: int, start: int, most: int | None, name: str) -> None:
    """Raises `ConfigError` unless samples `start` to `start + n - 1` exist among `most` (None: any number)."""
    if n < 0 or start < 0:
        raise ConfigError(f"task {name}: cannot draw {n} samples from number {start}; both must be 0 or more")
    if most is not None and start + n > most:
        raise ConfigError(
            f"task {name}: samples {start} to {start + n - 1} are asked for and there are {most:,}; ask for fewer"
        )


class Draw:
    """Random numbers named by a key: the same for the same key on every machine and with every numpy.

    Only the raw stream of PCG64 is used, which numpy keeps stable; its derived methods may change between releases.
    """

    def __init__(self, *key: object):
        text = "\x1f".join(map(str, key))
        self._bits = np.random.PCG64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big"))

    def raw(self, n: int) -> np.ndarray:
        """The next `n` raw values, uint64."""
        return self._bits.random_raw(n)

    def order(self, n: int) -> np.ndarray:
        """A permutation of range(n)."""
        return np.argsort(self.raw(n), kind="stable")


def digest(ids: np.ndarray) -> str:
    """Hex digest of token ids, by which a sample made again is known."""
    return hashlib.sha256(np.ascontiguousarray(ids, dtype="<u4").data).hexdigest()


class Built:
    """What built samples were made of, on disk under the hash of everything that decides them.

    Recipes only: choices, positions, token counts and a digest of the token ids; texts are made again from the data.
    """

    def __init__(self, identity: dict[str, Any]):
        self._identity = identity | {"digest": "sha256"}
        self.folder = home() / "built" / canonical_hash(self._identity, length=16)

    def get(self, index: int) -> dict[str, Any] | None:
        """The recipe of sample `index`; None where it was never built or its file is damaged."""
        try:
            recipe = json.loads(self._file(index).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return recipe if isinstance(recipe, dict) else None

    def keep(self, index: int, recipe: dict[str, Any]) -> None:
        """Keeps the recipe of a sample just made, or compares it with the one kept.

        Raises `DataError` where they differ, and where the folder cannot be written.
        """
        known = self.get(index)
        if known == recipe:
            return
        if known is not None:
            parts = [key for key in recipe if known.get(key) != recipe[key]]
            raise DataError(
                f"{self._file(index)}: sample {index} comes out differently from when it was first built ({', '.join(parts)}): "
                "a library that makes it has changed, or the file has; compare environments, or delete the folder to start anew"
            )
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(self.folder / "made_of.json", self._identity)
            self._write(self._file(index), recipe)
        except OSError as error:
            raise DataError(
                f"{self.folder}: cannot be written ({error}); make room, or set PIMEM_HOME to a folder that can be"
            ) from error

    def _file(self, index: int) -> Path:
        return self.folder / f"{index:06}.json"

    @staticmethod
    def _write(path: Path, value: dict[str, Any]) -> None:
        work = path.with_name(f".{path.name}.{os.getpid()}")
        work.write_text(json.dumps(value, sort_keys=True) + "\n", encoding="utf-8")
        work.replace(path)
