"""The command line, and `pimem ask` behind it, with the scripted engine and a real tiny tokenizer."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pimem import ask as asking
from pimem.cli import _parser, main
from pimem.config import METHODS, EngineSpec, method_spec


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIMEM_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def story(tmp_path: Path) -> Path:
    path = tmp_path / "story.txt"
    path.write_text("\n".join(f"Line {n}: the lighthouse keeper wrote a letter." for n in range(120)))
    return path


PROMPTS = """
name: terse
version: "1"
answer_form: boxed
phases:
  read: "{question} {memory} {chunk}"
  merge: "{question} {memory} {observations}"
  update: "{question} {memory} {chunk}"
  gated_update: "{question} {memory} {chunk}"
  recall_update: "{question} {recalled} {memory} {chunk}"
  final: "{question} {memory}"
  recall_final: "{question} {recalled} {memory}"
  answer: "{question} {context}"
  retrieved: "{question} {context}"
"""


def ask(model: Path, story: Path, *more: str, question: str = "Who wrote?") -> int:
    folder = story.parent / "terse"
    folder.mkdir(exist_ok=True)
    (folder / "prompts.yaml").write_text(PROMPTS)
    fixed = ["--model", str(model), "--window", "1536", "--prompts", str(folder), "--engine", "scripted"]
    return main(["ask", "--context", str(story), "--question", question, *fixed, *more])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_answers_and_says_what_it_cost(
    tiny_model: Path, story: Path, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    size = (
        ["--yarn", "2"]
        if method == "yarn"
        else []
        if method == "vanilla"
        else ["--set", "chunk_tokens=900" if method != "rag" else "chunk_tokens=300"]
    )
    assert ask(tiny_model, story, "--method", method, *size) == 0
    out = capsys.readouterr().out
    assert out.startswith("answer    ")
    assert "calls" in out.splitlines()[-1]


def test_the_trace_names_chunks_files_and_lines(tiny_model: Path, story: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(tiny_model, story, "--set", "chunk_tokens=200", "--show-trace") == 0
    out = capsys.readouterr().out
    assert "question  Who wrote?" in out
    assert "turn 1    6 of 13 chunks selected" in out
    selected = r"chunk (\d+) \(tokens ([\d,]+) to [\d,]+, story.txt line \d+, begins \".*…\"\)\n    \| <check>yes</check> fact "
    places = re.findall(selected, out)
    assert len(places) == 6
    assert all(int(start.replace(",", "")) == 200 * (int(chunk) - 1) for chunk, start in places)


def test_the_same_question_is_answered_from_the_store(
    tiny_model: Path, story: Path, own_runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(tiny_model, story, "--set", "chunk_tokens=900") == 0
    first = capsys.readouterr().out

    async def never(*_: object) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("pimem.engines.lazy.build", never)
    assert ask(tiny_model, story, "--set", "chunk_tokens=900") == 0
    assert capsys.readouterr().out == first
    assert ask(tiny_model, story, "--set", "chunk_tokens=900", "--engine", "vlm") == 2
    assert "did you mean 'vllm'" in capsys.readouterr().err
    assert len(list(own_runs.glob("files-*/pi_mem-*"))) == 1


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--method", "pimem"], "did you mean 'pi_mem'"),
        (["--engine", "vlm"], "did you mean 'vllm'"),
        (["--set", "chunk_token=3"], "did you mean 'chunk_tokens'"),
        (["--set", "chunk_tokens=many"], "expected int, got 'many'"),
        (["--set", "chunk_tokens"], "expected KEY=VALUE"),
        (["--set", "chunk_tokens=1400"], "more than the window of 1,536"),
        (["--set", "chunk_tokens=5"], "is less than the"),
        (["--prompts", "smal"], "did you mean 'small'"),
        (["--semantics", "relased"], "did you mean 'released'"),
        (["--engine-set", "urll=x"], "did you mean 'url'"),
        (["--window", "5000"], "window"),
        (["--window", "0"], "window: 0 is too little"),
        (["--window", "40"], "more than the window of 40"),
        (["--temperature", "nan"], "temperature: nan is no finite number"),
        (["--temperature", "inf"], "temperature: inf is no finite number"),
        (["--temperature", "-1"], "temperature: -1.0 is too little"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    tiny_model: Path, story: Path, more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(tiny_model, story, "--set", "chunk_tokens=900", *more) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert err[-1].startswith("pimem: ")
    assert says in err[-1]


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from options(command)
        else:
            yield action


def test_an_option_for_several_values_may_be_given_several_times(
    tiny_model: Path, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = [action for action in options(_parser()) if action.nargs == "+"]
    assert {"--context", "--set", "--engine-set", "--only"} <= {name for action in lists for name in action.option_strings}
    assert [action.dest for action in lists if type(action).__name__ != "_ExtendAction"] == []
    assert ask(tiny_model, story, "--set", "max_turns=1", "--set", "chunk_tokens=200") == 0
    assert "1 turn(s)" in capsys.readouterr().out


def test_training_is_reached_with_everything_the_command_line_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []
    monkeypatch.setattr("pimem.training.launch.command", lambda *args, **kwargs: given.append((args, kwargs)))
    out = tmp_path / "out"
    assert main(["train", "mini", "--out", str(out), "--set", "steps=3", "--set", "batch=2", "--fresh", "--seconds", "9"]) == 0
    changes = {"steps": 3, "batch": 2}
    assert given == [(("mini", out, changes), {"resume": False, "check_only": False, "seconds": 9.0})]
    monkeypatch.undo()
    assert main(["train", "minni", "--out", str(out)]) == 2
    assert "'mini'" in capsys.readouterr().err


def test_a_question_too_long_for_the_window_is_said_before_any_call(
    tiny_model: Path, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(tiny_model, story, "--set", "chunk_tokens=900", question="why " * 2000) == 2
    assert "question" in capsys.readouterr().err


def test_missing_and_empty_files_models_and_versions(
    tmp_path: Path, tiny_model: Path, story: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--question", "q", "--model", str(tiny_model), "--window", "1536", "--prompts", "small", "--method", "vanilla"]
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text("{}")
    for arguments, says in (
        (["ask", "--context", str(tmp_path / "no.txt"), *given], "cannot be read"),
        (["ask", "--context", str(empty), *given], "is empty"),
        (["ask", "--context", str(story), *given, "--question", " "], "question is empty"),
        (["ask", "--context", str(story), "--question", "q", "--model", str(folder)], "tokenizer"),
        (["report", "nowhere"], "no folder with scores.csv"),
        (["run", "smok"], "did you mean 'smoke'"),
        (["models", "fetch", "smollm"], "did you mean 'smollm2-135m"),
        (["data", "fetch", "hotpot"], "did you mean 'hotpotqa'"),
    ):
        assert main(arguments) == 2, arguments
        assert says in capsys.readouterr().err, arguments


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "papermill", None)
    assert main(["run", "smoke"]) == 2
    assert "the package papermill is not installed; `pimem doctor`" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pimem.doctor", None)
    with pytest.raises(ModuleNotFoundError):
        main(["doctor"])


def test_a_terminal_without_a_character_still_gets_the_answer(
    tiny_model: Path, story: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert ask(tiny_model, story, "--set", "chunk_tokens=900", "--show-trace", question="Où?") == 0
    sys.stdout.flush()
    assert b"question  O\\xf9?" in raw.getvalue()
    assert b"answer" in raw.getvalue()


def test_without_a_window_a_model_gets_all_it_has(tiny_model: Path, tmp_path: Path, story: Path) -> None:
    small = tmp_path / "small_window"
    small.mkdir()
    for path in tiny_model.iterdir():
        (small / path.name).symlink_to(path)
    (small / "config.json").unlink()
    config = json.loads((tiny_model / "config.json").read_text())
    (small / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1000}))
    asked = asking.ask([story], "Who wrote?", method="vanilla", model=str(small), engine=EngineSpec("scripted"))
    assert asked.spec.model.window == 1000


def test_budgets_fit_every_window_and_reach_the_papers_sizes() -> None:
    for window in (512, 2048, 8192, 32768):
        sizes = asking.budgets("pi_mem", window)
        assert sizes["chunk_tokens"] + sizes["memory_tokens"] + sizes["read_tokens"] < window / 2 + 1
    assert asking.budgets("pi_mem", 32768) == {
        "chunk_tokens": 5000,
        "memory_tokens": 1024,
        "read_tokens": 1024,
        "answer_tokens": 1024,
    }
    assert set(asking.budgets("vanilla", 2048)) == {"answer_tokens"}
    assert method_spec("rag", asking.budgets("rag", 32768)).method == "rag"


def test_lists_and_doctor_say_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "list"]) == 0
    assert "Apache-2.0" in capsys.readouterr().out
    assert main(["data", "list"]) == 0
    assert "hotpotqa" in capsys.readouterr().out
    main(["doctor"])
    out = capsys.readouterr().out
    assert "Python 3." in out
    assert "cores of" in out


def test_a_default_engine_is_the_transformers_one() -> None:
    assert EngineSpec().kind == "transformers"
