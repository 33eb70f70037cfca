"""One question over a person's own text files: the task behind `pimem ask`."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from pimem.errors import DataError
from pimem.records import Sample
from pimem.tokens import Tokenizer

BETWEEN = "\n\n"
"""Stands between two files."""


class Files:
    """A task with a single sample: the files one after the other, in the order given.

    Raises `DataError` for a file that is missing, empty or not text.
    """

    name = "files"
    unit = "tokens"
    metric = "sub_em"

    def __init__(self, files: Sequence[str | Path], question: str, tokenizer: Tokenizer):
        if not files:
            raise DataError("no context: name at least one text file")
        texts = [read_text(Path(f)) for f in files]
        self._names = [Path(f).name for f in files]
        self._starts = [0]
        for text in texts[:-1]:
            self._starts.append(self._starts[-1] + len(text) + len(BETWEEN))
        self._long = tokenizer.encode_long(BETWEEN.join(texts))
        self.data_hash = hashlib.sha256("\0".join([question, *texts]).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self.sample = Sample(f"files-{self.data_hash}", self.data_hash, question, (), self._long.ids)

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        """The one sample there is."""
        yield from [self.sample][start : start + n]

    def source(self, token: int) -> str:
        """The file and 1-based line in which a context token begins."""
        char = self._long.char(token)
        at = bisect.bisect_right(self._starts, char) - 1
        line = self._long.text.count("\n", self._starts[at], char) + 1
        return f"{self._names[at]} line {line}"


def read_text(path: Path) -> str:
    """A file as text, without a byte order mark; bytes that are not UTF-8 become U+FFFD.

    Raises `DataError` where those are more than a few, where there are zero bytes (UTF-16 is full of them, and reads as UTF-8),
    and where nothing is left.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    text = raw.decode("utf-8-sig", "replace")
    if not text.strip():
        raise DataError(f"{path}: the file is empty; there is nothing to read")
    if "\0" in text or text.count("\ufffd") > max(8, len(text) // 100):
        wrong = "it holds zero bytes, as UTF-16 and binary files do" if "\0" in text else "many bytes are not UTF-8"
        raise DataError(f"{path}: not a text file ({wrong}); convert it to plain text in UTF-8 first")
    return text
