"""Variable tracking: a chain through the text, in order, exactly filled."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimem.config import TaskSpec
from pimem.errors import ConfigError
from pimem.tasks import base, check
from pimem.tokens import Tokenizer


@settings(deadline=None, max_examples=30)
@given(length=st.integers(300, 5000), index=st.integers(0, 40), seed=st.integers(0, 3))
def test_the_chain_stands_there_in_order_and_fills_the_length(tokenizer: Tokenizer, length: int, index: int, seed: int) -> None:
    task = base.build(TaskSpec("variable_tracking", length, seed), tokenizer)
    (sample,) = task.samples(1, start=index)
    assert list(check.verify(sample, task, length, tokenizer)) == []
    lines = [e.text for e in sample.evidence]
    value = re.findall(r"\d+", sample.question)[0]
    assert lines[0] == f"SET {sample.answers[0]} = {value}"
    assert lines[1:] == [f"SET {b} = {a}" for a, b in zip(sample.answers, sample.answers[1:], strict=False)]
    assert [e.start for e in sample.evidence] == sorted(e.start for e in sample.evidence)
    assert len(set(sample.answers)) == 5
    assert all(re.fullmatch("[A-Z]{5}", name) for name in sample.answers)
    assert 10_000 <= int(value) <= 99_999


def test_every_length_asks_the_same_and_samples_differ(tokenizer: Tokenizer) -> None:
    short = list(base.build(TaskSpec("variable_tracking", 600), tokenizer).samples(5))
    (long,) = base.build(TaskSpec("variable_tracking", 3000), tokenizer).samples(1, start=3)
    assert (long.question, long.answers, long.cluster) == (short[3].question, short[3].answers, short[3].cluster)
    assert len({s.question for s in short}) == 5


def test_the_number_of_variables_is_told_only_on_request(tokenizer: Tokenizer) -> None:
    told, untold = (
        next(base.build(TaskSpec("variable_tracking", 900, params={"tell_count": tell}), tokenizer).samples(1))
        for tell in (True, False)
    )
    assert told.question == f"{untold.question} There are 5 of them."
    assert told.answers == untold.answers


def test_impossible_requests_are_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"task variable_tracking: length 30 has no room for the 5 needles alone"):
        next(base.build(TaskSpec("variable_tracking", 30), tokenizer).samples(1))
    with pytest.raises(ConfigError, match="did you mean 'tell_count'"):
        base.build(TaskSpec("variable_tracking", 900, params={"count": True}), tokenizer)
