"""Training and evaluation share no article of SQuAD."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import squad_like

from pimem import corpora, data
from pimem.corpora import Corpus
from pimem.tasks import articles


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    source: Path = tmp_path_factory.mktemp("squad") / "squad.json"
    source.write_text(json.dumps(squad_like.records()), encoding="utf-8")
    return corpora.corpus(corpora.squad_rows(source))


def titles(corpus: Corpus, part: str) -> set[str]:
    return {corpus.paragraphs[p].title for p in articles.split(corpus, part).paragraphs}


def test_parts_share_no_article_and_lose_nothing(corpus: Corpus) -> None:
    train, held_out = articles.split(corpus, "train"), articles.split(corpus, "eval")
    assert not titles(corpus, "train") & titles(corpus, "eval")
    assert (len(titles(corpus, "train")), len(titles(corpus, "eval"))) == (8, 2)
    assert sorted(train.paragraphs + held_out.paragraphs) == list(range(len(corpus.paragraphs)))
    assert sorted(train.questions + held_out.questions) == list(range(len(corpus.questions)))
    for pool in (train, held_out):
        assert {p for q in pool.questions for p in corpus.questions[q].paragraphs} == set(pool.paragraphs)
    assert articles.split(corpus, "all").paragraphs == tuple(range(len(corpus.paragraphs)))


def test_the_content_alone_decides(corpus: Corpus) -> None:
    again = Corpus(corpus.paragraphs, tuple(reversed(corpus.questions)), "other")
    assert titles(again, "eval") == titles(corpus, "eval")


def test_a_question_that_nothing_answers_is_trained_on_with_its_own_paragraphs_alone(corpus: Corpus) -> None:
    bare = Corpus(corpus.paragraphs, tuple(replace(q, support=()) for q in corpus.questions), "other")
    for part in ("train", "eval"):
        assert articles.split(bare, part).questions == articles.split(corpus, part).questions


@pytest.mark.data
@pytest.mark.usefixtures("real_home")
def test_the_published_set() -> None:
    if not (data.home() / "data" / "squad").is_dir():
        pytest.skip("needs: pimem data fetch squad")
    corpus = data.corpus("squad")
    sizes = {part: (len(p.questions), len(p.paragraphs)) for part in ("train", "eval") for p in [articles.split(corpus, part)]}
    assert sizes == {"train": (9431, 958), "eval": (2442, 246)}
    assert len(titles(corpus, "eval")) == 8
