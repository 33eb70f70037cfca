"""Wheels got by pip and opened; here pip finds them in a folder."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from pimem.errors import DataError
from pimem.packages import Member, arriving, download, extract, home


def wheel(folder: Path, name: str, inside: str, content: bytes) -> Path:
    """The smallest wheel that pip takes."""
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(inside, content)
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only source."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_pieces_of_two_wheels_are_joined_and_checked(index: Path, tmp_path: Path) -> None:
    for name, content in (("some_part1", b"first "), ("some_part2", b"second")):
        wheel(index, name, f"{name}/data.bin", content)
    pieces = (("some-part1==1.0", "some_part1/data.bin"), ("some-part2==1.0", "some_part2/data.bin"))
    member = Member(pieces, 12, hashlib.sha256(b"first second").hexdigest())
    got = dict(zip(member.requirements, download(member.requirements, tmp_path / "got"), strict=True))
    extract(member, got, tmp_path / "whole")
    assert (tmp_path / "whole").read_bytes() == b"first second"
    short = Member(pieces[:1], 12, member.sha256)
    with pytest.raises(DataError, match="has 6 bytes where 12 are right"):
        extract(short, got, tmp_path / "short")
    absent = Member((("some-part1==1.0", "some_part1/other.bin"),), 12, member.sha256)
    with pytest.raises(DataError, match="does not hold what it should"):
        extract(absent, got, tmp_path / "absent")
    assert not (tmp_path / "short").exists()
    assert not (tmp_path / "absent").exists()


def test_a_package_that_cannot_be_had_is_named_with_pips_words(index: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"(?s)pip could not download no-such-thing==1\.0; .*No matching distribution"):
        download(("no-such-thing==1.0",), tmp_path / "got")


def test_what_arrives_is_whole_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "cache" / "thing"

    def quiet(line: str) -> None:
        pass

    def put(content: str, fail: bool = False) -> bool:
        with arriving(target, 1, lambda: None if (target / "a").read_text() == "good" else "is bad", quiet) as work:
            if work is None:
                return False
            (work / "a").write_text(content)
            if fail:
                raise DataError("stopped")
            return True

    with pytest.raises(DataError, match="stopped"):
        put("bad", fail=True)
    assert not target.exists()
    assert put("bad")
    with pytest.raises(DataError, match="stopped"):
        put("worse", fail=True)
    assert (target / "a").read_text() == "bad"
    assert put("good")
    assert not put("again")
    assert (target / "a").read_text() == "good"


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIMEM_HOME", "~/elsewhere")
    assert home() == Path.home() / "elsewhere"
    monkeypatch.delenv("PIMEM_HOME")
    assert home() == Path.home() / ".cache" / "pimem"
