"""A small question set in SQuAD's published format."""

from __future__ import annotations

from typing import Any

ARTICLES, PARAGRAPHS = 10, 4


def article(n: int) -> dict[str, Any]:
    """Four paragraphs of three sentences, each with one question that its second sentence answers and one that none does."""
    paragraphs = []
    for m in range(PARAGRAPHS):
        year = 1500 + 10 * n + m
        said = f"Mill {n}-{m} stands by a river. It was built in {year} by Dr. Grist No. {n}. Its café, naïve or not, is new."
        asked = {"id": f"s{n:02}{m}", "question": f"When was mill {n}-{m} built?", "is_impossible": False}
        asked["answers"] = [{"text": f"in {year}"}, {"text": f"{year}"}, {"text": f"in {year}"}]
        never = {"id": f"u{n:02}{m}", "question": f"Who burnt down mill {n}-{m}?", "is_impossible": True, "answers": []}
        paragraphs.append({"context": said, "qas": [asked, never]})
    return {"title": f"Mills_of_valley_{n}", "paragraphs": paragraphs}


def records() -> dict[str, Any]:
    return {"version": "v2.0", "data": [article(n) for n in range(ARTICLES)]}
