"""Small question sets in HotpotQA's published format."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

QUESTIONS, TOPICS = 40, 180


def records(sentences: Callable[[str, int], list[str]], seed: int = 3) -> list[dict[str, Any]]:
    """Two gold paragraphs a question, and six of a pool that questions share; `sentences` of a title and its number."""
    rng = random.Random(seed)
    titles = [f"Topic {n}" for n in range(TOPICS)]
    texts = {title: sentences(title, n) for n, title in enumerate(titles)}
    made = []
    for number in range(QUESTIONS):
        gold = titles[2 * number : 2 * number + 2]
        context = [[title, texts[title]] for title in [*gold, *rng.sample(titles[2 * QUESTIONS :], 6)]]
        rng.shuffle(context)
        made.append(
            {
                "_id": f"q{number:03}",
                "question": f"Who founded the place next to {gold[0]}?",
                "answer": f"Person {2 * number + 1}",
                "type": "bridge",
                "level": "hard",
                "supporting_facts": [[gold[0], 0], [gold[1], 1]],
                "context": context,
            }
        )
    return made
