"""A workflow over a tiny tokenizer and short prompts, run against a script that sees each prompt as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pimem.config import SamplingSpec
from pimem.engines.scripted import Scripted
from pimem.prompts import PromptSet
from pimem.records import Call, CallKey, Trace
from pimem.tokens import Tokenizer
from pimem.workflows import base

PROMPTS = """\
name: terse
version: "1"
answer_form: plain
empty_memory: EMPTY
empty_recall: NONE
observation: "[{label}] {text}"
phases:
  read: "read Q={question} M={memory} C={chunk}"
  read_cached: "read Q={question} C={chunk} M={memory}"
  read_all: "all Q={question} M={memory} C={chunk}"
  read_all_cached: "all Q={question} C={chunk} M={memory}"
  merge: "merge Q={question} M={memory} O={observations}"
  update: "update Q={question} M={memory} C={chunk}"
  gated_update: "update Q={question} M={memory} C={chunk}"
  recall_update: "update Q={question} R={recalled} M={memory} C={chunk}"
  final: "final Q={question} M={memory}"
  recall_final: "final Q={question} R={recalled} M={memory}"
  answer: "answer Q={question} C={context}"
  retrieved: "retrieved Q={question} C={context}"
  closed_book: "closed Q={question}"
  reason: "reason Q={question} C={context}"
  conclude: "conclude Q={question} R={reasoning}"
"""
QUESTION = "who?"


@dataclass
class Recorder:
    """Keeps what it is told."""

    sample: str = "s"
    told: list[tuple[Call, np.ndarray]] = field(default_factory=list)

    def record(self, call: Call, prompt_ids: np.ndarray) -> None:
        self.told.append((call, prompt_ids))


@dataclass
class Lab:
    """Builds workflows, runs them, and keeps each prompt's text (without the chat template) under its key."""

    tokenizer: Tokenizer
    prompts: PromptSet
    window: int = 4096
    sampling: SamplingSpec = field(default_factory=lambda: SamplingSpec(temperature=0.0, top_p=1.0))
    retries: int = 2
    seen: dict[tuple[int, str, int], str] = field(default_factory=dict)
    asked: list[tuple[int, str, int]] = field(default_factory=list)
    engine: Scripted | None = None
    recorder: Recorder = field(default_factory=Recorder)

    def build(self, spec: Any) -> Any:
        return base.build(spec, self.prompts, self.tokenizer, self.window, self.sampling, self.retries)

    def size(self, text: str) -> int:
        return len(self.tokenizer.encode(text))

    def chunks(self, *texts: str, size: int = 64) -> np.ndarray:
        """A context whose windows of `size` tokens each begin with one of `texts`, filled up with blanks."""
        blank = self.tokenizer.encode(" ")
        parts = []
        for text in texts:
            ids = self.tokenizer.encode(text)
            assert len(blank) == 1
            assert len(ids) <= size
            parts.append(np.concatenate([ids, np.repeat(blank, size - len(ids))]))
        return np.concatenate(parts)

    async def run(
        self, spec: Any, script: Callable[[CallKey, str], str], context: np.ndarray, question: str = QUESTION
    ) -> Trace:
        """Runs one sample from nothing: what earlier runs saw is forgotten."""
        self.seen.clear()
        self.asked.clear()

        def answer(key: CallKey, ids: np.ndarray) -> str:
            text = self.tokenizer.decode(ids)
            text = text.removeprefix("<|im_start|>user\n").removesuffix("<|im_end|>\n<|im_start|>assistant\n")
            self.seen[key[1:]] = text
            self.asked.append(key[1:])
            return script(key, text)

        # Without a tokenizer the engine counts words, so one word stands for as many tokens as a test needs.
        self.engine = Scripted(answer, self.window)
        self.recorder = Recorder()
        return await self.build(spec).run(question, context, self.engine, self.recorder)


@pytest.fixture(scope="session")
def shared_tokenizer(tiny_tokenizer: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer)


@pytest.fixture(scope="session")
def terse(tmp_path_factory: pytest.TempPathFactory) -> PromptSet:
    folder = tmp_path_factory.mktemp("terse")
    (folder / "prompts.yaml").write_text(PROMPTS)
    return PromptSet.load(folder)


@pytest.fixture
def lab(shared_tokenizer: Tokenizer, terse: PromptSet, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(base, "RETRY_SECONDS", 0.0)
    return Lab(shared_tokenizer, terse)
