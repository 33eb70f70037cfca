"""What the gates of a recurrent method did, step by step, from traces made by hand."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_gates import CHUNK, joined, make, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from pimem.errors import DataError
from pimem.paper import gate_steps
from pimem.records import Evidence, Sample


def sample(*chunks: int) -> Sample:
    evidence = tuple(Evidence(CHUNK * c + 3, CHUNK * c + 5, "gold") for c in chunks)
    return Sample("s0", "c0", "Who?", ("Ann",), np.zeros(0, np.uint32), evidence)


def rows(one: Sample, *steps: str, chunks: int = 4) -> pd.DataFrame:
    made = gate_steps.steps_of(one, trace("s0", steps, chunks), CHUNK, len, run="r", within=0.2)
    return gate_steps.validate(pd.DataFrame(made), "test")


def test_a_step_says_what_its_chunk_holds_what_its_gates_said_and_what_it_cost() -> None:
    made = rows(sample(1, 2), "no continue", "yes continue", "yes end")
    assert made[["step", "evidence", "gate", "exit"]].to_numpy().tolist() == [
        [0, 0, "", ""],
        [1, 0, "no", "continue"],
        [2, 1, "yes", "continue"],
        [3, 1, "yes", "end"],
    ]
    assert made["memory_tokens"].tolist() == [20, 0, 10, 20]
    assert set(made["last_evidence"]) == {3}
    assert set(made["steps_possible"]) == {4}
    assert made["seconds"].tolist() == [0.5, 1.0, 1.0, 1.0]
    assert made["generated_tokens"].tolist() == [3, 7, 7, 7]


def test_evidence_across_an_edge_lies_in_both_chunks() -> None:
    across = Sample("s0", "c0", "Who?", ("Ann",), np.zeros(0, np.uint32), (Evidence(CHUNK - 1, CHUNK + 1, "gold"),))
    assert rows(across, "yes continue", "yes continue", "no end")["evidence"].tolist() == [0, 1, 1, 0]
    with pytest.raises(DataError, match="s0 has no evidence positions"):
        rows(sample(), "no continue")


@pytest.mark.parametrize(
    ("steps", "kind", "deviation"),
    [
        (("yes continue", "yes end"), "exact", 0),
        (("yes end",), "early", -1),
        (("yes continue", "no continue", "no end"), "late", 1),
        (("yes continue", "yes continue", "no continue", "no continue"), "never", 2),
        (("yes continue", "malformed malformed", "no end"), "late", 1),
        (("yes continue", "yes end", "no continue", "no end"), "exact", 0),
        (("yes continue", "failed failed"), "failed", None),
    ],
)
def test_an_exit_is_exact_early_late_or_none(steps: tuple[str, ...], kind: str, deviation: int | None) -> None:
    exits = gate_steps.exits(joined({"s0": (steps, (0, 1))}, chunks=4))
    assert exits["kind"].tolist() == [kind]
    assert exits["deviation"].isna().all() if deviation is None else exits["deviation"].tolist() == [deviation]


def test_the_update_gate_is_judged_by_kind_of_chunk_and_an_unreadable_one_is_wrong() -> None:
    asked = {
        "s0": (("yes continue", "no continue", "yes continue", "no end"), (0, 1)),
        "s1": (("malformed malformed", "yes continue", "no continue", "failed failed"), (1,)),
    }
    found = gate_steps.updates(joined(asked, chunks=4, status={"s1": "answered"}))
    by = found.set_index("evidence")
    assert by.loc[1, "value"] == pytest.approx(200 / 3)
    assert by.loc[0, "value"] == pytest.approx(50)
    assert by["n"].to_dict() == {1: 3, 0: 4}
    assert by["malformed"].to_dict() == {1: 0, 0: 1}
    assert by["failed"].to_dict() == {1: 0, 0: 1}
    assert by.loc[1, "low"] <= by.loc[1, "value"] <= by.loc[1, "high"]


def test_memory_is_averaged_over_the_samples_that_come_to_a_step() -> None:
    sizes = gate_steps.memory(joined({"s0": (("yes continue", "yes end"), (1,)), "s1": (("no continue",) * 4, (3,))}, chunks=4))
    assert sizes["step"].tolist() == [1, 2, 3, 4]
    assert sizes["value"].tolist() == [5.0, 10.0, 0.0, 0.0]
    assert sizes["n"].tolist() == [2, 2, 1, 1]
    assert sizes["most"].tolist() == [10, 20, 0, 0]


def test_a_sample_that_failed_before_its_first_call_stays_in_every_denominator() -> None:
    both = joined({"s0": (("yes end",), (0,)), "s1": ((), (0,))}, chunks=4, status={"s1": "failed"})
    assert gate_steps.exits(both)["kind"].tolist() == ["exact", "failed"]
    spent = gate_steps.samples(both)
    assert spent["steps"].tolist() == [1, 0]
    assert spent["seconds"].tolist() == [1.5, 0.0]


@functools.cache
def two_samples() -> tuple[pd.DataFrame, pd.DataFrame]:
    return make({"s0": (("yes continue", "no continue", "no end"), (0, 1)), "s1": (("no continue",) * 4, (3,))}, chunks=4)


@settings(deadline=None, max_examples=15)
@given(order=st.permutations(range(9)))
def test_the_order_of_rows_changes_nothing(order: list[int]) -> None:
    _, steps = two_samples()
    assert gate_steps.validate(steps.iloc[order], "test").equals(steps)


def test_steps_survive_their_file_and_damage_is_named(tmp_path: Path) -> None:
    scores, steps = make({"s0": (("yes end",), (0,))}, chunks=4)
    path = gate_steps.write(steps, tmp_path / "steps.csv")
    assert gate_steps.read(path).equals(steps)
    text = path.read_text()
    for old, new, says in (
        ("yes", "maybe", "unknown gate 'maybe'"),
        ("end", "stop", "unknown exit 'stop'"),
        ("steps_possible", "possible", "columns missing: steps_possible"),
        ("0.2,0,", "0.2,-1,", "'step' has a value that is missing or below 0"),
        ("0.2,0,", "0.2,x,", "'step' holds something that is not a number"),
        ("0.2,0,", "0.2,1,", "step 1 of sample s0 of run run000000000 stands twice"),
    ):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(DataError, match=says):
            gate_steps.read(path)
    with pytest.raises(DataError, match="no such file"):
        gate_steps.read(tmp_path / "other.csv")
    with pytest.raises(DataError, match="sample s0 of run run000000000 have no score"):
        gate_steps.join(scores.assign(sample="other"), steps)
