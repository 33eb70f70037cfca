"""Which of SQuAD's articles are trained on and which are kept for evaluation."""

from __future__ import annotations

import functools

from pimem.corpora import Corpus
from pimem.tasks import splits

EVALUATION_SHARE = 0.2
"""Part of the paragraphs kept for evaluation: of SQuAD's 1,204 the 246 of 8 articles, with 2,442 questions."""


@functools.lru_cache(maxsize=6)
def split(corpus: Corpus, name: str) -> splits.Pool:
    """The part of SQuAD that `name` stands for (`pimem.tasks.splits`); the paragraphs of an article stay together."""
    return splits.part(corpus, name, EVALUATION_SHARE, splits.titled(corpus))
