"""SQuAD for the cold start: sentences, what an answer rests on, and scenes whose facts lie where they are said to lie."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem import data as fetched
from pimem.corpora import Corpus, Paragraph, Question
from pimem.errors import DataError
from pimem.tasks import articles
from pimem.tokens import Tokenizer
from pimem.training import squad
from pimem.training.documents import Scene, stands
from pimem.training.scenes import Source


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("It stands. It fell! Did it? Yes.", ["It stands.", " It fell!", " Did it?", " Yes."]),
        ('He said "Never." Then he left (by sea.) They wept.', ['He said "Never."', " Then he left (by sea.)", " They wept."]),
        ("It cost 3.5 million. 12 men paid.", ["It cost 3.5 million.", " 12 men paid."]),
        ("Dr. A. B. Smith met Mrs. Y. It rained.", ["Dr. A. B. Smith met Mrs. Y. It rained."]),
        ("Dr. Smith of the U.S. Army fell. It rained.", ["Dr. Smith of the U.S. Army fell.", " It rained."]),
        ("Vol. 1, No. 5, c. 1500, i.e. Early.", ["Vol. 1, No. 5, c. 1500, i.e. Early."]),
        ("It lies at sea level. and goes on. Élan is all.", ["It lies at sea level. and goes on.", " Élan is all."]),
        ("One line", ["One line"]),
        ("", []),
    ],
)  # fmt: skip
def test_where_sentences_end(text: str, parts: list[str]) -> None:
    assert squad.sentences(text) == parts


@given(st.text(st.sampled_from("aB1.!? \n\"')(é"), max_size=60))
def test_sentences_joined_are_the_text(text: str) -> None:
    parts = squad.sentences(text)
    assert "".join(parts) == text
    assert all(part.strip() for part in parts) or not text.strip()


@pytest.mark.parametrize(
    ("text", "wanted", "at"),
    [("often ten men", "ten", 6), ("often", "ten", -1), ("it is $5.", "$5", 6), ("1,500 and 500", "500", 2), ("", "a", -1)],
)
def test_an_answer_stands_as_words_of_its_own(text: str, wanted: str, at: int) -> None:
    assert stands(text, wanted) == at


@given(st.text("ab _1-é", max_size=12), st.text("ab1-é", min_size=1, max_size=3))
def test_standing_is_what_word_edges_say(text: str, wanted: str) -> None:
    edges = (r"(?<!\w)" if re.match(r"\w", wanted[0]) else "", r"(?!\w)" if re.match(r"\w", wanted[-1]) else "")
    found = re.search(edges[0] + re.escape(wanted) + edges[1], text)
    assert stands(text, wanted) == (found.start() if found else -1)


PARTS = ["In 1066 William came.", " He came from France.", " William died in 1087."]


@pytest.mark.parametrize(
    ("answers", "place"),
    [
        (("France",), 1),
        (("William",), None),
        (("William", "William came"), 0),
        (("came. He",), None),
        (("1066", "1087"), None),
        (("1066", "in 1087", "1087"), 2),
        ((), None),
    ],
)
def test_support_is_the_sentence_that_answers_stand_in_alone(answers: tuple[str, ...], place: int | None) -> None:
    assert squad.support(PARTS, answers) == place


def test_the_corpus_keeps_its_numbers() -> None:
    text = "".join(PARTS)
    asked = Question("a", "When?", ("the year 1066", "1066"), (0,), ((0, 0),))
    never = Question("b", "Why?", (), (0,), ((0, 0),))
    made = squad.sentenced(Corpus((Paragraph("A_b", (text,)),), (asked, never), "x"))
    assert made.paragraphs == (Paragraph("A b", tuple(PARTS)),)
    assert made.questions[0] == Question("a", "When?", ("1066", "the year 1066"), (0,), ((0, 0),))
    assert made.questions[1].support == ()
    assert made.hash != "x"


@pytest.fixture(scope="module")
def sources(cold_home: None, tiny: Tokenizer) -> dict[str, Source]:
    sets = fetched.corpus("hotpotqa"), fetched.corpus("squad")
    return {part: Source(tiny, *sets, part, 3, sentences=50) for part in ("train", "eval")}  # type: ignore[arg-type]


def shown(tiny: Tokenizer, scene: Scene, span: tuple[int, int]) -> str:
    return tiny.decode(scene.context[slice(*span)])


def test_the_fact_lies_where_the_scene_says(sources: dict[str, Source], tiny: Tokenizer) -> None:
    made = sources["train"].articles
    for question in made.questions:
        scene = made.scene(question, 12, gold=True)
        assert scene is not None
        (fact,) = scene.gold
        sentence = made.corpus.paragraphs[question.paragraphs[0]].sentences[1].strip()
        assert shown(tiny, scene, (fact.start, fact.end)).strip() == sentence == fact.text
        assert fact.answer is not None
        assert shown(tiny, scene, fact.answer).strip() == question.answers[0]
        assert fact.clear
        assert shown(tiny, scene, (fact.title_start, fact.end)).startswith(f"{fact.title}\n")
        assert (scene.kind, scene.elsewhere, scene.open) == ("squad", [], False)


def test_what_is_near_is_of_the_article_and_does_not_answer(sources: dict[str, Source], tiny: Tokenizer) -> None:
    made = sources["train"].articles
    for question in made.questions[:12]:
        scene = made.scene(question, 12, gold=False)
        assert scene is not None
        assert (scene.gold, len(scene.elsewhere), len(scene.near)) == ([], 1, 3)
        title = made.corpus.paragraphs[question.paragraphs[0]].title
        for span in scene.near:
            text = shown(tiny, scene, span)
            assert f"\n{title}\n" in text
            assert stands(text, question.answers[0].removeprefix("in ")) < 0
        bare = made.scene(question, 12, gold=False, near=False)
        assert bare is not None
        assert bare.near == []
        assert f"\n{title}\n" not in tiny.decode(bare.context)


def test_an_unanswerable_question_has_its_own_paragraph_near_and_no_other_of_its_article(
    sources: dict[str, Source], tiny: Tokenizer
) -> None:
    made = sources["eval"].articles
    assert len(made.unanswerable) == 8
    for question in made.unanswerable:
        scene = made.scene(question, 12, gold=True)
        assert scene is not None
        own = made.corpus.paragraphs[question.paragraphs[0]]
        assert (scene.kind, scene.gold, scene.elsewhere, scene.answers, scene.open) == ("unanswerable", [], [], (), True)
        (span,) = scene.near
        assert own.text in shown(tiny, scene, span)
        assert tiny.decode(scene.context).count(f"\n{own.title}\n") == 1


def test_parts_share_no_article(sources: dict[str, Source]) -> None:
    titles = {
        part: {source.articles.corpus.paragraphs[p].title for p in source.articles.paragraphs}
        for part, source in sources.items()
    }
    assert not titles["train"] & titles["eval"]
    corpus = fetched.corpus("squad")
    for part, source in sources.items():
        assert set(source.articles.paragraphs) == set(articles.split(corpus, part).paragraphs)


def test_the_two_sets_stand_among_each_other_when_training_alone(sources: dict[str, Source], tiny: Tokenizer) -> None:
    def mixed(source: Source) -> int:
        made = source.articles
        texts = (tiny.decode(made.scene(q, 12, gold=True).context) for q in [*made.questions, *made.questions])  # type: ignore[union-attr]
        return sum("\nTopic " in text for text in texts)

    train = sources["train"]
    assert 0 < mixed(train) < len(train.articles.questions)
    assert mixed(sources["eval"]) == 0
    stretches = [train.hotpotqa(train.questions[0], 12, (), own=False) for _ in range(60)]
    assert 0 < sum("\nMills of valley" in tiny.decode(s.context) for s in stretches if s) < 30


def test_a_paragraph_that_a_line_break_cuts_is_left_out(cold_home: None, tiny: Tokenizer) -> None:
    corpus = fetched.corpus("squad")
    first = articles.split(corpus, "train").paragraphs[0]
    cut = [Paragraph(p.title, (p.text.replace(" by", "\nby"),)) if i == first else p for i, p in enumerate(corpus.paragraphs)]
    made = squad.Articles(tiny, Corpus(tuple(cut), corpus.questions, "cut"), "train", np.random.default_rng(0))
    assert first not in made.paragraphs
    assert all(first not in q.paragraphs for q in [*made.questions, *made.unanswerable])


def test_a_set_without_unanswerable_questions_is_refused(cold_home: None, tiny: Tokenizer) -> None:
    corpus = fetched.corpus("squad")
    some = Corpus(corpus.paragraphs, tuple(q for q in corpus.questions if q.answers), "some")
    with pytest.raises(DataError, match="squad: part train needs questions with and without an answer"):
        squad.Articles(tiny, some, "train", np.random.default_rng(0))
