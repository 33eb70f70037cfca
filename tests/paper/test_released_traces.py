"""The authors' released traces, as their scripts write them: a sample made by hand, not one of their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pimem import cli
from pimem.errors import DataError
from pimem.paper import released_traces, scores
from pimem.paper.released_traces import CLIPPED, NO_MEMORY

FOUND, NOTHING = "<check>yes</check>\n- Ann founded Brest.", "<check>no</check>"


def one(turn: int, before: str, after: str, *responses: str | None) -> dict[str, Any]:
    """A pass over as many chunks as there are responses; as released, what has no negative tag is new."""
    chunks = [
        {
            "chunk_index": i,
            "chunk": "text",
            "request": "text",
            "response": said,
            "has_new_info": said is not None and NOTHING not in said.lower(),
        }
        for i, said in enumerate(responses)
    ]
    merged = None if before == after else {"memories": "m", "request": "r", "response": after}
    return {
        "pass_num": turn,
        "global_memory_before": before,
        "chunk_phase": {"chunks": chunks},
        "new_memories": [],
        "merge_phase": merged,
        "global_memory_after": after,
    }


def record(number: int, response: str, memory: str = "Ann founded Brest.", **other: Any) -> dict[str, Any]:
    passes = [one(0, NO_MEMORY, memory, FOUND, NOTHING, None, "perhaps"), one(1, memory, memory, *[NOTHING] * 4)]
    return {
        "_id": number,
        "index": 40 + number,
        "input": f"Who founded place {number}?",
        "answers": ["Ann", "Ann B."],
        "num_docs": 50,
        "response": response,
        "answer": "Ann",
        "pred": "Ann",
        "judge_f1": 1.0,
        "judge_em": 1.0,
        "judge_sub_em": 1.0 if "Ann" in response else 0,
        "parallel_passes_used": 2,
        "parallel_converged": True,
        "parallel_max_passes": 3,
        "trace": {
            "_id": number,
            "context_token_len_before_truncation": 7012,
            "num_chunks": 4,
            "passes": passes,
            "final": {"request": "r", "memory": memory, "response": response},
        },
        **other,
    }


def put(folder: Path, place: str, *records: dict[str, Any], indent: int | None = 4) -> Path:
    path = folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, indent=indent) + "\n" for r in records), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three of four answered: right, wrong, and right with a memory that was clipped."""
    clipped = f"Somebody\n\n{CLIPPED}\n\n"
    put(
        tmp_path / "PI-Mem-7B-trace",
        "ruler_hqa_50/pi-mem-trained.jsonl",
        record(0, "So \\boxed{Ann}"),
        record(3, "\\boxed{Bob}"),
        record(1, "\\boxed{ann b}", clipped),
    )
    return tmp_path / "PI-Mem-7B-trace"


@pytest.mark.parametrize("indent", [4, None])
def test_records_are_scored_by_our_metrics_and_dropped_samples_come_back_as_failed(folder: Path, indent: int | None) -> None:
    path = folder / "ruler_hqa_50" / "pi-mem-trained.jsonl"
    kept = list(released_traces._records(path))
    put(folder, "ruler_hqa_50/pi-mem-trained.jsonl", *kept, indent=indent)
    found = released_traces.read_folder(folder, "PI-Mem-7B")
    by = found.scores.set_index("sample")
    assert by["status"].to_dict() == {
        "hotpotqa-50-0": "answered",
        "hotpotqa-50-1": "answered",
        "hotpotqa-50-2": "failed",
        "hotpotqa-50-3": "answered",
    }
    assert by["sub_em"].tolist() == [1, 1, 0, 0]
    assert by["em"].tolist() == [1, 1, 0, 0]
    assert by["turns"].tolist() == [2, 2, 0, 2]
    assert by["chunks"].tolist() == [4, 4, 0, 4]
    assert by.loc["hotpotqa-50-0", ["reads", "reads_yes", "reads_malformed", "merges", "calls"]].tolist() == [8, 1, 1, 1, 10]
    # A clipped memory may have held what was cut out of it.
    assert by["coverage"].isna().tolist() == [False, True, False, False]
    assert by["coverage"].fillna(-1).tolist() == [1, -1, 0, 1]
    (cell,) = found.cells.to_dict("records")
    assert (cell["samples"], cell["missing"]) == (4, 1)
    assert cell["ours"] == 50
    assert cell["ours_without_missing"] == pytest.approx(200 / 3)
    assert cell["theirs"] == pytest.approx(100 / 3)


def test_the_number_asked_for_may_be_more_than_the_ids_show(folder: Path) -> None:
    assert released_traces.read_folder(folder, "m", samples=8).cells["missing"].item() == 5


