"""Counted words: RULER's frequencies, whatever the length, and places that are right."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimem.config import TaskSpec
from pimem.errors import ConfigError
from pimem.tasks import base, check, haystacks, word_counts
from pimem.tokens import Tokenizer

BOTH = ["common_words", "frequent_words"]


@settings(deadline=None, max_examples=10)
@given(name=st.sampled_from(BOTH), length=st.integers(900, 6000), index=st.integers(0, 30))
def test_samples_are_what_they_say(tokenizer: Tokenizer, name: str, length: int, index: int) -> None:
    task = base.build(TaskSpec(name, length), tokenizer)
    (sample,) = task.samples(1, start=index)
    assert list(check.verify(sample, task, length, tokenizer)) == []
    counts = Counter(e.text for e in sample.evidence)
    assert [counts[answer] for answer in sample.answers] == sample.meta["occurrences"]


@pytest.mark.parametrize(("length", "often", "seldom"), [(3000, 6, 1), (9000, 30, 3)])
def test_common_words_stand_ten_times_as_often(tokenizer: Tokenizer, length: int, often: int, seldom: int) -> None:
    (sample,) = base.build(TaskSpec("common_words", length), tokenizer).samples(1)
    entries = re.findall(r"(\d+)\. ([a-z]+)", tokenizer.decode(sample.context_ids))
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    counts = Counter(word for _, word in entries)
    assert {counts.pop(answer) for answer in sample.answers} == {often}
    assert set(counts.values()) == {seldom}
    assert len(sample.answers) == 10


def test_a_list_that_needs_more_words_than_there_are_says_each_more_often(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = haystacks.vocabulary()[0][:60]
    monkeypatch.setattr(haystacks, "vocabulary", lambda: (few, "few"))
    task = base.build(TaskSpec("common_words", 9000), tokenizer)
    (sample,) = task.samples(1)
    assert list(check.verify(sample, task, 9000, tokenizer)) == []
    assert sample.meta["times"] == 2
    assert sample.meta["occurrences"] == [60] * 10


def test_coded_words_fall_with_the_square_of_their_rank(tokenizer: Tokenizer) -> None:
    (sample,) = base.build(TaskSpec("frequent_words", 6000), tokenizer).samples(1)
    words = tokenizer.decode(sample.context_ids).split(" ")
    ranked = [n for _, n in Counter(words).most_common()]
    assert ranked == word_counts.zeta_counts(sample.meta["units"]).tolist()
    assert Counter(words).most_common(1)[0][0] == "..."
    assert ranked[0] / len(words) == pytest.approx(0.608, abs=0.06)
    assert all(re.fullmatch("[a-z]{6}", word) for word in set(words) - {"..."})


def test_places_of_a_word_said_often_stand_evenly_over_the_text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_counts, "SHOWN", 8)
    task = base.build(TaskSpec("frequent_words", 8000, seed=5), tokenizer)
    (sample,) = task.samples(1)
    assert list(check.verify(sample, task, 8000, tokenizer)) == []
    for answer in sample.answers:
        places = [e.start for e in sample.evidence if e.text == answer]
        assert 5 <= len(places) <= 8
        assert places[-1] - places[0] > 5000


def test_every_length_asks_for_the_same_words(tokenizer: Tokenizer) -> None:
    for name in BOTH:
        short, long = (next(base.build(TaskSpec(name, n), tokenizer).samples(1, start=2)) for n in (1500, 5000))
        assert short.answers == long.answers


def test_impossible_requests_are_named(tokenizer: Tokenizer) -> None:
    for name in BOTH:
        with pytest.raises(ConfigError, match=f"task {name}: length 60 is too short for counts that differ, "):
            next(base.build(TaskSpec(name, 60), tokenizer).samples(1))
        with pytest.raises(ConfigError, match=f"task {name}: params: it has none, got alpha"):
            base.build(TaskSpec(name, 900, params={"alpha": 2.0}), tokenizer)
