"""LongBench v2's own prompt texts, read from the folder in which its repository keeps them.

Its five files have marks of their own for the document, the question, the four choices and a chain of thought. Question and
choices are one slot here, because every method is asked the same question: the lines between their marks must be those of
`question`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pimem.errors import ConfigError

FILES = {
    "answer": "0shot.txt",
    "retrieved": "0shot_rag.txt",
    "closed_book": "0shot_no_context.txt",
    "reason": "0shot_cot.txt",
    "conclude": "0shot_cot_ans.txt",
}
"""Phase to the file that holds its text."""
LETTERS = ("A", "B", "C", "D")
_SLOTS = {"$DOC$": "{context}", "$COT$": "{reasoning}"}


def question(text: str, choices: Sequence[str]) -> str:
    """A multiple-choice question as LongBench v2 lays it out: the question, then each choice behind its letter."""
    listed = [f"({letter}) {choice.strip()}" for letter, choice in zip(LETTERS, choices, strict=True)]
    return "\n".join([text.strip(), "Choices:", *listed])


def read(folder: Path) -> dict[str, Any]:
    """The folder's texts as a prompt set's mapping; of the five files only the one of the plain question must be there.

    Raises `ConfigError` for a file that is no text or lays the question out in another way.
    """
    laid_out = question("$Q$", [f"$C_{letter}$" for letter in LETTERS])
    phases = {}
    for phase, name in FILES.items():
        path = folder / name
        if not path.is_file():
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read as text ({error})") from None
        text = text.replace("\r\n", "\n")
        if text.count(laid_out) != 1:
            raise ConfigError(
                f"{path}: the question and its choices must stand there once and just so, as in LongBench v2's own file: "
                f"{laid_out!r}"
            )
        text = text.replace(laid_out, "{question}")
        for mark, slot in _SLOTS.items():
            text = text.replace(mark, slot)
        phases[phase] = text
    return {
        "name": "longbench_v2_official",
        "version": "v2",
        "about": f"LongBench v2's own texts, from {folder}",
        "answer_form": "choice",
        "passage": "Retrieved chunk {label}: {text}",
        "phases": phases,
    }
