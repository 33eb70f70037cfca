"""Building question sets: what is in them, what is kept apart, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pimem import data, models
from pimem.config import ModelSpec, TaskSpec, build
from pimem.errors import ConfigError, DataError
from pimem.tasks import base
from pimem.tasks.hotpotqa import split
from pimem.tokens import Tokenizer
from pimem.training import question_sets
from pimem.training.question_sets import Portion, QuestionSet, make
from pimem.training.questions import Questions


def mixed(part: Any = "train", **fields: Any) -> QuestionSet:
    return QuestionSet(
        (
            Portion("hotpotqa", 3, 10),
            Portion("hotpotqa", 3, 14),
            Portion("niah_multivalue", 2, 900),
            Portion("niah_single_1", 1, 900),
            Portion("niah_multikey_2", 1, 900),
            Portion("two_hop", 3, 900),
        ),
        part,
        **fields,
    )


@pytest.fixture(scope="module")
def sets(tiny: Tokenizer, question_home: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Questions]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIMEM_HOME", str(question_home))
        folder = tmp_path_factory.mktemp("sets")
        return {part: make(mixed(part), tiny, folder / part) for part in ("train", "eval")}


@pytest.mark.parametrize("part", ["train", "eval"])
def test_every_question_carries_its_gold_in_its_context(sets: dict[str, Questions], tiny: Tokenizer, part: str) -> None:
    made = sets[part]
    assert len(made) == 13
    assert len({row.id for row in made}) == len({row.source for row in made}) == 13
    assert [row.task for row in made] != sorted(row.task for row in made)
    for row in made:
        context = made.context(row.id)
        assert len(context) == row.tokens
        assert row.id.startswith(f"{part}-{row.task}-")
        assert row.metric == ("multi_recall" if row.task.startswith("niah") else "sub_em")
        shown = [tiny.decode(context[a:b]) for a, b in row.evidence]
        assert len(shown) >= len(row.answers) if row.metric == "multi_recall" else len(shown) == 2
        if row.metric == "multi_recall":
            assert all(any(answer in text for text in shown) for answer in row.answers)
        if row.task != "hotpotqa":
            assert row.tokens <= 900


def test_a_set_is_the_same_again_and_another_with_another_seed(
    sets: dict[str, Questions], tiny: Tokenizer, question_data: Path, tmp_path: Path
) -> None:
    again, other = make(mixed(), tiny, tmp_path / "again"), make(mixed(seed=1), tiny, tmp_path / "other")
    assert again.rows == sets["train"].rows
    assert again.manifest == sets["train"].manifest
    assert np.array_equal(again._ids, sets["train"]._ids)
    assert {r.answers for r in other} != {r.answers for r in again}


def test_parts_share_neither_questions_nor_paragraphs_nor_needles(
    sets: dict[str, Questions], tiny: Tokenizer, question_data: Path
) -> None:
    train, held = sets["train"], sets["eval"]
    assert not {r.source for r in train if r.task == "hotpotqa"} & {r.source for r in held}
    assert not {r.question for r in train} & {r.question for r in held}
    corpus = data.corpus("hotpotqa")
    for part, made in sets.items():
        allowed = {corpus.paragraphs[p].title for p in split(corpus, part).paragraphs}
        for row in made:
            named = set(re.findall(r"Topic \d+", tiny.decode(made.context(row.id))))
            assert named <= allowed, row.id
            assert bool(named) == (row.task not in ("niah_single_1", "niah_multikey_2"))


def test_training_draws_other_needles_than_an_evaluation_of_any_small_seed(tiny: Tokenizer, sets: dict[str, Questions]) -> None:
    trained = {a for row in sets["train"] if row.task == "niah_multikey_2" for a in row.answers}
    for seed in (0, 1, 42):
        (sample,) = base.build(TaskSpec("niah_multikey_2", 900, seed), tiny).samples(1)
        assert not trained & set(sample.answers)


def test_a_context_with_text_of_the_other_part_is_refused(tiny: Tokenizer, question_data: Path) -> None:
    corpus = data.corpus("hotpotqa")
    own, other = (corpus.paragraphs[split(corpus, part).paragraphs[3]].text for part in ("train", "eval"))
    question_sets.check_apart("q", own, corpus, "train")
    for text, part in ((f"{own} {other}", "train"), (f"Document 1:\nT\n{own}", "eval")):
        with pytest.raises(DataError, match=f"shares a paragraph with the .* part .*; a {part} set"):
            question_sets.check_apart("q", text, corpus, part)


def test_contamination_stops_the_building_and_leaves_nothing(
    tiny: Tokenizer, question_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that does not keep to its part is found by what it shows."""
    real = question_sets._task
    monkeypatch.setattr(
        question_sets,
        "_task",
        lambda portion, spec, tokenizer: real(portion, QuestionSet(spec.portions, "eval", spec.seed), tokenizer),
    )
    with pytest.raises(DataError, match="shares a paragraph with the eval part"):
        make(QuestionSet((Portion("hotpotqa", 2, 10),)), tiny, tmp_path / "set")
    assert not list(tmp_path.iterdir())


