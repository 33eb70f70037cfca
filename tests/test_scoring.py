from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.errors import ConfigError, DataError
from pimem.records import Trace
from pimem.scoring import (
    choice,
    coverage,
    exact_match,
    extract,
    f1,
    holds_any,
    multi_recall,
    normalise,
    official_choice,
    released_choice,
    score,
    sub_em,
    sub_em_strict,
)

texts = st.text() | st.text(alphabet="\\boxed{} the answer is*.\n", max_size=200)


def trace(response: str = "", memory: str = "", method: str = "pi_mem", status: str = "answered") -> Trace:
    return Trace(sample="s1", method=method, question="q", status=status, response=response, memory=memory)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{Paris}.", "Paris"),
        (r"\boxed{Lyon} no, \boxed{ Paris }", "Paris"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{outer \boxed{inner}}", "inner"),
        (r"\boxed{Paris} and then \boxed{Par", "Paris"),
        (r"\boxed{a {b}", None),
        (r"} stray \boxed{x} }", "x"),
        (r"{ open \boxed{x}", "x"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed {x}", "x"),
        (r"\\boxed{x}", "x"),
        (r"\boxed{}", None),
        (r"\boxed{  }", None),
        (r"\boxed Paris", None),
        ("", None),
    ],
)
def test_boxed(text: str, answer: str | None) -> None:
    assert extract(text, "boxed") == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I think the answer is Rome. No: The answer is **Paris**.", "Paris"),
        ("the answer is: 42", "42"),
        ("The\nanswer is U.S.A.", "U.S.A"),
        ("It is Paris.", None),
        ("the answer is", None),
        ("the answer isn't known", None),
        ("the answer is Rome. The answer isn't Paris", "Rome. The answer isn't Paris"),
        ("the answer is **.", None),
    ],
)
def test_phrase(text: str, answer: str | None) -> None:
    assert extract(text, "phrase") == answer


def test_plain_is_the_first_line_that_is_not_blank() -> None:
    assert extract("\n\n  Paris \nbecause ...", "plain") == "Paris"
    assert extract(" \n ", "plain") is None


def test_normalisation() -> None:
    assert normalise("  The  U.S. — an Answer!\n") == "us — answer"
    assert normalise("theatre") == "theatre"


def test_sub_em_counts_both_ways_and_strict_one_way() -> None:
    assert (sub_em("it was Paris, France", ["Paris"]), sub_em_strict("it was Paris, France", ["Paris"])) == (1, 1)
    assert (sub_em("Lincoln", ["Abraham Lincoln"]), sub_em_strict("Lincoln", ["Abraham Lincoln"])) == (1, 0)
    assert sub_em("Rome", ["Paris", "rome"]) == 1
    assert sub_em("Berlin", ["Paris", "Rome"]) == 0


@pytest.mark.parametrize("empty", [None, "", "the", ".", " a !"])
def test_a_prediction_of_nothing_scores_nothing(empty: str | None) -> None:
    assert [m(empty, ["Paris"]) for m in (sub_em, sub_em_strict, exact_match, f1, multi_recall)] == [0] * 5


def test_a_gold_of_articles_must_be_met_exactly() -> None:
    assert [m("the  The", ["The The"]) for m in (sub_em, sub_em_strict, exact_match, f1)] == [1] * 4
    assert [m("The Who", ["The The"]) for m in (sub_em, sub_em_strict, exact_match, f1)] == [0] * 4


def test_f1() -> None:
    assert f1("the big red dog", ["a red dog"]) == pytest.approx(2 * 2 / 5)
    assert f1("dog dog", ["dog"]) == pytest.approx(2 / 3)
    assert f1("yes it is", ["yes"]) == 0
    assert f1("Yes.", ["yes"]) == 1
    assert f1("cat", ["dog", "cat"]) == 1


def test_recall_and_coverage_are_shares() -> None:
    assert multi_recall("11, 22 and AB", ["11", "22", "33", "ab"]) == 0.75
    assert coverage("11 only", ["11", "22", "33", "44"]) == 0.25


def test_holds_any_wants_whole_words() -> None:
    assert holds_any("They know nothing", ["no"]) == 0
    assert holds_any("The answer: the Eiffel Tower!", ["Louvre", "Eiffel tower"]) == 1


def test_score_of_alternatives() -> None:
    scores = score(trace(r"\boxed{Paris, France}", memory="Paris is it"), ("Paris", "Lutetia"), "boxed", "sub_em")
    assert scores == {
        "sub_em": 1,
        "sub_em_strict": 1,
        "em": 0,
        "f1": pytest.approx(2 / 3),
        "contains": 1,
        "extracted": 1,
        "coverage": 1,
    }


def test_score_of_lists_takes_a_bare_response_whole() -> None:
    scores = score(trace("11\n22\n", memory="11 22 33"), ("11", "22", "33", "44"), "plain", "multi_recall")
    assert scores == {"multi_recall": 0.5, "extracted": 1, "coverage": 0.75}


@pytest.mark.parametrize("method", ["vanilla", "rag"])
def test_no_coverage_without_a_memory(method: str) -> None:
    assert "coverage" not in score(trace("x", method=method), ("x",), "plain", "sub_em")


