"""A teacher made of rules: it knows where the gold facts lie and writes the response each kind of call should get.

Facts are single lines, copied as the text states them; the same lines serve as observation, memory and evidence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pimem.tokens import Tokenizer

YES, NO = "<check>yes</check>", "<check>no</check>"
UNKNOWN = "unknown"
"""What is put in the box where the notes or the text do not hold the answer."""
_PARENTHESIS = re.compile(r"\s*\(.*?\)")
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
    subject: str = ""
    """What it is about, where the question names that."""
    clear: bool = True
    """Whether the question alone tells that the fact matters, and not only the question together with another fact."""

    @property
    def begin(self) -> int:
        """Token at which what is needed to understand it begins."""
        return self.title_start if self.title else self.start

    @property
    def group(self) -> str:
        """Facts of one group stand together and are read together."""
        return self.title or self.text

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


def gated(new: bool, memory: str, end: bool) -> str:
    """The response of GRU-Mem's step: whether there is anything new, the notes with it, whether they hold everything."""
    return f"{YES if new else NO}\n<update>{memory}</update>\n<next>{'end' if end else 'continue'}</next>"


def recalling(memory: str, query: str | None) -> str:
    """The response of ReMemR1's step: the new notes, and what it would like to see again."""
    return f"<update>{memory}</update>" + (f"\n<recall>{query}</recall>" if query else "")


def missing(facts: Sequence[Placed], question: str, memory: str) -> str | None:
    """What to look for among earlier notes: the first heading of `facts`, which the notes lack, that the prompt names.

    Nothing where the notes are empty, as nothing tells then that something was lost.
    """
    if not memory:
        return None
    shown = f"{question}\n{memory}".lower()
    names = (_PARENTHESIS.sub("", fact.title or fact.subject).strip() for fact in facts)
    return next((name for name in names if name and name.lower() in shown), None)


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
