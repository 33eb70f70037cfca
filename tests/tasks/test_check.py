"""The check of every task: sound samples pass, each kind of wrong one is named."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pimem.cli import main
from pimem.config import TaskSpec
from pimem.errors import DataError
from pimem.records import Evidence, Sample
from pimem.tasks import base, check
from pimem.tokens import Tokenizer


def test_every_task_passes_and_says_what_it_cost(tokenizer: Tokenizer) -> None:
    rows = list(check.check([], [1500, 2500], 1, tokenizer))
    assert [row.task for row in rows[::2]] == list(base.RULER)
    for row in rows:
        assert row.faults == ()
        assert row.made <= row.asked < row.one_more
        assert row.evidence
        assert row.memory > 1e7
        assert row.cpu_seconds > 0
        shown = check.line(row)
        assert shown.startswith(row.task)
        assert f"{row.made:,}" in shown


def sound(name: str, tokenizer: Tokenizer) -> tuple[Sample, base.Task]:
    task = base.build(TaskSpec(name, 1500), tokenizer)
    return next(task.samples(1)), task


@pytest.mark.parametrize(
    ("name", "change", "says"),
    [
        ("niah_single_1", {"answers": ("9999999",)}, "answers that no evidence holds"),
        ("niah_single_1", {"evidence": ()}, "there is no evidence"),
        ("niah_single_1", {"evidence": (Evidence(0, 5, "nowhere"),)}, "tokens 0 to 5 do not hold their evidence 'nowhere'"),
        ("niah_single_1", {"meta": {"one_more": 1500}}, "do not fill 1,500 to within one unit"),
        ("variable_tracking", {"question": "Which have the value 12?"}, "the assignments give []"),
        ("frequent_words", {"answers": ("zzzzzz",)}, "the text's most frequent words are"),
        ("squad", {"answers": ("never",)}, "no answer stands in the paragraph"),
    ],
)
def test_each_fault_is_named(tokenizer: Tokenizer, name: str, change: dict, says: str) -> None:
    sample, task = sound(name, tokenizer)
    faults = list(check.verify(dataclasses.replace(sample, **change), task, 1500, tokenizer))
    assert any(says in fault for fault in faults)


def test_ids_that_are_not_those_of_their_text_are_a_fault(tokenizer: Tokenizer) -> None:
    sample, task = sound("niah_single_1", tokenizer)
    letters = tokenizer.encode_many([*"The"])
    split = np.concatenate([*letters, sample.context_ids[1:]]).astype(np.uint32)
    assert tokenizer.decode(split) == tokenizer.decode(sample.context_ids)
    faults = list(check.verify(dataclasses.replace(sample, context_ids=split), task, 1600, tokenizer))
    assert faults[0] == "the ids are not those of tokenising the text"


def test_a_length_too_short_is_a_fault_of_its_row_and_an_unknown_name_an_error(tokenizer: Tokenizer) -> None:
    (row,) = check.check(["vt"], [20], 1, tokenizer)
    assert "has no room" in row.faults[0]
    assert "FAILED: task variable_tracking" in check.line(row)
    with pytest.raises(DataError, match="unknown RULER task 'vtt'"):
        list(check.check(["vtt"], [900], 1, tokenizer))


def test_the_command_prints_a_table_and_fails_where_a_sample_does(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "check", "vt", "fwe", "--lengths", "900", "--model", str(tiny_model)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].split()[:4] == ["task", "asked", "made", "+1"]
    assert [line.split()[:2] for line in out[1:]] == [["vt", "900"], ["fwe", "900"]]
    assert main(["tasks", "check", "vt", "--lengths", "20", "900", "--model", str(tiny_model)]) == 2
    shown = capsys.readouterr()
    assert "FAILED" in shown.out
    assert "1 samples do not verify" in shown.err
    assert main(["tasks", "list"]) == 0
    assert "squad              qa_1 " in capsys.readouterr().out
