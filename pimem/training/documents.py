"""Numbered documents of one part of a question set, as arrays of token ids, with the places of a question's facts in them."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from pimem.corpora import Corpus, Question
from pimem.errors import DataError
from pimem.tasks import blocks, splits
from pimem.tokens import Tokenizer
from pimem.training.teacher import Placed

Part = Literal["train", "eval"]
CLEAR = 0.35
"""Share of a question's words, weighted by rarity, that makes a fact one for it by itself. On the training questions four of
five gold paragraphs have it or are named, and one of three distractors."""
MIXED = 0.15
"""Share of stretches whose other documents come from both question sets, and of lines of noise from the other one, where there
is a second set."""
_words = re.compile(r"\w+").findall
_LETTER = re.compile(r"\w").match


@dataclass
class Scene:
    """A question, a context, and what of it counts."""

    kind: str
    question: str
    answers: tuple[str, ...]
    context: np.ndarray
    """uint32, shape (tokens,)."""
    gold: list[Placed] = field(default_factory=list)
    """Facts of the context, in its order."""
    elsewhere: list[Placed] = field(default_factory=list)
    """Gold facts that the context does not hold."""
    near: list[tuple[int, int]] = field(default_factory=list)
    """Token ranges of text that looks relevant and is not."""
    source: str = ""
    """What resampling treats as one unit."""
    open: bool = False
    """Nobody can tell when every fact has been found: the question asks for all values there are, or has no answer here."""


class Documents:
    """Draws stretches of documents from one part of a question set."""

    beside: Documents | None = None
    """The other set, whose paragraphs now and then stand among this one's."""

    def __init__(self, tokenizer: Tokenizer, corpus: Corpus, pool: splits.Pool, rng: np.random.Generator):
        """Raises `DataError` where the paragraphs cannot be tokenised."""
        self.tokenizer, self.corpus, self.rng = tokenizer, corpus, rng
        made = blocks.load(corpus, tokenizer, make=True)
        if made is None:
            raise DataError("the paragraphs of the question set could not be tokenised")
        self._ids, self._starts = made._ids, made._starts
        self.paragraphs = [p for p in pool.paragraphs if self._starts[p + 1] > self._starts[p]]
        self._usable = set(self.paragraphs)
        self.questions = [q for i in pool.questions if self._answerable(q := corpus.questions[i])]

    def _answerable(self, question: Question) -> bool:
        return bool(question.support) and all(
            p in self._usable
            and 0 <= s < len(self.corpus.paragraphs[p].sentences)
            and self.corpus.paragraphs[p].sentences[s].strip()
            for p, s in question.support
        )

    def shuffled(self, questions: Sequence[Question]) -> list[Question]:
        return [questions[i] for i in self.rng.permutation(len(questions))]

    def block(self, paragraph: int) -> np.ndarray:
        """Token ids of a paragraph, its heading and the gap after it."""
        return self._ids[self._starts[paragraph] : self._starts[paragraph + 1]]

    @functools.cache  # noqa: B019
    def _offsets(self, paragraph: int) -> tuple[str, np.ndarray]:
        """Text of a paragraph as its block has it, and its tokens' character ranges, shape (tokens, 2)."""
        what = self.corpus.paragraphs[paragraph]
        # What follows decides how the line breaks before it are cut.
        text = f"{what.title}\n{what.text}{blocks.BETWEEN}{blocks.head(1)}"
        made = self.tokenizer._inert.encode(text, add_special_tokens=False)
        block = self._ids[self._starts[paragraph] : self._starts[paragraph + 1]]
        if not np.array_equal(np.asarray(made.ids[: len(block)], dtype=np.uint32), block):
            return text, np.zeros((0, 2), dtype=int)
        return text, np.asarray(made.offsets[: len(block)])

    def placed(self, question: Question, paragraph: int, at: int) -> list[Placed]:
        """The question's facts in a paragraph whose block begins at token `at`; the heading's tokens are at its start."""
        what = self.corpus.paragraphs[paragraph]
        _, offsets = self._offsets(paragraph)
        out: list[Placed] = []
        for sentence in sorted({s for p, s in question.support if p == paragraph}):
            raw = what.sentences[sentence]
            begin = len(what.title) + 1 + len("".join(what.sentences[:sentence])) + len(raw) - len(raw.lstrip())
            text = raw.strip()
            first, last = tokens_of(offsets, begin, begin + len(text))
            answer = None
            for wanted in question.answers:
                if wanted.lower() not in ("yes", "no") and (place := stands(text, wanted)) >= 0:
                    a, b = tokens_of(offsets, begin + place, begin + place + len(wanted))
                    answer = (at + a, at + b)
                    break
            out.append(Placed(text, at + first, at + last, answer, what.title, at))
        clear = self._clear(question.question, what.title, " ".join(fact.text for fact in out))
        return [replace(fact, clear=clear) for fact in out]

    def _clear(self, question: str, title: str, text: str) -> bool:
        """Whether the question names the heading, or facts and heading hold enough of its rarer words."""
        name = re.sub(r"\s*\(.*?\)", "", title).lower()
        if name in question.lower():
            return True
        asked, held = set(_words(question.lower())), set(_words(f"{title} {text}".lower()))
        shared = sum(self._rarity(word) for word in asked & held)
        return shared >= CLEAR * sum(self._rarity(word) for word in asked)

    def _rarity(self, word: str) -> float:
        return float(np.log(len(self.corpus.paragraphs) / (1 + frequencies(self.corpus)[word])))

    def fill(self, n: int, without: Collection[int]) -> list[tuple[Documents, int]]:
        """About `n` drawn paragraphs, none of `without`; now and then half of them from the other set."""
        drawn = self.rng.integers(len(self.paragraphs), size=max(0, n))
        chosen: list[tuple[Documents, int]] = [(self, p) for i in drawn if (p := self.paragraphs[i]) not in without]
        if (other := self.beside) is None or self.rng.random() >= MIXED:
            return chosen
        mixed = self.rng.integers(2 * len(other.paragraphs), size=len(chosen))
        return [
            (other, other.paragraphs[i]) if i < len(other.paragraphs) else one for i, one in zip(mixed, chosen, strict=True)
        ]

    def assemble(
        self, question: Question, chosen: Sequence[tuple[Documents, int]], gold: Collection[int], near: Collection[int]
    ) -> Scene | None:
        """The documents `chosen` in a drawn order under running numbers; `gold` and `near` are paragraphs of this set.

        None where a gold paragraph does not tokenise alone as it does in place.
        """
        chosen = [chosen[i] for i in self.rng.permutation(len(chosen))]
        highest = int(10 ** self.rng.uniform(0.5, 4.4))
        number, at, parts = 1 + int(self.rng.integers(highest)), 0, []
        facts: list[Placed] = []
        close = []
        for source, paragraph in chosen:
            head, block = self._head(number), source.block(paragraph)
            if source is self and paragraph in gold:
                if not len(self._offsets(paragraph)[1]):
                    return None
                facts += self.placed(question, paragraph, at + len(head))
            elif source is self and paragraph in near:
                close.append((at, at + len(head) + len(block)))
            parts += [head, block]
            at += len(head) + len(block)
            number += 1
        missing = []
        for paragraph in splits.gold(question):
            if paragraph not in gold:
                if not len(self._offsets(paragraph)[1]):
                    return None
                missing += self.placed(question, paragraph, 0)
        context = np.concatenate(parts)
        return Scene("hotpotqa", question.question, question.answers, context, facts, missing, close, question.id)

    @functools.cache  # noqa: B019
    def _head(self, number: int) -> np.ndarray:
        return self.tokenizer.encode(blocks.head(number))


@functools.lru_cache(maxsize=2)
def frequencies(corpus: Corpus) -> Counter[str]:
    """In how many paragraphs of `corpus` each word stands, in lower case."""
    counts: Counter[str] = Counter()
    for paragraph in corpus.paragraphs:
        counts.update(set(_words(f"{paragraph.title} {paragraph.text}".lower())))
    return counts


def stands(text: str, wanted: str) -> int:
    """Character at which `wanted` first stands in `text` as words of its own, not as a part of others; -1 where it does not."""
    at = text.find(wanted)
    while at >= 0 and (_within(text, at) or _within(text, at + len(wanted))):
        at = text.find(wanted, at + 1)
    return at


def _within(text: str, at: int) -> bool:
    """Whether character `at` is not the first of a word, number or gap, but goes on with what stands before it."""
    return 0 < at < len(text) and _LETTER(text[at - 1]) is not None and _LETTER(text[at]) is not None


def tokens_of(offsets: np.ndarray, start: int, end: int) -> tuple[int, int]:
    """The token range that covers characters [start, end)."""
    return int(np.searchsorted(offsets[:, 1], start, side="right")), int(np.searchsorted(offsets[:, 0], end, side="left"))
