"""Which of SQuAD's articles are trained on and which are kept for evaluation."""

from __future__ import annotations

import functools
import hashlib

from pimem.corpora import Corpus
from pimem.tasks.hotpotqa import Pool

EVALUATION_SHARE = 0.2
"""Part of the paragraphs kept for evaluation: of SQuAD's 1,204 the 246 of 8 articles, with 2,442 questions."""


@functools.lru_cache(maxsize=6)
def split(corpus: Corpus, name: str) -> Pool:
    """The part of `corpus` that `name` (all, train, eval) stands for. Depends on the content alone, on no seed.

    Whole articles, in the order of a hash of their titles, go to evaluation until it has its share. A question is of the part
    that all of its paragraphs are in.
    """
    questions, paragraphs = corpus.questions, corpus.paragraphs
    if name == "all":
        return Pool(tuple(range(len(questions))), tuple(range(len(paragraphs))))
    articles: dict[str, list[int]] = {}
    for number, paragraph in enumerate(paragraphs):
        articles.setdefault(paragraph.title, []).append(number)
    kept: set[int] = set()
    for title in sorted(articles, key=lambda title: hashlib.sha256(title.encode()).digest()):
        if len(kept) >= EVALUATION_SHARE * len(paragraphs):
            break
        kept.update(articles[title])
    part = kept if name == "eval" else set(range(len(paragraphs))) - kept
    chosen = (i for i, question in enumerate(questions) if part.issuperset(question.paragraphs))
    return Pool(tuple(chosen), tuple(sorted(part)))
