"""SQuAD's questions for the cold start: paragraphs cut into sentences, what each answer rests on, and what only looks like it.

A question asks for one fact of one paragraph. The other paragraphs of its article are near it. Half of the questions cannot be
answered from their paragraph at all, though they ask about what it says.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pimem.corpora import Corpus, Paragraph, Question
from pimem.errors import DataError
from pimem.tasks import articles
from pimem.tokens import Tokenizer
from pimem.training.documents import Documents, Part, Scene, stands

NEAR = 8
"""Most paragraphs of the same article that stand in a scene, as many as a HotpotQA question brings along."""
_FORMAT = 1
_BREAK = re.compile(r"([.!?])[\"'”’)\]]*(?=\s+[\"'“‘(\[$€£]*[A-Z0-9À-ÖØ-Þ])")
_LAST = re.compile(r"[\w.&-]+$")
_ABBREVIATIONS = re.compile(
    r"(?i)mr|mrs|ms|dr|prof|rev|hon|gen|col|maj|capt|lt|sgt|gov|sen|rep|pres|sts?|mt|ft|jr|sr|bros|vs?|cf|nos?|vols?|pp|figs?"
    r"|eds?|arts?|ca?|approx|est|inc|ltd|co|corp|dept|univ|ave|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|etc|al|sq"
    r"|(\w\.)*[^\W\d_]"
)
"""Words that a full stop shortens, and initials; a sentence seldom ends there."""


def sentences(text: str) -> list[str]:
    """`text` cut behind full stops, question and exclamation marks that a capital or a number follows.

    Joined they are `text`: the white space between two goes with the second. Where a full stop may belong to an abbreviation or
    to initials it ends nothing: a line too long is whole, a line too short is not.
    """
    cuts = [0, *(match.end() for match in _BREAK.finditer(text) if not _shortens(text, match)), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(cuts) if a < b]


def _shortens(text: str, match: re.Match[str]) -> bool:
    word = _LAST.search(text, max(0, match.start() - 40), match.start())
    return match[1] == "." and word is not None and _ABBREVIATIONS.fullmatch(word[0]) is not None


def support(parts: Sequence[str], answers: Sequence[str]) -> int | None:
    """Number of the sentence of `parts` that the `answers` rest on: the one in which most of them stand, and stand alone.

    The set says at which character each answer stands, but a corpus keeps the texts only, so that an answer that stands in
    several sentences tells nothing. None where none is left, and where as many speak for one sentence as for another.
    """
    places = [[i for i, part in enumerate(parts) if stands(part, answer) >= 0] for answer in answers]
    votes = Counter(held[0] for held in places if len(held) == 1).most_common(2)
    return votes[0][0] if votes and (len(votes) == 1 or votes[0][1] > votes[1][1]) else None


@functools.lru_cache(maxsize=2)
def sentenced(corpus: Corpus) -> Corpus:
    """`corpus` with its paragraphs cut into sentences and the support of each question named; all numbers stay.

    The answer that stands in the support comes first. Titles are as people write them, with blanks.
    """
    paragraphs = tuple(Paragraph(p.title.replace("_", " "), tuple(sentences(p.text))) for p in corpus.paragraphs)
    questions = []
    for question in corpus.questions:
        found = [(p, s) for p in question.paragraphs if (s := support(paragraphs[p].sentences, question.answers)) is not None]
        held = [paragraphs[p].sentences[s] for p, s in found]
        first = [answer for answer in question.answers if any(stands(text, answer) >= 0 for text in held)]
        answers = tuple(dict.fromkeys([*first, *question.answers]))
        questions.append(replace(question, answers=answers, support=tuple(found)))
    digest = hashlib.sha256(f"sentences {_FORMAT} {corpus.hash}".encode()).hexdigest()
    return Corpus(paragraphs, tuple(questions), digest)


class Articles(Documents):
    """Draws scenes from one part of SQuAD."""

    def __init__(self, tokenizer: Tokenizer, corpus: Corpus, part: Part, rng: np.random.Generator):
        """Raises `DataError` where the part has no answerable or no unanswerable question."""
        pool = articles.split(corpus, part)
        # What a line break cuts, most often a formula, is no line of notes.
        whole = tuple(p for p in pool.paragraphs if "\n" not in corpus.paragraphs[p].text.strip())
        super().__init__(tokenizer, sentenced(corpus), replace(pool, paragraphs=whole), rng)
        asked = [self.corpus.questions[i] for i in pool.questions]
        self.unanswerable = [q for q in asked if not q.answers and self._usable.issuperset(q.paragraphs)]
        if not (self.questions and self.unanswerable):
            raise DataError(f"squad: part {part} needs questions with and without an answer; fetch the whole of SQuAD 2.0")
        self._articles: dict[str, list[int]] = {}
        for number in self.paragraphs:
            self._articles.setdefault(self.corpus.paragraphs[number].title, []).append(number)

    def _clear(self, question: str, title: str, text: str) -> bool:
        # One fact answers, and the question was asked of it.
        return True

    def scene(self, question: Question, documents: int, gold: bool, near: bool = True) -> Scene | None:
        """A stretch of numbered documents: the question's paragraph if `gold`, some of its article if `near`, and others.

        To a question without an answer only its own paragraph is near: another one might answer it. Paragraphs where an answer
        stands are never near, as they may state the fact too. None where the paragraph does not tokenise alone as it does in
        place.
        """
        own, rng, gold = question.paragraphs[0], self.rng, gold and bool(question.answers)
        article = self._articles[self.corpus.paragraphs[own].title]
        if not question.answers:
            close = [own]
        else:
            wanted = [answer.lower() for answer in question.answers]
            free = [p for p in article if p != own and all(stands(self._lower(p), answer) < 0 for answer in wanted)]
            close = [free[i] for i in rng.permutation(len(free))[:NEAR]] if near else []
        chosen = ([own] if gold else []) + close
        others = self.fill(documents - len(chosen), set(article))
        made = self.assemble(question, [*((self, p) for p in chosen), *others], {own} if gold else set(), set(close))
        if made is None:
            return None
        made.kind = "squad" if question.answers else "unanswerable"
        made.open = not question.answers
        return made

    @functools.cache  # noqa: B019
    def _lower(self, paragraph: int) -> str:
        return self.corpus.paragraphs[paragraph].text.lower()
