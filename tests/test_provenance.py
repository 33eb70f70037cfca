"""What a manifest says of where its numbers came from, and what it never says."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from pimem import provenance


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package folder of its own in a fresh git repository with one commit."""
    folder = tmp_path / "tree" / "pimem"
    folder.mkdir(parents=True)
    (folder / "provenance.py").write_text("x = 1\n")
    monkeypatch.setattr(provenance, "PACKAGE", folder)
    identity = ["-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-q", "-m", "m"]):
        subprocess.run(["git", "-C", str(folder.parent), *command], check=True)
    return folder


def test_it_says_code_packages_and_hardware() -> None:
    said = provenance.collect(model={"revision": "abc"})
    json.dumps(said, allow_nan=False)
    assert said["packages"]["numpy"] == metadata.version("numpy")
    assert said["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert said["cpu"]["cores"] >= 1
    assert said["cpu"]["memory_gib"] > 0.5
    assert len(said["code"]) == 16
    assert said["model"] == {"revision": "abc"}


def test_it_never_says_secrets_hosts_or_homes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    monkeypatch.setattr(sys, "argv", [f"{Path.home()}/bin/pimem", "run"])
    text = json.dumps(provenance.collect())
    assert "sk-very-secret" not in text
    assert str(Path.home()) not in text
    assert json.dumps(socket.gethostname()) not in text
    assert provenance.command() == ["~/bin/pimem", "run"]


def test_git_says_revision_and_changes(package: Path) -> None:
    clean = provenance.git()
    assert clean is not None
    assert len(clean["revision"]) == 40
    assert clean["dirty"] is False
    (package / "provenance.py").write_text("x = 2\n")
    assert provenance.git() == {"revision": clean["revision"], "dirty": True}


def test_another_repository_around_an_installed_package_is_not_ours(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = package.parent / "site-packages" / "pimem"
    installed.mkdir(parents=True)
    (installed / "provenance.py").write_text("")
    monkeypatch.setattr(provenance, "PACKAGE", installed)
    assert provenance.git() is None


def test_without_git_there_is_still_the_code(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert provenance.git() is None
    provenance.code_hash.cache_clear()
    try:
        before = provenance.code_hash()
        provenance.code_hash.cache_clear()
        (package / "provenance.py").write_text("x = 3\n")
        assert provenance.code_hash() != before
    finally:
        provenance.code_hash.cache_clear()


def test_gpus_are_read_from_the_drivers_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "_output", lambda *_: "NVIDIA H200, 143771 MiB, 580.95\nNVIDIA H200, 143771 MiB, 580.95")
    provenance.gpus.cache_clear()
    assert provenance.gpus() == [{"name": "NVIDIA H200", "memory": "143771 MiB", "driver": "580.95"}] * 2
    monkeypatch.setattr(provenance, "_output", lambda *_: None)
    provenance.gpus.cache_clear()
    assert provenance.gpus() == []
    provenance.gpus.cache_clear()
