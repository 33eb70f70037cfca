"""A person's own text files as a task."""

from __future__ import annotations

from pathlib import Path

import pytest

from pimem.errors import DataError
from pimem.tasks.files import Files, read_text
from pimem.tokens import Tokenizer


def write(folder: Path, **texts: str) -> list[Path]:
    paths = []
    for name, text in texts.items():
        path = folder / f"{name}.txt"
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def test_files_stand_one_after_the_other_and_tokens_know_their_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    task = Files(write(tmp_path, first="one\ntwo\nthree", second="four\nfive"), "Which?", tokenizer)
    (sample,) = task.samples(1)
    assert tokenizer.decode(sample.context_ids) == "one\ntwo\nthree\n\nfour\nfive"
    lines = [task.source(i) for i in range(len(sample.context_ids))]
    assert lines[0] == "first.txt line 1"
    assert lines[-1] == "second.txt line 2"
    assert "first.txt line 3" in lines
    assert "second.txt line 1" in lines


def test_the_sample_is_named_by_its_content_and_question(tmp_path: Path, tokenizer: Tokenizer) -> None:
    files = write(tmp_path, a="alpha", b="beta")
    names = {Files(f, q, tokenizer).sample.id for f, q in ((files, "x?"), (files, "y?"), (files[::-1], "x?"))}
    assert len(names) == 3
    again = tmp_path / "elsewhere"
    again.mkdir()
    assert Files(write(again, a="alpha", b="beta"), "x?", tokenizer).sample.id in names


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"\xef\xbb\xbf\n", "is empty"),
        (bytes(range(128, 256)) * 8, "many bytes are not UTF-8"),
        ("plain words".encode("utf-16"), "zero bytes"),
        ("plain words".encode("utf-16-be"), "zero bytes"),
        ("plain words".encode("utf-32"), "zero bytes"),
        (b"words\0and\1more", "zero bytes"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_text(path)


def test_missing_files_and_folders_are_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(DataError, match=f"{path}: cannot be read"):
            read_text(path)
    with pytest.raises(DataError, match="name at least one"):
        Files([], "x?", tokenizer)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes("plain words".encode("utf-8-sig"))
    assert read_text(path) == "plain words"


def test_a_few_stray_bytes_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"caf\xe9 and more text")
    assert read_text(path) == "caf\ufffd and more text"
