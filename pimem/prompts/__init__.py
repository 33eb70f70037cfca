"""Prompt sets: versioned data files, and the templates compiled from them for one tokenizer.

A set is a folder with a `prompts.yaml`: a name, a version, an answer form, a few literals and one template a phase. A
template is the text of a user message, or a list of messages with roles, and holds slots such as `{question}`. The chat
template is rendered once around the slots; its pieces are tokenised once, with control tokens live. What fills a slot is
tokenised on its own, with control tokens inert, so that nothing in a document can end a message.

So the ids are those of the rendered string except where a merge would have reached across a seam, and they decode to that
string. Tokenizers that put a mark before every text show a blank at each seam.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pimem import config
from pimem.errors import ConfigError, nearest
from pimem.prompts import official
from pimem.tokens import Tokenizer

FOLDER = Path(__file__).parent
SLOTS: dict[str, tuple[str, ...]] = {
    "read": ("question", "memory", "chunk"),
    "read_cached": ("question", "chunk", "memory"),
    "read_all": ("question", "memory", "chunk"),
    "read_all_cached": ("question", "chunk", "memory"),
    "merge": ("question", "memory", "observations"),
    "update": ("question", "memory", "chunk"),
    "gated_update": ("question", "memory", "chunk"),
    "recall_update": ("question", "recalled", "memory", "chunk"),
    "final": ("question", "memory"),
    "recall_final": ("question", "recalled", "memory"),
    "answer": ("question", "context"),
    "retrieved": ("question", "context"),
    "closed_book": ("question",),
    "reason": ("question", "context"),
    "conclude": ("question", "reasoning"),
}
"""The phases a set may define and the slots each must hold. `cached` phases put the chunk before the memory; `all` phases ask
for no check signal; `gated` is GRU-Mem's and `recall` ReMemR1's; the last three are for LongBench v2's variants."""
_CACHED_ORDER = {"read_cached", "read_all_cached"}
_REPEATABLE = ("question",)
"""Slots that may be filled more than once: a small model that has read a section should hear the question again."""
_SLOT = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True)
class Message:
    """One message of a template."""

    role: Literal["system", "user", "assistant"]
    """Who speaks."""
    content: str
    """What is said, slots included."""


@dataclass(frozen=True)
class PromptSet:
    """The texts of one way of asking."""

    name: str
    """Its name in reports."""
    version: str
    """Raised whenever a text changes."""
    answer_form: Literal["boxed", "phrase", "plain", "choice"]
    """Where the answer stands in a final response: in a box, behind a phrase, as the whole first line, or as the letter in
    LongBench v2's sentence."""
    phases: dict[str, Any]
    """Phase name to template."""
    empty_memory: str = "(empty)"
    """Stands for a memory in which there is nothing yet."""
    empty_recall: str = "(nothing recalled)"
    """Stands for an earlier memory where none was asked for or found."""
    observation: str = "[Section {label}]\n{text}"
    """How one observation is shown to the merge, and kept in a memory that is not merged."""
    passage: str = "{text}"
    """How RAG shows one retrieved passage; `{label}` is its number among those shown."""
    about: str = ""
    """For whom the set is made."""
    templates: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    """Filled by `load`: the phases, validated."""

    @classmethod
    def load(cls, name: str | Path) -> PromptSet:
        """The set that ships under this name, the one in this folder, or the texts in LongBench v2's own folder of prompts.

        Raises `ConfigError` where there is none, or where a phase or a slot is unknown or missing.
        """
        name = str(name)
        folder = FOLDER / name if (FOLDER / name / "prompts.yaml").is_file() else Path(name)
        path = folder / "prompts.yaml"
        theirs = not path.is_file() and (folder / official.FILES["answer"]).is_file()
        if not path.is_file() and not theirs:
            shipped = sorted(p.parent.name for p in FOLDER.glob("*/prompts.yaml"))
            raise ConfigError(
                f"prompts: {name!r} is neither a shipped set nor a folder with a prompts.yaml; {nearest(name, shipped)}"
            )
        data = official.read(folder) if theirs else config.load_yaml(path)
        path = folder if theirs else path
        if "templates" in data:
            raise ConfigError(f"{path}: unknown key 'templates'; did you mean 'phases'?")
        parsed = config.build(cls, data, str(path))
        templates = {phase: _messages(phase, body, f"{path}: {phase}") for phase, body in parsed.phases.items()}
        for slot in ("label", "text"):
            if f"{{{slot}}}" not in parsed.observation:
                raise ConfigError(f"{path}: observation must hold {{{slot}}}")
        if parsed.passage.count("{text}") != 1:
            raise ConfigError(f"{path}: passage must hold {{text}} once")
        return replace(parsed, templates=templates)

    @functools.cached_property
    def hash(self) -> str:
        """Digest of what the parsed set says to a model: name, comments and layout do not count."""
        said = config.as_dict(self)
        names = ["answer_form", "empty_memory", "empty_recall", "observation", "templates"]
        # A set that shows passages as they are keeps the hash it had before they could be shown in another way.
        names += ["passage"] if self.passage != "{text}" else []
        return config.canonical_hash({k: said[k] for k in names})

    def template(self, phase: str, tokenizer: Tokenizer, template_args: Mapping[str, Any]) -> Template:
        """The phase compiled for a tokenizer. Raises `ConfigError` where the set lacks the phase."""
        if phase not in self.templates:
            raise ConfigError(
                f"prompt set {self.name!r} has no phase {phase!r}, which this method needs; it has {', '.join(self.templates)}"
            )
        return Template.compile(self.templates[phase], tokenizer, template_args)

    def labelled(self, label: str, text: str) -> str:
        """One observation under its label."""
        return self.observation.replace("{label}", label).replace("{text}", text)


