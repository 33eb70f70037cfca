"""Which part of a corpus is trained on and which is kept for evaluation: the parts share neither questions nor paragraphs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pimem.corpora import Corpus, Question


@dataclass(frozen=True, eq=False)
class Pool:
    """The questions and paragraphs of one part, as numbers into the corpus."""

    questions: tuple[int, ...]
    paragraphs: tuple[int, ...]


def gold(question: Question) -> list[int]:
    """Numbers of the paragraphs its answer rests on, in order."""
    return sorted({paragraph for paragraph, _ in question.support})


def titled(corpus: Corpus) -> dict[str, list[int]]:
    """Paragraph numbers by title."""
    titles: dict[str, list[int]] = {}
    for number, paragraph in enumerate(corpus.paragraphs):
        titles.setdefault(paragraph.title, []).append(number)
    return titles


def part(corpus: Corpus, name: str, share: float, units: Mapping[str, Iterable[int]]) -> Pool:
    """The part of `corpus` that `name` (all, train, eval) stands for. Depends on the content alone, on no seed.

    `units`: what stays together, by a name of its own, as paragraph numbers; in the order of a hash of their names they go to
    evaluation until it has its `share` of the paragraphs. A question is one of evaluation where all of its own paragraphs
    are, and one of training where no paragraph that it rests on is; others are of neither.
    """
    questions, paragraphs = corpus.questions, corpus.paragraphs
    if name == "all":
        return Pool(tuple(range(len(questions))), tuple(range(len(paragraphs))))
    kept: set[int] = set()
    for unit in sorted(units, key=lambda unit: hashlib.sha256(unit.encode()).digest()):
        if len(kept) >= share * len(paragraphs):
            break
        kept.update(units[unit])
    if name == "eval":
        chosen = (i for i, q in enumerate(questions) if kept.issuperset(q.paragraphs))
        return Pool(tuple(chosen), tuple(sorted(kept)))
    # What a question that nothing answers rests on is its own paragraphs.
    chosen = (i for i, q in enumerate(questions) if kept.isdisjoint(gold(q) or q.paragraphs))
    return Pool(tuple(chosen), tuple(i for i in range(len(paragraphs)) if i not in kept))
