"""NIAH contexts: exactly filled, needles where they are said to be, the same at every length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimem import data
from pimem.config import TaskSpec
from pimem.errors import ConfigError, DataError
from pimem.tasks import base, haystacks, niah, pieces
from pimem.tasks.niah import VARIANTS
from pimem.tokens import Tokenizer

NAMES = sorted(VARIANTS)


@settings(deadline=None, max_examples=40)
@given(name=st.sampled_from(NAMES), length=st.integers(700, 4000), index=st.integers(0, 50))
def test_filled_to_the_unit_and_never_above(tokenizer: Tokenizer, name: str, length: int, index: int) -> None:
    task = base.build(TaskSpec(name=name, length=length), tokenizer)
    (sample,) = task.samples(1, start=index)
    text = tokenizer.decode(sample.context_ids)
    assert np.array_equal(tokenizer.encode_long(text).ids, sample.context_ids)
    units = list(itertools.islice(task._haystack.units(task._key(index)), sample.meta["units"] + 1))
    longer, _ = niah.assemble(units, task.needles(index), task._haystack.joiner)
    assert len(sample.context_ids) <= length < len(tokenizer.encode_long(longer).ids) == sample.meta["one_more"]
    for evidence, value in zip(sample.evidence, sample.answers, strict=True):
        shown = tokenizer.decode(sample.context_ids[evidence.start : evidence.end])
        assert evidence.text in shown
        assert value in evidence.text
        assert tokenizer.decode(sample.context_ids).count(value) == 1


@pytest.mark.parametrize("name", NAMES)
def test_what_is_asked_for_stands_in_the_first_share_and_the_rest_anywhere(tokenizer: Tokenizer, name: str) -> None:
    own = base.build(TaskSpec(name, 4000), tokenizer)
    for share in (0.1, 0.2):
        task = base.build(TaskSpec(name, 4000, params={"evidence_within": share}), tokenizer)
        for index, sample in enumerate(task.samples(4)):
            needles = task.needles(index)
            room = sum(len(tokenizer.encode(needle.text)) + 1 for needle in needles)
            longest = 1 + max(
                len(tokenizer.encode(task._haystack.joiner + u))
                for u in itertools.islice(task._haystack.units(task._key(index)), sample.meta["units"])
            )
            assert max(e.end for e in sample.evidence) <= share * len(sample.context_ids) + room + longest * 4
            assert max(needle.depth for needle in needles if needle.asked) <= share
            before = {needle.value: needle.depth for needle in own.needles(index)}
            assert {n.value: n.depth for n in needles} == {
                n.value: before[n.value] * (share if n.asked else 1) for n in needles
            }


@pytest.mark.parametrize(
    ("name", "answers", "keys"),
    [("niah_single_1", 1, 1), ("niah_multikey_1", 1, 1), ("niah_multivalue", 4, 1), ("niah_multiquery", 4, 4)],
)
def test_what_is_asked_for(tokenizer: Tokenizer, name: str, answers: int, keys: int) -> None:
    (sample,) = base.build(TaskSpec(name=name, length=1500), tokenizer).samples(1)
    assert len(set(sample.answers)) == answers
    assert len(sample.meta["keys"]) == keys
    assert all(key in sample.question for key in sample.meta["keys"])
    assert all(value.isdigit() and len(value) == 7 for value in sample.answers)
    assert not any(value in sample.question for value in sample.answers)


def test_multikey_hides_three_more_keys_and_does_not_ask_for_them(tokenizer: Tokenizer) -> None:
    task = base.build(TaskSpec(name="niah_multikey_1", length=1500), tokenizer)
    (sample,) = task.samples(1)
    others = [needle for needle in task.needles(0) if not needle.asked]
    text = tokenizer.decode(sample.context_ids)
    assert len(others) == 3
    assert all(needle.text in text and needle.key not in sample.question for needle in others)


def test_a_haystack_of_needles_holds_the_asked_key_once(tokenizer: Tokenizer) -> None:
    (sample,) = base.build(TaskSpec(name="niah_multikey_3", length=4000), tokenizer).samples(1)
    text = tokenizer.decode(sample.context_ids)
    assert text.count(sample.meta["keys"][0]) == 1
    assert text.count("A secret code of ") == sample.meta["units"] + 1


def test_needles_are_the_same_at_every_length_and_for_any_number_of_samples(tokenizer: Tokenizer) -> None:
    short = list(base.build(TaskSpec(name="niah_multivalue", length=800), tokenizer).samples(5))
    (long,) = base.build(TaskSpec(name="niah_multivalue", length=2500), tokenizer).samples(1, start=3)
    assert (long.cluster, long.question, long.answers) == (short[3].cluster, short[3].question, short[3].answers)
    assert len({s.question for s in short}) == 5
    assert len({tuple(s.meta["depths"]) for s in short}) == 5


def test_depths_are_distinct_and_needles_stand_there(tokenizer: Tokenizer) -> None:
    for sample in base.build(TaskSpec(name="niah_multiquery", length=3000), tokenizer).samples(5):
        depths = sample.meta["depths"]
        assert depths == sorted(set(depths))
        for evidence, depth in zip(sample.evidence, depths, strict=True):
            assert abs(evidence.start / len(sample.context_ids) - depth) < 0.06


def test_hotpotqa_haystack_is_made_of_its_sentences(tokenizer: Tokenizer) -> None:
    spec = TaskSpec(name="niah_multivalue", length=1200, params={"haystack": "hotpotqa", "split": "eval"})
    (sample,) = base.build(spec, tokenizer).samples(1)
    text = tokenizer.decode(sample.context_ids)
    assert "lies in region" in text
    assert haystacks.NOISE not in text


def test_essays_repeat_and_say_so(tokenizer: Tokenizer) -> None:
    short, long = (next(base.build(TaskSpec(name="niah_single_2", length=n), tokenizer).samples(1)) for n in (600, 6000))
    assert (short.meta["haystack_repeats"], long.meta["haystack_repeats"]) == (False, True)


def test_essays_that_do_not_repeat_end_short_of_the_length(tokenizer: Tokenizer) -> None:
    spec = TaskSpec(name="niah_single_2", length=6000, params={"essays": "once"})
    (sample,) = base.build(spec, tokenizer).samples(1)
    assert (sample.meta["units"], sample.meta["one_more"]) == (120, None)
    text = tokenizer.decode(sample.context_ids)
    assert [text.count(f"Thought {n} is") for n in range(40)] == [1] * 40


def test_a_second_process_finds_the_recipe_and_does_not_search(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TaskSpec(name="niah_single_1", length=1234, seed=99)
    (first,) = base.build(spec, tokenizer).samples(1)
    monkeypatch.setattr(pieces, "fill", lambda *args: pytest.fail("searched again"))
    (again,) = base.build(spec, tokenizer).samples(1)
    assert np.array_equal(first.context_ids, again.context_ids)
    assert first.evidence == again.evidence


def test_impossible_requests_are_named(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"length 30 has no room for the 4 needles alone"):
        next(base.build(TaskSpec(name="niah_multivalue", length=30), tokenizer).samples(1))
    with pytest.raises(ConfigError, match="cannot be replaced"):
        base.build(TaskSpec(name="niah_multikey_2", length=900, params={"haystack": "noise"}), tokenizer)
    with pytest.raises(ConfigError, match=r"params\.essays: its haystack is not made of essays"):
        base.build(TaskSpec(name="niah_single_1", length=900, params={"essays": "once"}), tokenizer)
    with pytest.raises(ConfigError, match="did you mean 'niah_multivalue'"):
        base.build(TaskSpec(name="niah_multivalues"), tokenizer)


def test_missing_essays_name_their_command(tokenizer: Tokenizer, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path))
    assert not data.listing()[0].folder
    with pytest.raises(DataError, match="pimem data fetch essays"):
        base.build(TaskSpec(name="niah_single_2", length=900), tokenizer)