def test_nothing_is_cut_to_a_limit(tiny: Tokenizer, question_data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"more than the 300 of most_context.*nothing is cut"):
        make(QuestionSet((Portion("hotpotqa", 2, 10),), most_context=300), tiny, tmp_path / "set")
    with pytest.raises(DataError, match=r"more than the 5 of most_question.*nothing is cut"):
        make(QuestionSet((Portion("hotpotqa", 2, 10),), most_question=5), tiny, tmp_path / "set")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"portions": []}, "the set would be empty"),
        ({"portions": [{"task": "hotpot", "questions": 1, "length": 5}]}, "did you mean 'hotpotqa'"),
        ({"portions": [{"task": "hotpotqa", "questions": 0, "length": 5}]}, "questions: 0 is too little"),
        (
            {"portions": [{"task": "hotpotqa", "questions": 1, "length": 5, "params": {"split": "all"}}]},
            "the split is the set's",
        ),
        ({"portions": [{"task": "hotpotqa", "questions": 99, "length": 5}]}, "are asked for and there are"),
        ({"portions": [{"task": "hotpotqa", "questions": 20, "length": n} for n in (5, 6)]}, "are asked for and there are"),
        ({"portions": [{"task": "hotpotqa", "questions": 1, "length": 500}]}, "500 documents are asked for"),
        ({"portions": [{"task": "niah_multivalue", "questions": 1, "length": 900, "params": {"haystack": "own"}}]}, "essays"),
        ({"portions": [{"task": "two_hop", "questions": 1, "length": 20}]}, "no room for the facts"),
        ({"portions": [{"task": "two_hop", "questions": 1, "length": 900, "params": {"hops": 3}}]}, "this task has none"),
    ],
)
def test_sets_that_cannot_be_are_named(
    tiny: Tokenizer, question_data: Path, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(build(QuestionSet, fields), tiny, tmp_path / "set")
    assert not list(tmp_path.iterdir())


@pytest.mark.data
def test_the_papers_documents_from_the_real_set(tmp_path: Path) -> None:
    """200 documents are about 28K tokens, 1,000 about 140K (Supplement Table 1), and stay out of the evaluation part."""
    if not (data.home() / "data" / "hotpotqa").exists() or not (models.home() / "models" / "smollm2-135m").exists():
        pytest.skip("needs: pimem data fetch hotpotqa, pimem models fetch smollm2-135m")
    tokenizer = Tokenizer.load(models.resolve(ModelSpec()))
    spec = QuestionSet((Portion("hotpotqa", 3, 200), Portion("hotpotqa", 1, 1000)), most_context=170_000)
    for row in make(spec, tokenizer, tmp_path / "set"):
        low, high = (120_000, 170_000) if "-1000-" in row.id else (24_000, 34_000)
        assert low < row.tokens < high
        assert len(row.evidence) >= 2


@pytest.mark.data
def test_512_real_questions_would_be_small_enough_to_send(tmp_path: Path) -> None:
    """Under 10 MB: a sixteenth of them is built."""
    if not (data.home() / "data" / "hotpotqa").exists() or not (models.home() / "models" / "smollm2-135m").exists():
        pytest.skip("needs: pimem data fetch hotpotqa, pimem models fetch smollm2-135m")
    tokenizer = Tokenizer.load(models.resolve(ModelSpec()))
    portions = tuple(Portion("hotpotqa", 8, length) for length in (14, 20, 26, 30))
    made = make(QuestionSet(portions), tokenizer, tmp_path / "set")
    assert len(made) == 32
    assert 16 * sum(f.stat().st_size for f in (tmp_path / "set").iterdir()) < 10_000_000
