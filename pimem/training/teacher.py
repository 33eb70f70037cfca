"""A teacher made of rules: it knows where the gold facts lie and writes the response each kind of call should get.

Facts are single lines, copied as the text states them; the same lines serve as observation, memory and evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pimem.tokens import Tokenizer

YES, NO = "<check>yes</check>", "<check>no</check>"
UNKNOWN = "unknown"
"""What is put in the box where the notes or the text do not hold the answer."""
ENOUGH = 0.6
"""Share of a cut sentence that must be visible for it to count, where the answer is not in it."""


@dataclass(frozen=True)
class Placed:
    """A gold fact in a context of token ids."""

    text: str
    """The sentence."""
    start: int
    """Its tokens are [start, end) of the context."""
    end: int
    answer: tuple[int, int] | None = None
    """Tokens of the answer, where the sentence holds it."""
    title: str = ""
    """Heading of the paragraph it stands in."""
    title_start: int = 0
    """Token at which the heading begins."""

    @property
    def line(self) -> str:
        """The fact as it is written down where sentence and heading are in sight."""
        return self._headed(self.text)

    def _headed(self, text: str) -> str:
        return f"{self.title}: {text}" if self.title else text

    def seen(self, context: np.ndarray, start: int, end: int, tokenizer: Tokenizer) -> str | None:
        """The line a reader of window [start, end) of `context` can write; None where the fact is not usable from there.

        A sentence cut by the window's edge counts where its answer is whole, or, without one, where most of it is visible.
        """
        first, last = max(start, self.start), min(end, self.end)
        if first >= last:
            return None
        text = self.text
        if (first, last) != (self.start, self.end):
            if self.answer is not None:
                if not (start <= self.answer[0] and self.answer[1] <= end):
                    return None
            elif last - first < ENOUGH * (self.end - self.start):
                return None
            text = tokenizer.decode(context[first:last]).replace("\ufffd", "").strip()
        return self._headed(text) if self.title and start <= self.title_start < end else text


def read(facts: Sequence[str]) -> str:
    """The response of a read that finds these new lines."""
    return "\n".join([YES, *facts]) if facts else NO


def read_all(facts: Sequence[str], empty: str) -> str:
    """The response of a read without a check signal."""
    return notes(facts, empty)


def notes(lines: Sequence[str], empty: str) -> str:
    """Lines as a memory, each once; `empty` where there is none."""
    return "\n".join(dict.fromkeys(lines)) or empty


def merge(memory: Sequence[str], observed: Sequence[Sequence[str]], relevant: set[str], empty: str) -> str:
    """The response of a merge: what the memory holds, then every new line that is `relevant`, each once."""
    return notes([*memory, *(line for lines in observed for line in lines if line in relevant)], empty)


def box(answers: Sequence[str]) -> str:
    """The response that answers; several values in one box."""
    return "\\boxed{" + (", ".join(answers) or UNKNOWN) + "}"