def test_failed_traces_score_nothing_whatever_they_hold() -> None:
    scores = score(trace(r"\boxed{Paris}", memory="Paris", status="failed"), ("Paris",), "boxed", "sub_em")
    assert set(scores) == {"sub_em", "sub_em_strict", "em", "f1", "contains", "extracted", "coverage"}
    assert not any(scores.values())


@pytest.mark.parametrize("answers", [(), "Paris", ("",), ("Paris", " ")])
def test_answers_must_be_there(answers: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="s1"):
        score(trace("x"), answers, "plain", "sub_em")


def test_unknown_names_are_named() -> None:
    with pytest.raises(ConfigError, match="boxed"):
        extract("x", "box")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'sub_em'"):
        score(trace("x"), ("x",), "plain", "subem")


@given(response=texts, memory=texts, golds=st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=4))
def test_any_text_gets_scores_between_nought_and_one(response: str, memory: str, golds: list[str]) -> None:
    for form in ("boxed", "phrase", "plain"):
        for metric in ("sub_em", "multi_recall"):
            scores = score(trace(response, memory), golds, form, metric)
            assert all(0 <= value <= 1 for value in scores.values())
            if metric == "sub_em":
                assert scores["sub_em"] >= scores["sub_em_strict"] >= scores["em"]


@given(answer=st.text().filter(lambda t: not set(t) & set("{}\\") and t.strip()), around=texts)
def test_a_last_closed_box_is_always_found(answer: str, around: str) -> None:
    assert extract(around.rstrip("\\") + f" \\boxed{{{answer}}}", "boxed") == answer.strip()


@given(gold=st.text().filter(str.strip))
def test_a_gold_answers_itself(gold: str) -> None:
    assert exact_match(gold, [gold]) == sub_em(gold, [gold]) == sub_em_strict(gold, [gold]) == 1


@pytest.mark.parametrize(
    "text", ["\\boxed{" * 50_000, "{" * 300_000, "\\boxed" + " " * 300_000, "the answer is " * 30_000, "the" + " " * 300_000]
)
def test_long_hostile_texts_take_linear_time(text: str) -> None:
    began = time.perf_counter()
    for form in ("boxed", "phrase", "plain"):
        score(trace(text, text), ("Paris",), form, "sub_em")
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The correct answer is (B).", "B"),
        ("**The correct answer is (C)**, as the text says.", "C"),
        ("The correct answer is *D*", "D"),
        ("The correct answer is A. Later: The correct answer is (B)", "B"),
        ("The correct answer is (A) and not: The correct answer is (B)", "A"),
        ("The correct answer is: (B)", None),
        ("the correct answer is (B)", None),
        ("The correct answer is (E)", None),
        ("The correct answer is (letter)", None),
        ("The correct answer is (b)", None),
        ("(B)", None),
        ("", None),
    ],
)
def test_the_official_extraction_of_a_choice(text: str, letter: str | None) -> None:
    assert official_choice(text) == choice(text, "choice") == letter


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("B", "B"),
        ("(b)", "B"),
        ("B.", "B"),
        ("**C**", "C"),
        ("D) In Brest", "D"),
        ("(A) In Brest", "A"),
        ("B: Brest", "B"),
        ("Brest", None),
        ("A lighthouse", None),
        ("A or B", None),
        ("AB", None),
        ("E", None),
    ],
)
def test_a_choice_in_another_form_is_a_letter_that_stands_for_itself(answer: str, letter: str | None) -> None:
    assert choice(f"I think: \\boxed{{{answer}}}", "boxed") == letter
    assert choice(f"{answer}\nbecause it says so", "plain") == letter
    assert choice(f"So the answer is {answer}", "phrase") == letter


@pytest.mark.parametrize(
    ("text", "form", "letter"),
    [
        ("\\boxed{A lighthouse}", "boxed", "A"),
        ("\\boxed{[b]}", "boxed", "B"),
        ("It must be C, not D", "choice", "C"),
        ("The correct answer is (D), \\boxed{A}", "boxed", "D"),
        ("none of them", "choice", None),
    ],
)
def test_the_released_reading_takes_any_letter_that_stands_alone(text: str, form: Any, letter: str | None) -> None:
    assert released_choice(text, form) == letter


@given(texts, st.sampled_from(["boxed", "phrase", "plain", "choice"]))
def test_a_choice_is_a_letter_or_nothing_and_what_counts_officially_counts_as_released(text: str, form: Any) -> None:
    assert choice(text, form) in ("A", "B", "C", "D", None)
    assert released_choice(text, form) in ("A", "B", "C", "D", None)
    assert official_choice(text) is None or released_choice(text, form) == official_choice(text)


def test_accuracy_counts_malformed_answers_as_wrong_and_has_no_coverage() -> None:
    right, vague, none = "The correct answer is (B)", "Surely B", "No idea"
    wanted = [(1.0, 1.0, 1.0), (0.0, 1.0, 0.0), (0.0, 0.0, 0.0)]
    for response, (accuracy, released, extracted) in zip((right, vague, none), wanted, strict=True):
        scores = score(trace(response, memory="B"), ["B"], "choice", "accuracy")
        assert scores == {"accuracy": accuracy, "accuracy_released": released, "extracted": extracted}
    assert set(score(trace(right, status="failed"), ["B"], "choice", "accuracy").values()) == {0.0}
