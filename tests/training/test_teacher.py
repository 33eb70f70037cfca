"""The teacher's responses, and where a cut sentence still counts."""

from __future__ import annotations

import numpy as np
import pytest

from pimem.training import judge, planted, teacher
from pimem.training.teacher import Placed


class Words:
    """A tokenizer whose tokens are words."""

    def decode(self, ids):
        return " ".join(f"w{i}" for i in ids)


CONTEXT = np.arange(100, dtype=np.uint32)
FACT = Placed("w20 w21 w22 w23 w24 w25 w26 w27 w28 w29", 20, 30, answer=(28, 30), title="T", title_start=18)


@pytest.mark.parametrize(
    ("window", "line"),
    [
        ((0, 100), "T: " + FACT.text),
        ((19, 60), FACT.text),
        ((28, 60), "w28 w29"),
        ((29, 60), None),
        ((0, 29), None),
        ((30, 60), None),
        ((0, 20), None),
    ],
)
def test_a_cut_sentence_counts_where_its_answer_is_whole(window, line):
    assert FACT.seen(CONTEXT, *window, Words()) == line


@pytest.mark.parametrize(
    ("window", "line"), [((24, 60), "w24 w25 w26 w27 w28 w29"), ((25, 60), None), ((0, 26), "w20 w21 w22 w23 w24 w25")]
)
def test_without_an_answer_most_of_it_must_be_visible(window, line):
    assert Placed(FACT.text, 20, 30).seen(CONTEXT, *window, Words()) == line


def test_responses():
    assert teacher.read([]) == "<check>no</check>"
    assert teacher.read(["a", "b"]) == "<check>yes</check>\na\nb"
    assert teacher.merge(["a"], [["b", "x"], ["b"], ["a"]], {"a", "b"}, "(empty)") == "a\nb"
    assert teacher.merge([], [["x"]], {"a"}, "(empty)") == "(empty)"
    assert teacher.box(["1", "2"]) == "\\boxed{1, 2}"
    assert teacher.box([]) == "\\boxed{unknown}"


def test_responses_of_gated_and_recalling_steps():
    assert teacher.gated(True, "a\nb", end=False) == "<check>yes</check>\n<update>a\nb</update>\n<next>continue</next>"
    assert teacher.gated(False, "a", end=True) == "<check>no</check>\n<update>a</update>\n<next>end</next>"
    assert teacher.recalling("a", None) == "<update>a</update>"
    assert teacher.recalling("a", "q") == "<update>a</update>\n<recall>q</recall>"


def test_only_what_the_prompt_names_is_asked_for():
    film, actor = Placed("x", 0, 1, title="Extraction (film)"), Placed("y", 0, 1, title="Dan Bilzerian")
    assert teacher.missing([actor, film], "Who starred in Extraction?", "Someone: notes") == "Extraction"
    assert teacher.missing([actor], "Who starred in Extraction?", "Extraction: with Dan Bilzerian.") == "Dan Bilzerian"
    assert teacher.missing([actor], "Who starred in Extraction?", "Extraction: with others.") is None
    assert teacher.missing([film], "Who starred in Extraction?", "") is None
    assert teacher.missing([Placed("z", 0, 1, subject="ada")], "Whose is Ada?", "n") == "ada"


def test_scores_of_gated_and_recalling_steps():
    target = teacher.gated(True, "a\nb", end=True)
    assert judge.gated_scores(target, target, ["a", "b"]) == {
        "format": 1, "check": 1, "exit": 1, "kept": 1, "exact": 1, "extra": 0,
    }  # fmt: skip
    said = judge.gated_scores(teacher.gated(False, "a", end=True), target, ["a", "b"])
    assert said == {"format": 1, "check": 0, "exit": 1, "kept": 0.5, "exact": 0, "extra": 0}
    assert judge.gated_scores("a", target, ["a", "b"])["check"] == 0
    assert judge.gated_scores("a", teacher.gated(False, "a", end=True), ["a"]) == {"format": 0, "check": 0, "exit": 0}
    target = teacher.recalling("a", "q")
    assert judge.recall_scores(target, target, ["a"]) == {"format": 1, "query": 1, "kept": 1, "exact": 1, "extra": 0}
    assert judge.recall_scores(teacher.recalling("a", None), target, ["a"])["query"] == 0
    assert judge.recall_scores("a", target, ["a"]) == {"format": 0, "query": 0, "kept": 0, "exact": 0, "extra": 1}


def test_scores_of_a_read():
    assert judge.read_scores("<check>yes</check>\na\nb", ["a", "b"]) == {"check": 1, "format": 1, "copied": 1, "exact": 1}
    assert judge.read_scores("<check>yes</check>\na", ["a", "b"]) == {"check": 1, "format": 1, "copied": 0.5, "exact": 0}
    assert judge.read_scores("<check>no</check>", ["a"])["check"] == 0
    assert judge.read_scores("well <check>no</check>", []) == {"check": 1, "format": 0}


def test_scores_of_answers_and_notes():
    assert judge.answer_scores("\\boxed{2, 1}", "\\boxed{1, 2}", several=True) == {
        "em": 0,
        "sub_em": 0,
        "boxed": 1,
        "recall": 1,
    }
    assert judge.answer_scores("\\boxed{1500}", "\\boxed{in 1500}", False, ["in 1500", "1500"])["em"] == 1
    assert judge.answer_scores("\\boxed{1500}", "\\boxed{unknown}", False, ["in 1500", "1500"])["em"] == 0
    assert judge.notes_scores("a\nx", ["a", "b"]) == {"kept": 0.5, "exact": 0, "extra": 1}
    assert judge.notes_scores("(empty)", []) == {"kept": 1, "exact": 1, "extra": 0}


def test_planted_answers_stand_in_their_sentences():
    rng = np.random.default_rng(0)
    for number in range(len(planted.PATTERNS)):
        fact = planted.draw(rng, "train", number)
        assert fact.answer in fact.sentence
        assert "{" not in fact.sentence + fact.question


def test_made_up_names_of_training_and_evaluation_differ():
    rng = np.random.default_rng(0)
    names = {part: {planted._fill("town", rng, part) for _ in range(400)} for part in ("train", "eval")}
    assert not names["train"] & names["eval"]
