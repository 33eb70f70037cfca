"""Chains of two made-up facts: both stand in the text, apart from one another, and only they lead to the answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pimem.records import Sample
from pimem.tokens import Tokenizer
from pimem.training import two_hop
from pimem.training.two_hop import PATTERNS, TwoHop


@pytest.fixture
def samples(tiny: Tokenizer, question_data: Path) -> list[Sample]:
    return list(TwoHop(800, "train", 3, tiny).samples(12))


def test_both_facts_stand_where_the_evidence_says(samples: list[Sample], tiny: Tokenizer) -> None:
    task = TwoHop(800, "train", 3, tiny)
    for index, sample in enumerate(samples):
        chain, decoys = task.facts(index)
        assert sample.question == chain.question
        assert sample.answers[0] == chain.answer
        assert {e.text for e in sample.evidence} == {chain.first, chain.second}
        text = tiny.decode(sample.context_ids)
        for e in sample.evidence:
            assert e.text in tiny.decode(sample.context_ids[e.start : e.end])
        assert all(decoy in text for decoy in decoys)
        assert 700 < len(sample.context_ids) <= 800


def test_neither_fact_answers_alone(samples: list[Sample], tiny: Tokenizer) -> None:
    """The answer is not in the first fact, nor what the question names in the second, and no look-alike shares the bridge."""
    task = TwoHop(800, "train", 3, tiny)
    for index in range(len(samples)):
        chain, decoys = task.facts(index)
        assert chain.answer not in chain.first
        bridge = [w for w in chain.first.rstrip(".").split() if w in chain.second.rstrip(".").split() and w[0].isupper()]
        assert bridge
        assert len(set(decoys)) == len(decoys)
        for decoy in decoys:
            assert decoy not in (chain.first, chain.second)
            assert not all(word in decoy for word in bridge)


def test_every_pattern_fills_all_its_places() -> None:
    for number in range(len(PATTERNS)):
        chain = two_hop.draw(np.random.default_rng(number), "train", number)
        said = f"{chain.first}{chain.second}{chain.question}{chain.answer}"
        assert "{" not in said
        assert chain.answer in chain.second or chain.answer.capitalize() in chain.second


def test_answers_count_with_and_without_their_article(samples: list[Sample]) -> None:
    for sample in samples:
        bare = sample.answers[0].removeprefix("a ").removeprefix("the ")
        assert sample.answers == ((bare,) if bare == sample.answers[0] else (sample.answers[0], bare))


def test_sample_i_does_not_depend_on_how_many_are_drawn(samples: list[Sample], tiny: Tokenizer, question_data: Path) -> None:
    (one,) = TwoHop(800, "train", 3, tiny).samples(1, start=7)
    assert np.array_equal(one.context_ids, samples[7].context_ids)
    assert one.evidence == samples[7].evidence
    (other,) = TwoHop(800, "eval", 3, tiny).samples(1, start=7)
    assert other.question != one.question
