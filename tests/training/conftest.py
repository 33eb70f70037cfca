"""A small question set in HotpotQA's published format, whose sentences are long enough to be told apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import hotpotqa_like
import pytest
import squad_like

from pimem import data
from pimem.tokens import Tokenizer


def sentences(title: str, n: int) -> list[str]:
    return [
        f"{title} lies in region {n % 7}.",
        f" Its founder was Person {n}, who came from far away and stayed in {title} for the rest of a long life.",
        f" It has {n * 37 + 11} inhabitants, naïve cafés, and a tower from which {title} can be seen as a whole.",
    ]


@pytest.fixture(scope="session")
def question_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PIMEM_HOME that holds the small set as hotpotqa. It is not in force; `question_data` is what puts it so."""
    folder = tmp_path_factory.mktemp("question_home")
    source = folder / "dev.json"
    source.write_text(json.dumps(hotpotqa_like.records(sentences)), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMEM_HOME", str(folder))
        data.fetch("hotpotqa", source, report=lambda line: None)
    return folder


@pytest.fixture
def question_data(question_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small set in force."""
    monkeypatch.setenv("PIMEM_HOME", str(question_home))
    return question_home


@pytest.fixture(scope="module")
def cold_home(question_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The small sets of a cold start in force: two-hop questions, articles, and a few sentences as essays."""
    folder = tmp_path_factory.mktemp("cold_home")
    essays, squad = folder / "essays.txt", folder / "squad.json"
    essays.write_text(" ".join(f"Thought {n} is worth a walk. Is it? It is!" for n in range(40)), encoding="utf-8")
    squad.write_text(json.dumps(squad_like.records()), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMEM_HOME", str(folder))
        for name, source in (("hotpotqa", question_home / "dev.json"), ("squad", squad), ("essays", essays)):
            data.fetch(name, source, report=lambda line: None)
        yield


@pytest.fixture(scope="session")
def tiny(tiny_tokenizer: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer)
