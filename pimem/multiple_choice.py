"""LongBench v2's items in its official fields: checked field by field, kept a line each, read one at a time.

A file is a JSON array, JSON lines, or JSON objects one after the other. The set has contexts of eight million characters; a
reader of one item reads no other.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pimem.errors import DataError

LETTERS = ("A", "B", "C", "D")
GROUPS = {"difficulty": ("easy", "hard"), "length": ("short", "medium", "long")}
"""The benchmark's own groups of items, as its fields name them."""
ITEMS = "items.jsonl"
_PIECE = 1 << 24
"""Characters read at a time."""
_TEXT = ("_id", "domain", "sub_domain", "question", "context")
_MAY_BE_BLANK = frozenset(f"choice_{letter}" for letter in LETTERS)


@dataclass(frozen=True, slots=True)
class Item:
    """One question with four choices over one context."""

    id: str
    domain: str
    sub_domain: str
    difficulty: str
    length: str
    question: str
    choices: tuple[str, ...]
    """The texts of A to D."""
    answer: str
    """The right letter."""
    context: str


def rows(path: Path) -> Iterator[Item]:
    """The items of a file, or of the one JSON file in a folder, in its order.

    Raises `DataError` that names row and field for an item that is not in the official fields, and for an id that comes twice.
    """
    seen: dict[str, int] = {}
    for number, raw in enumerate(_objects(_file(path)), start=1):
        item = _item(raw, f"{path}: row {number}")
        if item.id in seen:
            raise DataError(
                f"{path}: row {number}: _id {item.id!r} stands in row {seen[item.id]} already; every item needs its own"
            )
        seen[item.id] = number
        yield item
    if not seen:
        raise DataError(f"{path}: holds no item; it should be LongBench v2's data.json, or JSON lines with its fields")


def _file(path: Path) -> Path:
    if not path.is_dir():
        return path
    files = sorted(p for p in path.iterdir() if p.suffix in (".json", ".jsonl"))
    if len(files) != 1:
        raise DataError(f"{path}: holds {len(files)} .json or .jsonl files; give the one with the items")
    return files[0]


def _objects(path: Path) -> Iterator[Any]:
    """The JSON values of a file, whether they stand in an array, in lines or one after the other."""
    decoder = json.JSONDecoder()
    held, at, number = "", 0, 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            while True:
                while at < len(held) and held[at] in " \t\r\n,[]":
                    at += 1
                if at < len(held):
                    try:
                        value, end = decoder.raw_decode(held, at)
                    except json.JSONDecodeError as error:
                        fault = error
                    else:
                        number += 1
                        yield value
                        at = end
                        continue
                # Twice what is held, so that an item is tried again a few times and not once a piece.
                more = file.read(max(_PIECE, len(held) - at))
                if not more:
                    break
                held, at = held[at:] + more, 0
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: row {number + 1}: not UTF-8 ({error}); convert the file first") from None
    if at < len(held):
        raise DataError(f"{path}: row {number + 1}: not valid JSON ({fault.msg}); is the file whole?") from None


def _item(raw: Any, where: str) -> Item:
    if not isinstance(raw, dict):
        raise DataError(f"{where}: expected an object with LongBench v2's fields, got {_said(raw)}")
    names = [*_TEXT, *sorted(_MAY_BE_BLANK), *GROUPS, "answer"]
    if missing := [name for name in names if name not in raw]:
        raise DataError(f"{where}: field {missing[0]!r} is missing; an item has {', '.join(names)}")
    for name in names:
        value = raw[name]
        if not isinstance(value, str):
            raise DataError(f"{where}: field {name!r} must be text, got {_said(value)}{_hint(name)}")
        if not value.strip() and name not in _MAY_BE_BLANK:
            raise DataError(f"{where}: field {name!r} is empty{_hint(name)}")
    for name, allowed in {**GROUPS, "answer": LETTERS}.items():
        if raw[name] not in allowed:
            raise DataError(f"{where}: field {name!r} is {raw[name]!r}; it must be one of {', '.join(allowed)}")
    return Item(
        raw["_id"],
        raw["domain"],
        raw["sub_domain"],
        raw["difficulty"],
        raw["length"],
        raw["question"],
        tuple(raw[f"choice_{letter}"] for letter in LETTERS),
        raw["answer"],
        raw["context"],
    )


def _hint(name: str) -> str:
    hints = {
        "answer": f"; the answer key is a letter, one of {', '.join(LETTERS)}",
        "context": "; there is nothing to read, so take the item out or give it its text",
    }
    return hints.get(name, "")


def _said(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"


def write(items: Iterable[Item], folder: Path) -> str:
    """Items as `items.jsonl`, in order of their ids; returns the SHA-256 of the content, whatever order they came in."""
    places: dict[str, tuple[int, int]] = {}
    rough = folder / f".{ITEMS}"
    with rough.open("wb") as file:
        for item in items:
            line = json.dumps(asdict(item), ensure_ascii=False, separators=(",", ":")) + "\n"
            raw = line.encode("utf-8", "surrogatepass")
            places[item.id] = (file.tell(), len(raw))
            file.write(raw)
    digest = hashlib.sha256()
    with rough.open("rb") as source, (folder / ITEMS).open("wb") as target:
        for name in sorted(places):
            start, size = places[name]
            source.seek(start)
            line_of = source.read(size)
            digest.update(line_of)
            target.write(line_of)
    rough.unlink()
    return digest.hexdigest()


class Items:
    """The items that `write` put into a folder; `hash` is what it returned.

    Raises `DataError` where the file is missing or its content is not that of the hash.
    """

    def __init__(self, folder: Path, digest: str):
        self.path = folder / ITEMS
        self.hash = digest
        self._starts = [0]
        found = hashlib.sha256()
        try:
            with self.path.open("rb") as file:
                for line in file:
                    found.update(line)
                    self._starts.append(self._starts[-1] + len(line))
        except OSError as error:
            raise DataError(f"{self.path}: cannot be read: {error.strerror}; fetch the set again") from None
        if found.hexdigest() != digest:
            raise DataError(f"{self.path}: damaged; fetch the set again")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Item:
        with self.path.open("rb") as file:
            file.seek(self._starts[index])
            fields = json.loads(file.read(self._starts[index + 1] - self._starts[index]).decode("utf-8", "surrogatepass"))
        return Item(**{**fields, "choices": tuple(fields["choices"])})


@functools.lru_cache(maxsize=4)
def opened(folder: Path, digest: str) -> Items:
    """`Items`, read through once a process."""
    return Items(folder, digest)
