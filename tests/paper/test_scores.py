from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pimem.config import PiMemSpec, RunSpec, TaskSpec
from pimem.errors import DataError, StoreError
from pimem.paper.scores import COLUMNS, collect, combine, primary_scores, read, validate, write
from pimem.records import Call, CallKey, Completion, Sample, Sampling, Trace, Turn

SPEC = RunSpec(method=PiMemSpec(), task=TaskSpec(name="niah_multivalue", length=2048, seed=7))
HOW = {"run": "123e45", "profile": "fixture", "form": "plain", "metric": "multi_recall", "unit": "tokens"}


def call(sample: str, phase: str, index: int, check: str | None = None) -> Call:
    completion = None if check == "failed" else Completion("t", "stop", prompt_tokens=100, generated_tokens=7)
    key = CallKey(sample, 1, phase, index)  # type: ignore[arg-type]
    return Call(key, "h", Sampling(10), completion, check)  # type: ignore[arg-type]


def trace(sample: str, status: str = "answered") -> Trace:
    reads = [call(sample, "read", i, check) for i, check in enumerate(("yes", "no", "malformed", "failed"))]
    turn = Turn(1, "", "11 22", reads=reads, merges=[call(sample, "merge", 0)])
    out = Trace(sample, "pi_mem", "q", status, response="11", memory="11 22", turns=[turn])  # type: ignore[arg-type]
    out.last, out.turns_used, out.converged, out.context_tokens, out.chunks = call(sample, "final", 0), 2, True, 2000, 4
    return out


def sample(name: str) -> Sample:
    return Sample(name, f"c{name}", "q", ("11", "22", "33", "44"), np.zeros(3, np.uint32))


def test_a_trace_becomes_a_row() -> None:
    frame = collect([trace("b"), trace("a", "failed")], [sample("a"), sample("b")], SPEC, **HOW)
    assert list(frame.columns) == list(COLUMNS)
    assert frame["sample"].tolist() == ["a", "b"]
    row = frame.iloc[1]
    assert (row["multi_recall"], row["coverage"], row["cluster"], row["run"], row["seed"]) == (0.25, 0.5, "cb", "123e45", 7)
    assert (row["reads"], row["reads_yes"], row["reads_malformed"], row["merges"], row["calls"]) == (4, 1, 1, 1, 6)
    assert (row["prompt_tokens"], row["generated_tokens"], row["turns"], row["converged"]) == (500, 35, 2, 1)
    assert np.isnan(row["sub_em"])
    assert frame.iloc[0][["status", "multi_recall", "coverage"]].tolist() == ["failed", 0, 0]


def test_traces_and_samples_must_match() -> None:
    with pytest.raises(DataError, match="1 samples have no trace, first 'b'"):
        collect([trace("a")], [sample("a"), sample("b")], SPEC, **HOW)
    with pytest.raises(DataError, match="'z'"):
        collect([trace("z")], [sample("a")], SPEC, **HOW)
    with pytest.raises(DataError, match="came twice"):
        collect([trace("a"), trace("a")], [sample("a")], SPEC, **HOW)
    with pytest.raises(DataError, match="no scores"):
        collect([], [], SPEC, **HOW)


def test_a_row_says_which_groups_its_sample_counts_to() -> None:
    of_two = sample("a")
    of_two.meta |= {"length": "long", "difficulty": "hard", "tokens": 300}
    frame = collect([trace("a"), trace("b")], [of_two, sample("b")], SPEC, **HOW)
    assert frame["groups"].tolist() == ["difficulty=hard;length=long", ""]


def test_files_from_before_there_were_groups_are_read(scores: pd.DataFrame, tmp_path: Path) -> None:
    scores.drop(columns=["groups", "accuracy", "accuracy_released"]).to_csv(tmp_path / "old.csv", index=False)
    pd.testing.assert_frame_equal(read(tmp_path / "old.csv"), scores)


def test_scores_survive_the_file_exactly(scores: pd.DataFrame, tmp_path: Path) -> None:
    scores.loc[scores["run"] == scores["run"][0], "run"] = "00123e45"
    scores.loc[0, "f1"] = 2 / 3
    first = write(scores, tmp_path / "scores.csv").read_bytes()
    back = read(tmp_path / "scores.csv")
    pd.testing.assert_frame_equal(back, validate(scores, "scores"))
    assert write(back.sample(frac=1, random_state=1), tmp_path / "again.csv").read_bytes() == first
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_primary_score_follows_each_row(scores: pd.DataFrame, niah_scores: pd.DataFrame) -> None:
    both = combine([scores, niah_scores])
    primary = primary_scores(both)
    niah = both["task"] == "niah_multivalue"
    assert (primary[niah] == both.loc[niah, "multi_recall"]).all()
    assert (primary[~niah] == both.loc[~niah, "sub_em"]).all()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("sub_em", 1.5, "'sub_em' is out of range"),
        ("calls", -1, "'calls' is out of range"),
        ("sub_em", None, "has no sub_em"),
        ("cluster", "", "'cluster' has an empty value"),
        ("status", "done", "unknown status 'done'"),
        ("metric", "bleu", "unknown metric 'bleu'"),
        ("sample", "q001", "'q001' of run 0me04e9fc9d3 stands twice"),
        ("length", 51, "names more than one"),
    ],
)
def test_impossible_scores_are_refused(scores: pd.DataFrame, column: str, value: object, message: str) -> None:
    scores[column] = scores[column].astype(object)
    scores.loc[0, column] = value
    with pytest.raises(DataError, match=message):
        validate(scores, "here")


def test_damaged_files_are_refused(scores: pd.DataFrame, tmp_path: Path) -> None:
    path = write(scores, tmp_path / "scores.csv")
    text = path.read_text()
    path.write_text(text.replace(",answered,", ",answered,,", 1))
    with pytest.raises(DataError, match=r"scores\.csv"):
        read(path)
    path.write_text(text.replace(",7000,", ",many,", 1))
    with pytest.raises(DataError, match="'context_tokens' holds something that is not a number"):
        read(path)
    path.write_text(text.replace(",7000,", ",7000.5,", 1))
    with pytest.raises(DataError, match=r"'context_tokens' holds 7000\.5, which is no whole number"):
        read(path)
    path.write_text("")
    with pytest.raises(DataError, match="not a csv"):
        read(path)
    path.write_text(text.partition("\n")[0].replace("cluster,", ""))
    with pytest.raises(DataError, match="columns missing: cluster"):
        read(path)
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "absent.csv")
    with pytest.raises(DataError, match="not a csv"):
        read(tmp_path)


def test_a_run_in_two_frames_is_refused(scores: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="stands twice"):
        combine([scores, scores])
    with pytest.raises(DataError, match="no scores"):
        combine([])


def test_an_interrupted_write_leaves_the_old_file(
    scores: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(scores, tmp_path / "scores.csv")
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StoreError, match="No space"):
        write(scores, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["scores.csv"]
