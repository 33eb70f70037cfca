"""HotpotQA contexts: what is in them, where the evidence lies, and that nothing else decides them than the specification."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimem import data, models
from pimem.config import ModelSpec, TaskSpec
from pimem.corpora import Corpus
from pimem.errors import ConfigError, DataError
from pimem.tasks import base
from pimem.tasks.hotpotqa import split
from pimem.tasks.splits import gold
from pimem.tokens import Tokenizer


def documents(text: str) -> list[str]:
    """Titles in the order shown."""
    return re.findall(r"^Document \d+:\n(.+)$", text, re.MULTILINE)


@settings(deadline=None, max_examples=25)
@given(length=st.integers(2, 160), index=st.integers(0, 39), seed=st.integers(0, 5))
def test_a_sample_holds_its_gold_at_the_stated_tokens(tokenizer: Tokenizer, length: int, index: int, seed: int) -> None:
    task = base.build(TaskSpec(length=length, seed=seed), tokenizer)
    (sample,) = task.samples(1, start=index)
    text = tokenizer.decode(sample.context_ids)
    titles = documents(text)
    assert len(titles) == len(set(titles)) == length == sample.meta["documents"]
    assert sample.context_ids.dtype == np.uint32
    assert sample.meta["tokens"] == len(sample.context_ids)
    number = int(sample.cluster[1:])
    assert sample.answers == (f"Person {2 * number + 1}",)
    wanted = {f"Topic {2 * number} lies in region {2 * number % 7}.", f"Its founder was Person {2 * number + 1}."}
    assert {e.text for e in sample.evidence} == wanted
    for e in sample.evidence:
        assert e.text in tokenizer.decode(sample.context_ids[e.start : e.end])
        assert e.text not in tokenizer.decode(sample.context_ids[e.start + 1 : e.end])
        assert e.text not in tokenizer.decode(sample.context_ids[e.start : e.end - 1])
    assert [titles[d - 1] for d in sample.meta["gold_documents"]] == sorted(
        (f"Topic {2 * number}", f"Topic {2 * number + 1}"), key=titles.index
    )


def test_sample_i_does_not_depend_on_how_many_are_drawn(tokenizer: Tokenizer) -> None:
    spec = TaskSpec(length=30)
    many = list(base.build(spec, tokenizer).samples(6))
    (one,) = base.build(spec, tokenizer).samples(1, start=4)
    assert one.id == many[4].id == "hotpotqa-30-4"
    assert np.array_equal(one.context_ids, many[4].context_ids)
    assert one.evidence == many[4].evidence


def test_lengths_share_questions_and_longer_contexts_contain_shorter_ones(tokenizer: Tokenizer) -> None:
    short = list(base.build(TaskSpec(length=15), tokenizer).samples(5))
    long = list(base.build(TaskSpec(length=90), tokenizer).samples(5))
    assert [s.cluster for s in short] == [s.cluster for s in long]
    for a, b in zip(short, long, strict=True):
        shown_a, shown_b = (documents(tokenizer.decode(s.context_ids)) for s in (a, b))
        assert set(shown_a) < set(shown_b)
        assert [t for t in shown_b if t in set(shown_a)] != shown_a


def test_gold_positions_vary_between_samples(tokenizer: Tokenizer) -> None:
    samples = base.build(TaskSpec(length=100), tokenizer).samples(20)
    assert len({tuple(s.meta["gold_documents"]) for s in samples}) >= 18


@settings(deadline=None, max_examples=8)
@given(length=st.integers(400, 4000), index=st.integers(0, 39))
def test_a_length_in_tokens_is_filled_to_the_document(tokenizer: Tokenizer, length: int, index: int) -> None:
    task = base.build(TaskSpec(length=length, params={"unit": "tokens"}), tokenizer)
    (sample,) = task.samples(1, start=index)
    assert len(sample.context_ids) <= length < sample.meta["one_more"]
    (longer,) = base.build(TaskSpec(length=sample.meta["documents"] + 1), tokenizer).samples(1, start=index)
    assert len(longer.context_ids) == sample.meta["one_more"]
    (same,) = base.build(TaskSpec(length=sample.meta["documents"]), tokenizer).samples(1, start=index)
    assert np.array_equal(same.context_ids, sample.context_ids)
    assert same.evidence == sample.evidence


def test_a_constant_order_gives_a_questions_own_paragraphs_the_same_places(tokenizer: Tokenizer, corpus: Corpus) -> None:
    task = base.build(TaskSpec(length=60, params={"order": "constant"}), tokenizer)
    places = []
    for sample in task.samples(20):
        shown = documents(tokenizer.decode(sample.context_ids))
        (question,) = [q for q in corpus.questions if q.id == sample.cluster]
        places.append(frozenset(shown.index(corpus.paragraphs[p].title) for p in question.paragraphs))
    assert len(places[0]) == 8
    assert len(set(places)) == 1


@settings(deadline=None, max_examples=25)
@given(length=st.integers(4, 150), index=st.integers(0, 39), share=st.sampled_from([0.1, 0.2, 0.29, 0.5, 1.0]))
def test_gold_stands_among_the_first_documents_where_that_is_asked(
    tokenizer: Tokenizer, length: int, index: int, share: float
) -> None:
    most = int(round(share * length, 6))
    spec = TaskSpec(length=length, params={"evidence_within": share})
    if most < 2:
        with pytest.raises(ConfigError, match=rf"{most} documents, the first {share:.0%} of {length}, cannot hold"):
            base.build(spec, tokenizer)
        return
    (sample,) = base.build(spec, tokenizer).samples(1, start=index)
    (whole,) = base.build(TaskSpec(length=length), tokenizer).samples(1, start=index)
    assert max(sample.meta["gold_documents"]) <= most
    titles, before = (documents(tokenizer.decode(s.context_ids)) for s in (sample, whole))
    assert sorted(titles) == sorted(before)
    if share == 1:
        assert titles == before
    own = set(sample.meta["gold_documents"])
    assert [t for t in titles if t not in {titles[d - 1] for d in own}] == [
        t for t in before if t not in {titles[d - 1] for d in own}
    ]


def test_gold_takes_every_place_of_its_share(tokenizer: Tokenizer) -> None:
    samples = base.build(TaskSpec(length=50, params={"evidence_within": 0.1}), tokenizer).samples(40)
    assert {place for s in samples for place in s.meta["gold_documents"]} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("order", ["sample", "constant"])
def test_gold_stands_among_the_first_documents_of_a_length_in_tokens(tokenizer: Tokenizer, order: str) -> None:
    params = {"unit": "tokens", "order": order, "evidence_within": 0.3}
    for sample in base.build(TaskSpec(length=3000, params=params), tokenizer).samples(8):
        assert len(sample.context_ids) <= 3000 < sample.meta["one_more"]
        assert max(sample.meta["gold_documents"]) <= 0.3 * sample.meta["documents"]
    with pytest.raises(ConfigError, match=r"of which the first 30% cannot hold the [12] gold paragraphs"):
        list(base.build(TaskSpec(length=300, params=params), tokenizer).samples(8))


@pytest.mark.parametrize("share", [0, -0.1, 1.01, float("nan"), "0.1"])
def test_a_share_that_is_none_is_refused(tokenizer: Tokenizer, share: object) -> None:
    for name in ("hotpotqa", "niah_single_1"):
        with pytest.raises(ConfigError, match="evidence_within"):
            base.build(TaskSpec(name, 1000, params={"evidence_within": share}), tokenizer)


def test_the_seed_decides_the_questions(tokenizer: Tokenizer) -> None:
    clusters = {seed: [s.cluster for s in base.build(TaskSpec(length=10, seed=seed), tokenizer).samples(8)] for seed in (1, 2)}
    assert clusters[1] != clusters[2]
    assert len(set(clusters[1])) == 8


def test_the_split_separates_questions_and_titles(corpus: Corpus) -> None:
    train, held = split(corpus, "train"), split(corpus, "eval")
    assert not set(train.questions) & set(held.questions)
    assert len(train.questions) >= 10
    assert len(held.questions) >= 10
    titles = [{corpus.paragraphs[p].title for p in pool.paragraphs} for pool in (train, held)]
    assert not titles[0] & titles[1]
    assert len(train.paragraphs) + len(held.paragraphs) == len(corpus.paragraphs)
    for i in held.questions:
        assert set(corpus.questions[i].paragraphs) <= set(held.paragraphs)
    for i in train.questions:
        assert set(gold(corpus.questions[i])) <= set(train.paragraphs)


@pytest.mark.parametrize("part", ["train", "eval"])
def test_contexts_of_a_split_stay_in_it(tokenizer: Tokenizer, corpus: Corpus, part: str) -> None:
    pool = split(corpus, part)
    allowed = {corpus.paragraphs[p].title for p in pool.paragraphs}
    task = base.build(TaskSpec(length=len(pool.paragraphs), params={"split": part}), tokenizer)
    (sample,) = task.samples(1)
    assert set(documents(tokenizer.decode(sample.context_ids))) == allowed


def test_impossible_requests_are_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"181 documents are asked for and there are 1\d\d"):
        base.build(TaskSpec(length=181), tokenizer)
    with pytest.raises(ConfigError, match=r"400,000 tokens are asked for, split 'all' has \d\d,\d\d\d"):
        next(base.build(TaskSpec(length=400_000, params={"unit": "tokens"}), tokenizer).samples(1))
    with pytest.raises(ConfigError, match="length 10 has no room for the gold paragraphs of question q"):
        next(base.build(TaskSpec(length=10, params={"unit": "tokens"}), tokenizer).samples(1))
    with pytest.raises(ConfigError, match="2 can"):
        base.build(TaskSpec(length=1), tokenizer)
    with pytest.raises(ConfigError, match=r"samples 30 to 49 are asked for and there are 40"):
        base.build(TaskSpec(length=10), tokenizer).samples(20, start=30)
    with pytest.raises(ConfigError, match="did you mean 'split'"):
        base.build(TaskSpec(length=10, params={"splt": "eval"}), tokenizer)


def test_data_that_is_not_here_is_named_with_its_command(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path))
    with pytest.raises(DataError, match="pimem data fetch hotpotqa"):
        base.build(TaskSpec(length=10), tokenizer)


@pytest.mark.data
@pytest.mark.usefixtures("real_home")
def test_the_real_pool_is_the_papers() -> None:
    real = data.corpus("hotpotqa")
    assert (len(real.paragraphs), len(real.questions)) == (66_635, 7_405)
    held, train = split(real, "eval"), split(real, "train")
    assert len(held.paragraphs) >= 25_600
    assert len(held.questions) >= 2_000
    assert len(train.questions) >= 3_000


@pytest.mark.data
@pytest.mark.usefixtures("real_home")
def test_200_real_documents_are_the_papers_28k_tokens_and_carry_their_evidence() -> None:
    if not (models.home() / "models" / "smollm2-135m").exists():
        pytest.skip("needs: pimem models fetch smollm2-135m")
    tokenizer = Tokenizer.load(models.resolve(ModelSpec()))
    started = time.perf_counter()
    for sample in base.build(TaskSpec(length=200), tokenizer).samples(4):
        assert 24_000 < len(sample.context_ids) < 34_000
        assert len(sample.evidence) >= 2
        for e in sample.evidence:
            assert tokenizer.decode(sample.context_ids[e.start : e.end]).strip() == e.text
    assert time.perf_counter() - started < 60