def test_other_tasks_methods_and_lengths_stand_beside_one_another(folder: Path) -> None:
    lists = record(0, "\\boxed{11, 12}", answer=["11", "12", "13", "14"])
    del lists["answers"]
    put(folder, "ruler_niah_multivalue_8192/pi-mem-base.jsonl", lists)
    put(folder, "ruler_hqa_100/pi-mem-trained.jsonl", record(0, "\\boxed{Ann}"))
    plain = {k: v for k, v in record(0, "Well, the answer is Ann.").items() if k != "trace" and not k.startswith("parallel")}
    put(folder, "ruler_qa_1_8192/vanilla.jsonl", plain)
    put(folder, "ruler_qa_2_8192/yarn.jsonl", plain)
    put(folder, "ruler_hqa_50/memagent-trained.jsonl", {**plain, "response": "\\boxed{Ann}"})
    found = released_traces.read_folder(folder, "m").scores
    cells = found.groupby(["task", "length", "method", "variant"])[["sub_em", "multi_recall"]].max()
    assert cells.loc[("niah_multivalue", 8192, "pi_mem", "pi-mem-base"), "multi_recall"] == 0.5
    assert cells.loc[("squad", 8192, "vanilla", "vanilla"), "sub_em"] == 1
    assert cells.loc[("hotpotqa", 50, "mem_agent", "memagent-trained"), "sub_em"] == 1
    assert found[found["method"] == "mem_agent"]["coverage"].isna().all()
    questions = found[(found["task"] == "hotpotqa") & (found["status"] == "answered") & found["sample"].str.endswith("-0")]
    assert set(map(tuple, questions[["length", "unit"]].to_numpy())) == {
        (50, "documents"),
        (100, "documents"),
        (8192, "tokens"),
    }
    assert questions.loc[questions["method"] == "yarn", "sub_em"].tolist() == [1]
    assert questions["cluster"].nunique() == 1


def without(name: str) -> dict[str, Any]:
    return {k: v for k, v in record(0, "x").items() if k != name}


@pytest.mark.parametrize(
    ("records", "says"),
    [
        ([], "no records"),
        ([record(0, "x"), record(0, "y")], "_id 0 stands twice"),
        ([without("_id")], "record 1: field '_id' is missing; expected int"),
        ([record(0, "x", _id="0")], "field '_id' is str; expected int"),
        ([without("response")], "_id 0: field 'response' is missing"),
        ([without("trace")], "field 'trace' is missing; expected dict"),
        ([record(0, "x", answers=[])], "the answers must be a list of texts that are not blank"),
        ([record(0, "x", answers=["Ann", " "])], "the answers must be a list"),
        ([record(0, "x", answers="Ann", answer=3)], None),
        ([record(0, "x", parallel_passes_used=True)], "field 'parallel_passes_used' is bool; expected int"),
        ([record(0, "x", parallel_passes_used=3)], "parallel_passes_used is 3 but the trace has 2 passes"),
        ([record(0, "x", trace={"num_chunks": 4})], "trace: field 'context_token_len_before_truncation' is missing"),
        ([[1]], "record 1 is no object but list"),
    ],
)
def test_a_record_of_another_form_is_named(tmp_path: Path, records: list[Any], says: str | None) -> None:
    path = put(tmp_path, "ruler_hqa_50/pi-mem-trained.jsonl", *records)
    if says is None:
        assert len(released_traces.read_folder(tmp_path, "m").scores) == 1
        return
    with pytest.raises(DataError, match="pi-mem-trained") as raised:
        released_traces.read_folder(tmp_path, "m")
    assert says in str(raised.value)
    assert str(path) in str(raised.value)


def test_files_that_cannot_be_told_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        released_traces.read_folder(tmp_path / "x", "m")
    with pytest.raises(DataError, match="no file like ruler_hqa_50"):
        released_traces.read_folder(tmp_path, "m")
    path = put(tmp_path, "ruler_hqa_50/step_80.jsonl", record(0, "\\boxed{Ann}"))
    with pytest.raises(DataError, match="does not tell the method"):
        released_traces.read_folder(tmp_path, "m")
    assert released_traces.read_folder(tmp_path, "m", method="pi_mem").scores["method"].tolist() == ["pi_mem"]
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match="record 1 is not JSON"):
        released_traces.read_folder(tmp_path, "m", method="pi_mem")
    put(tmp_path, "ruler_poems_50/pi-mem.jsonl", record(0, "x"))
    path.unlink()
    with pytest.raises(DataError, match="unknown task 'poems'"):
        released_traces.read_folder(tmp_path, "m")


def test_the_command_writes_scores_and_says_that_nobody_has_checked_it(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert cli.main(["import-traces", str(folder), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "Unverified" in said
    read = scores.read(out / "scores.csv")
    assert (set(read["model"]), set(read["profile"])) == ({"PI-Mem-7B"}, {"released"})
    assert "Unverified" in (out / "released_cells.md").read_text()
    about = json.loads((out / "manifest.json").read_text())
    assert about["verified"] is False
    assert "prompt_tokens" in about["not_recorded"]
    assert list(about["read"]) == ["ruler_hqa_50/pi-mem-trained.jsonl"]
    assert cli.main(["import-traces", str(tmp_path / "nowhere")]) == 2
