"""Question sets on disk: read by id, refused when damaged, filtered by what a model knows, handed to verl."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.engines.scripted import Scripted
from pimem.errors import DataError, EngineError
from pimem.prompts import PromptSet
from pimem.records import CallKey
from pimem.tokens import Tokenizer
from pimem.training import questions
from pimem.training.questions import Question, Questions


def question(
    number: int, tokens: int = 10, evidence: Sequence[tuple[int, int]] = ((3, 5),), metric: str = "sub_em"
) -> Question:
    return Question(
        f"train-q{number}",
        f"What is number {number}?",
        (f"Paris {number}",),
        "hotpotqa",
        metric,
        7,
        f"q{number}",
        0,
        tokens,
        tuple(evidence),
    )


def written(folder: Path, rows: Sequence[Question], tokenizer: str = "t") -> Questions:
    contexts = ((row, np.arange(i, i + row.tokens, dtype=np.uint32)) for i, row in enumerate(rows))
    return questions.write(folder, {"tokenizer": tokenizer, "spec": {}}, contexts)


def test_contexts_are_read_by_id_from_a_map(tmp_path: Path) -> None:
    rows = [question(n, tokens=5 + 3 * n) for n in range(6)]
    made = written(tmp_path / "set", rows)
    again = questions.load(tmp_path / "set")
    for known in (made, again):
        assert [r.id for r in known] == [r.id for r in rows]
        for n, row in enumerate(rows):
            context = known.context(row.id)
            assert context.dtype == np.uint32
            assert list(context) == list(range(n, n + 5 + 3 * n))
            assert isinstance(context, np.memmap)
            assert known[row.id].answers == row.answers
    assert (tmp_path / "set" / "contexts.u32").stat().st_size == 4 * sum(r.tokens for r in rows)
    with pytest.raises(DataError, match="no question 'train-q9' among its 6"):
        made.context("train-q9")


@given(
    tokens=st.integers(1, 200),
    chunk=st.integers(1, 60),
    spans=st.lists(st.tuples(st.integers(0, 199), st.integers(1, 40)), min_size=1, max_size=4),
)
def test_a_chunk_is_labelled_exactly_where_a_gold_token_lies_in_it(
    tokens: int, chunk: int, spans: list[tuple[int, int]]
) -> None:
    gold = tuple((min(a, tokens - 1), min(a + n, tokens)) for a, n in spans)
    known = Questions(Path(), {}, [question(0, tokens, gold)])
    wanted = {token // chunk for a, b in gold for token in range(a, b)}
    assert known.evidence_chunks("train-q0", chunk) == tuple(sorted(wanted))


def test_what_verl_reads(tmp_path: Path) -> None:
    import pyarrow.parquet

    made = written(tmp_path / "set", [question(n, tokens=4000) for n in range(64)])
    questions.parquet(made, tmp_path / "train.parquet", "pimem")
    rows = pyarrow.parquet.read_table(tmp_path / "train.parquet").to_pylist()
    assert rows[3] == {
        "data_source": "hotpotqa",
        "prompt": [{"role": "user", "content": "What is number 3?"}],
        "agent_name": "pimem",
        "reward_model": {"style": "rule", "ground_truth": ["Paris 3"]},
        "extra_info": {"index": 3, "id": "train-q3", "question": "What is number 3?"},
    }
    assert len(rows) == 64
    assert (tmp_path / "train.parquet").stat().st_size < 20_000


# Damage


def test_the_same_set_is_not_made_twice_and_another_never_overwrites_it(tmp_path: Path) -> None:
    written(tmp_path / "set", [question(0)])

    def never() -> object:
        raise AssertionError("a row was drawn")
        yield

    again = questions.write(tmp_path / "set", {"tokenizer": "t", "spec": {}}, never())  # type: ignore[arg-type]
    assert len(again) == 1
    with pytest.raises(DataError, match="holds another set"):
        written(tmp_path / "set", [question(0)], tokenizer="other")


def test_nothing_is_left_of_a_set_that_was_not_finished(tmp_path: Path) -> None:
    def rows() -> object:
        yield question(0), np.arange(10, dtype=np.uint32)
        raise DataError("the second cannot be built")

    with pytest.raises(DataError, match="the second"):
        questions.write(tmp_path / "set", {}, rows())  # type: ignore[arg-type]
    with pytest.raises(DataError, match="would be empty"):
        questions.write(tmp_path / "set", {}, [])
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/set: cannot be written \(.*make room"):
        written(tmp_path / "file" / "set", [question(0)])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("contexts.u32", "abcd", "4 bytes of contexts where its manifest says 1 and 40"),
        ("questions.jsonl", "", "the set is empty"),
        ("questions.jsonl", "{", "not a set of questions"),
        ("questions.jsonl", '{"id": "x"}', "not a set of questions"),
        ("manifest.json", None, "not a set of questions"),
    ],
)
def test_damage_is_found_on_loading(tmp_path: Path, file: str, content: str | None, message: str) -> None:
    written(tmp_path / "set", [question(0)])
    path = tmp_path / "set" / file
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(DataError, match=message):
        questions.load(tmp_path / "set")


def test_ids_of_another_tokenizer_are_refused(tmp_path: Path, tiny: Tokenizer) -> None:
    written(tmp_path / "set", [question(0)])
    with pytest.raises(DataError, match="build the set again for this model"):
        questions.load(tmp_path / "set", tiny)
    written(tmp_path / "own", [question(0)], tokenizer=tiny.hash)
    assert len(questions.load(tmp_path / "own", tiny)) == 1


# Questions that a model knows


def test_questions_answered_without_a_context_are_found_and_dropped(tmp_path: Path, tiny: Tokenizer) -> None:
    rows = [question(n, tokens=5 + n) for n in range(5)] + [question(5, metric="multi_recall")]
    made = written(tmp_path / "set", rows)
    prompts = PromptSet.load("trained")
    asked: list[tuple[str, int]] = []

    def script(key: CallKey, prompt: np.ndarray) -> str:
        asked.append((key.sample, key.turn))
        assert prompts.empty_memory in tiny.decode(prompt)
        known = {"train-q1": 1, "train-q3": 0, "train-q5": 0}
        answer = f"it is Paris {key.sample[-1]}." if known.get(key.sample) == key.turn else "no idea"
        return rf"\boxed{{{answer}}}"

    found = asyncio.run(questions.known_without_context(made, Scripted(script), prompts, tiny))
    assert found == {"train-q1", "train-q3", "train-q5"}
    assert len(asked) == len(set(asked)) == 2 * 6
    left = questions.drop(made, found, tmp_path / "left", "answered without the text")
    assert [r.id for r in left] == ["train-q0", "train-q2", "train-q4"]
    for row in left:
        assert np.array_equal(left.context(row.id), made.context(row.id))
    manifest = json.loads((tmp_path / "left" / "manifest.json").read_text())
    assert manifest["dropped"]["why"] == "answered without the text"
    assert manifest["dropped"]["questions"] == sorted(found)
    with pytest.raises(DataError, match="would be empty"):
        questions.drop(left, {r.id for r in left}, tmp_path / "none", "all")
    with pytest.raises(DataError, match="no question 'x'"):
        questions.drop(left, {"x"}, tmp_path / "none", "all")


def test_a_request_that_fails_never_makes_a_question_unknown(tmp_path: Path, tiny: Tokenizer) -> None:
    class Down(Scripted):
        async def generate(self, *arguments: object) -> object:  # type: ignore[override]
            raise EngineError("no server")

    with pytest.raises(EngineError, match="no server"):
        asyncio.run(
            questions.known_without_context(
                written(tmp_path / "set", [question(0)]), Down(lambda key, prompt: ""), PromptSet.load("trained"), tiny
            )
        )
