"""SQuAD contexts: one paragraph with the answer among others, exactly filled, repeated where the set ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimem import data
from pimem.config import TaskSpec
from pimem.errors import ConfigError, DataError
from pimem.tasks import articles, base, check
from pimem.tokens import Tokenizer


def documents(text: str) -> list[str]:
    heads = [f"Document {n}:" for n in range(1, text.count("Document ") + 1)]
    parts = [part.split("\n", 1) for part in text.split("\n\n")]
    assert [head for head, _ in parts] == heads
    return [body for _, body in parts]


@settings(deadline=None, max_examples=25)
@given(length=st.integers(120, 6000), index=st.integers(0, 39), order=st.sampled_from(["sample", "constant"]))
def test_one_paragraph_answers_and_the_length_is_filled(tokenizer: Tokenizer, length: int, index: int, order: str) -> None:
    task = base.build(TaskSpec("squad", length, params={"order": order}), tokenizer)
    (sample,) = task.samples(1, start=index)
    assert list(check.verify(sample, task, length, tokenizer)) == []
    shown = documents(tokenizer.decode(sample.context_ids))
    assert len(shown) == sample.meta["documents"]
    (place,) = sample.meta["gold_documents"]
    assert shown[place - 1] == sample.evidence[0].text
    assert shown.count(shown[place - 1]) == 1
    year, valley = sample.answers[0], int(sample.cluster[1])
    assert sample.answers == (year, f"in {year}")
    assert f"built in {year}." in shown[place - 1]
    own = sum(f"Mill {valley}-" in text for text in set(shown))
    assert own == min(5, len(shown))
    assert sample.meta["haystack_repeats"] == (len(shown) > 40)


def test_questions_that_nothing_answers_are_left_out(tokenizer: Tokenizer) -> None:
    samples = list(base.build(TaskSpec("squad", 200), tokenizer).samples(40))
    assert all(sample.question.startswith("When was mill") for sample in samples)
    assert len({sample.cluster for sample in samples}) == 40
    with pytest.raises(ConfigError, match=r"samples 0 to 40 are asked for and there are 40"):
        base.build(TaskSpec("squad", 200), tokenizer).samples(41)


def test_paragraphs_that_do_not_repeat_end_short_of_the_length(tokenizer: Tokenizer) -> None:
    task = base.build(TaskSpec("squad", 30_000, params={"paragraphs": "once"}), tokenizer)
    (sample,) = task.samples(1)
    shown = documents(tokenizer.decode(sample.context_ids))
    assert len(set(shown)) == len(shown) == 40
    assert sample.meta["one_more"] is None


def test_a_part_of_the_articles_is_all_that_is_read_and_asked(tokenizer: Tokenizer) -> None:
    corpus, read = data.corpus("squad"), {}
    for part in ("train", "eval"):
        pool = articles.split(corpus, part)
        task = base.build(TaskSpec("squad", 30_000, params={"paragraphs": "once", "split": part}), tokenizer)
        asked = [corpus.questions[i] for i in pool.questions if corpus.questions[i].answers]
        samples = list(task.samples(len(asked)))
        assert {s.cluster for s in samples} == {q.id for q in asked}
        read[part] = set(documents(tokenizer.decode(samples[0].context_ids)))
        assert read[part] == {corpus.paragraphs[p].text for p in pool.paragraphs}
    assert read["train"]
    assert read["eval"]
    assert not read["train"] & read["eval"]


def test_a_constant_order_gives_the_answer_one_place(tokenizer: Tokenizer) -> None:
    spec = {"paragraphs": "once"}
    for order, most in (("constant", 1), ("sample", 40)):
        task = base.build(TaskSpec("squad", 30_000, params=spec | {"order": order}), tokenizer)
        places = {s.meta["gold_documents"][0] for s in task.samples(12)}
        assert (len(places) == 1) == (most == 1)


def test_impossible_requests_are_named(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"task squad: length 10 has no room for the paragraph of question s\d\d, \d\d tokens"
    ):
        next(base.build(TaskSpec("squad", 10), tokenizer).samples(1))
    with pytest.raises(ConfigError, match="did you mean 'order'"):
        base.build(TaskSpec("squad", 900, params={"ordr": "constant"}), tokenizer)
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path))
    with pytest.raises(DataError, match="pimem data fetch squad"):
        base.build(TaskSpec("squad", 900), tokenizer)
