"""A small question set in HotpotQA's published format, fetched from a path, and the tiny tokenizer."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pimem import data
from pimem.corpora import Corpus
from pimem.tokens import Tokenizer

QUESTIONS, TOPICS = 40, 180


def hotpotqa_like(seed: int = 3) -> list[dict[str, Any]]:
    """Records as HotpotQA publishes them: two gold paragraphs each, distractors partly shared between questions."""
    rng = random.Random(seed)
    titles = [f"Topic {n}" for n in range(TOPICS)]
    texts = {
        title: [
            f"{title} lies in region {n % 7}.",
            f" Its founder was Person {n}.",
            f" It has {n * 37 + 11} inhabitants, naïve café.",
        ]
        for n, title in enumerate(titles)
    }
    records = []
    for number in range(QUESTIONS):
        gold = [titles[2 * number], titles[2 * number + 1]]
        others = rng.sample(titles[2 * QUESTIONS :], 6)
        context = [[title, texts[title]] for title in [*gold, *others]]
        rng.shuffle(context)
        records.append(
            {
                "_id": f"q{number:03}",
                "question": f"Who founded the place next to {gold[0]}?",
                "answer": f"Person {2 * number + 1}",
                "type": "bridge",
                "level": "hard",
                "supporting_facts": [[gold[0], 0], [gold[1], 1]],
                "context": context,
            }
        )
    return records


@pytest.fixture(scope="session")
def small_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PIMEM_HOME that holds the small set as hotpotqa, and a few sentences as essays."""
    folder = tmp_path_factory.mktemp("home")
    source = folder / "dev.json"
    source.write_text(json.dumps(hotpotqa_like()), encoding="utf-8")
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