def _messages(phase: str, body: Any, where: str) -> tuple[Message, ...]:
    if phase not in SLOTS:
        raise ConfigError(f"{where}: unknown phase; {nearest(phase, SLOTS)}")
    listed = [{"role": "user", "content": body}] if isinstance(body, str) else body
    messages = config.build(tuple[Message, ...], listed, where)  # type: ignore[type-var]
    found = [slot for m in messages for slot in _SLOT.findall(m.content)]
    for slot in found:
        if slot not in SLOTS[phase]:
            raise ConfigError(f"{where}: unknown slot {{{slot}}}; {nearest(slot, SLOTS[phase])}")
    for slot in SLOTS[phase]:
        if found.count(slot) != 1 and not (found.count(slot) and slot in _REPEATABLE):
            how = "must stand in it" if slot in _REPEATABLE else f"must stand exactly once, not {found.count(slot)} times"
            raise ConfigError(f"{where}: the slot {{{slot}}} {how}")
    if phase in _CACHED_ORDER and found.index("chunk") > found.index("memory"):
        raise ConfigError(f"{where}: {{chunk}} must stand before {{memory}}, or nothing can be cached")
    return messages


@dataclass(frozen=True)
class Template:
    """A phase as token ids with holes."""

    pieces: tuple[np.ndarray, ...]
    """Static ids around the slots, one more than there are slots."""
    slots: tuple[str, ...]
    """In the order they are filled; the question may be among them more than once."""

    @classmethod
    def compile(cls, messages: tuple[Message, ...], tokenizer: Tokenizer, template_args: Mapping[str, Any]) -> Template:
        """Renders the chat template once, with a mark in each slot, and tokenises what stands between the marks."""
        marks: dict[str, str] = {}

        def mark(match: re.Match[str]) -> str:
            marks[match[1]] = f"\u2983{match[1]}\u2984"
            return marks[match[1]]

        rendered = tokenizer.chat([{"role": m.role, "content": _SLOT.sub(mark, m.content)} for m in messages], **template_args)
        given = [slot for m in messages for slot in _SLOT.findall(m.content)]
        for slot, marked in marks.items():
            if rendered.count(marked) != given.count(slot):
                raise ConfigError(
                    f"the chat template shows the slot {{{slot}}} {rendered.count(marked)} times instead of {given.count(slot)}"
                )
        cut = re.compile("|".join(re.escape(m) for m in marks.values()))
        slots = tuple(m[0][1:-1] for m in cut.finditer(rendered))
        return cls(tuple(tokenizer.encode_template(t) for t in cut.split(rendered)), slots)

    @property
    def tokens(self) -> int:
        """Tokens of the static part."""
        return sum(len(p) for p in self.pieces)

    def asking(self, question: int) -> int:
        """Tokens of the static part and of a question of `question` tokens, as often as the text asks it."""
        return self.tokens + self.slots.count("question") * question

    def fill(self, **parts: np.ndarray) -> np.ndarray:
        """The prompt: uint32 ids, shape (static + filled tokens,)."""
        ids = [self.pieces[0]]
        for slot, piece in zip(self.slots, self.pieces[1:], strict=True):
            ids += [parts[slot], piece]
        return np.concatenate(ids)
