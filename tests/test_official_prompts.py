"""LongBench v2's own folder of prompts as a prompt set; the texts here are made up, its files' names and marks are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pimem.errors import ConfigError
from pimem.prompts import PromptSet, official
from pimem.tokens import Tokenizer

LAID_OUT = "$Q$\nChoices:\n(A) $C_A$\n(B) $C_B$\n(C) $C_C$\n(D) $C_D$"
TEXTS = {
    "0shot.txt": f"Read this: $DOC$\n\nAnd now: {LAID_OUT}\n\nSay the letter.",
    "0shot_rag.txt": f"Found: $DOC$\n\nAnd now: {LAID_OUT}\n\nSay the letter.",
    "0shot_no_context.txt": f"And now: {LAID_OUT}\n\nSay the letter.",
    "0shot_cot.txt": f"Read this: $DOC$\n\nAnd now: {LAID_OUT}\n\nThink.",
    "0shot_cot_ans.txt": f"And now: {LAID_OUT}\n\nThought: $COT$\n\nSay the letter.",
}


def folder(path: Path, **changes: str) -> Path:
    for name, text in TEXTS.items():
        if (text := changes.get(name.removesuffix(".txt"), text)) != "":
            (path / name).write_text(text, encoding="utf-8")
    return path


def test_every_file_is_a_phase_and_shows_what_the_official_code_shows(tmp_path: Path, tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.load(tiny_tokenizer)
    prompts = PromptSet.load(folder(tmp_path))
    assert set(prompts.templates) == {"answer", "retrieved", "closed_book", "reason", "conclude"}
    assert (prompts.answer_form, prompts.name) == ("choice", "longbench_v2_official")
    question, choices = " Who? ", ["a", " b", "c ", "d"]
    said = official.question(question, choices)
    parts = {"question": said, "context": "the document", "reasoning": "so it is"}
    for phase, name in official.FILES.items():
        template = prompts.template(phase, tokenizer, {})
        shown = tokenizer.decode(template.fill(**{slot: tokenizer.encode(parts[slot]) for slot in template.slots}))
        wanted = TEXTS[name].replace("$DOC$", "the document").replace("$Q$", "Who?").replace("$COT$", "so it is")
        for letter, text in zip("ABCD", choices, strict=True):
            wanted = wanted.replace(f"$C_{letter}$", text.strip())
        assert wanted in shown


def test_only_the_plain_question_must_be_there(tmp_path: Path) -> None:
    only = folder(tmp_path, **{name.removesuffix(".txt"): "" for name in TEXTS if name != "0shot.txt"})
    assert set(PromptSet.load(only).templates) == {"answer"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "$DOC$ $Q$ (A) $C_A$ (B) $C_B$ (C) $C_C$ (D) $C_D$",
            r"0shot\.txt: the question and its choices must stand there once",
        ),
        ("$DOC$", r"0shot\.txt: the question and its choices must stand there once"),
        (LAID_OUT, r"answer: the slot \{context\} must stand exactly once, not 0 times"),
        (f"$DOC$ $COT$ {LAID_OUT}", r"answer: unknown slot \{reasoning\}"),
    ],
)
def test_a_file_of_another_layout_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        PromptSet.load(folder(tmp_path, **{"0shot": text}))


def test_the_texts_decide_the_hash_and_passages_are_numbered(tmp_path: Path) -> None:
    first = PromptSet.load(folder(tmp_path))
    assert first.passage.replace("{label}", "2").replace("{text}", "t") == "Retrieved chunk 2: t"
    second = PromptSet.load(folder(tmp_path, **{"0shot": TEXTS["0shot.txt"] + " Please."}))
    assert first.hash != second.hash
