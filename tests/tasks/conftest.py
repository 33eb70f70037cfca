"""A small question set in HotpotQA's published format, fetched from a path, and the tiny tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import hotpotqa_like
import pytest

from pimem import data
from pimem.corpora import Corpus
from pimem.tokens import Tokenizer


def sentences(title: str, n: int) -> list[str]:
    return [
        f"{title} lies in region {n % 7}.",
        f" Its founder was Person {n}.",
        f" It has {n * 37 + 11} inhabitants, naïve café.",
    ]


@pytest.fixture(scope="session")
def small_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PIMEM_HOME that holds the small set as hotpotqa, and a few sentences as essays."""
    folder = tmp_path_factory.mktemp("home")
    source = folder / "dev.json"
    source.write_text(json.dumps(hotpotqa_like.records(sentences)), encoding="utf-8")
    essays = folder / "essays.txt"
    essays.write_text(" ".join(f"Thought {n} is worth a walk. Is it? It is!" for n in range(40)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMEM_HOME", str(folder))
        data.fetch("hotpotqa", source, report=lambda line: None)
        data.fetch("essays", essays, report=lambda line: None)
    return folder


@pytest.fixture(scope="package", autouse=True)
def _home(small_home: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMEM_HOME", str(small_home))
        yield


@pytest.fixture(scope="session")
def corpus(small_home: Path) -> Corpus:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMEM_HOME", str(small_home))
        return data.corpus("hotpotqa")


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model)


@pytest.fixture
def real_home(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this machine, for tests over the real data; skips where HotpotQA has not been fetched."""
    monkeypatch.delenv("PIMEM_HOME")
    if not (data.home() / "data" / "hotpotqa").exists():
        pytest.skip("needs: pimem data fetch hotpotqa")
    return data.home()
