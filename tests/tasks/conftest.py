"""A small question set in HotpotQA's published format, fetched from a path, and the tiny tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def article(n: int) -> dict[str, Any]:
    """An article in SQuAD's published format: five paragraphs, each with a question it answers and one it does not."""
    paragraphs = []
    for m in range(5):
        said = f"Mill {n}-{m} was built in {1500 + 10 * n + m}. It has {m + 2} wheels, and a café."
        asked = {"id": f"s{n}{m}", "question": f"When was mill {n}-{m} built?", "is_impossible": False}
        asked["answers"] = [{"text": f"{1500 + 10 * n + m}"}, {"text": f"in {1500 + 10 * n + m}"}]
        never = {"id": f"n{n}{m}", "question": "Who burnt it?", "is_impossible": True, "answers": []}
        paragraphs.append({"context": said, "qas": [asked, never]})
    return {"title": f"Mills of valley {n}", "paragraphs": paragraphs}


@pytest.fixture(scope="session")
def small_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PIMEM_HOME that holds the small sets as hotpotqa and squad, and a few sentences as essays."""
    folder = tmp_path_factory.mktemp("home")
    source = folder / "dev.json"
    source.write_text(json.dumps(hotpotqa_like.records(sentences)), encoding="utf-8")
    essays = folder / "essays.txt"
    essays.write_text(" ".join(f"Thought {n} is worth a walk. Is it? It is!" for n in range(40)), encoding="utf-8")
    squad = folder / "squad.json"
    squad.write_text(json.dumps({"data": [article(n) for n in range(8)]}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMEM_HOME", str(folder))
        data.fetch("hotpotqa", source, report=lambda line: None)
        data.fetch("essays", essays, report=lambda line: None)
        data.fetch("squad", squad, report=lambda line: None)
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
