"""From a profile to tables and figures in one process, with a real tiny model; and a notebook through papermill."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import yaml

from pimem import notebooks, paths
from pimem.errors import ConfigError, DataError
from pimem.gates import Gates
from pimem.paper import gate_versions, versions
from pimem.profiles import Profile
from pimem.report import Report
from pimem.study import Study

TERSE = {
    "name": "terse",
    "version": "1",
    "answer_form": "plain",
    "phases": {
        "read": "{question} {memory} {chunk}",
        "merge": "{question} {memory} {observations}",
        "update": "{question} {memory} {chunk}",
        "gated_update": "{question} {memory} {chunk}",
        "final": "{question} {memory}",
        "answer": "{question} {context}",
        "retrieved": "{question} {context}",
    },
}


@pytest.fixture
def profile(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a profile over a repository of its own; returns the function that does."""
    root = tmp_path / "repository"
    shutil.copytree(paths.root() / "notebooks", root / "notebooks")
    (root / "experiments" / "profiles").mkdir(parents=True)
    (root / "log.txt").write_text("\n".join(f"Day {n}: rain." for n in range(150)))
    prompts = root / "terse"
    prompts.mkdir()
    (prompts / "prompts.yaml").write_text(yaml.safe_dump(TERSE))
    for name, value in (("PIMEM_ROOT", root), ("PIMEM_RUNS", root / "runs"), ("PIMEM_HOME", tmp_path / "home")):
        monkeypatch.setenv(name, str(value))
    budgets = {"chunk_tokens": 500, "memory_tokens": 8, "answer_tokens": 8}

    def write(kind: str = "transformers") -> str:
        content = {
            "name": "tiny",
            "about": "a test",
            "model": {"path": str(tiny_model), "window": 1500},
            "engine": {"kind": kind, "device": "cpu"} if kind != "scripted" else {"kind": kind},
            "prompts": str(prompts),
            "sampling": {"temperature": 0.0, "top_p": 1.0},
            "methods": {
                "mem_agent": budgets,
                "pi_mem": {**budgets, "read_tokens": 8, "max_turns": 2},
                "gru_mem": budgets,
            },
            "variants": {"reads_on": {"method": "gru_mem", "label": "exit gate off", "fields": {"exit_gate": False}}},
            "notebooks": {
                "00_quickstart": {"question": "When?", "files": ["log.txt"]},
                "05_evidence": {
                    "tasks": {"niah_multivalue": {"haystack": "noise"}},
                    "lengths": [1200],
                    "samples": 2,
                    "methods": ["mem_agent", "pi_mem"],
                },
                "11_gates": {
                    "tasks": {"niah_single_1": {}},
                    "lengths": [1200],
                    "evidence_within": [1.0, 0.2],
                    "samples": 2,
                    "methods": ["mem_agent", "reads_on", "gru_mem"],
                },
                "10_paper": {},
            },
        }
        path = root / "experiments" / "profiles" / "tiny.yaml"
        path.write_text(yaml.safe_dump(content))
        return "tiny"

    return write


def test_a_study_runs_scores_and_reports_and_the_second_time_calls_nothing(
    profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions.figures, "FIGURES", {})
    name = profile()
    study = Study("05_evidence", name)
    assert study.plan()["method"].tolist() == ["mem_agent", "pi_mem"]
    ran = study.run()
    assert ran["answered"].tolist() == [2, 2]
    assert ran["failed"].tolist() == [0, 0]
    assert all(ran["calls"] >= 2 * 4)
    scores = study.scores()
    assert len(scores) == 4
    assert set(scores["metric"]) == {"multi_recall"}
    assert study.summary(scores)["n"].tolist() == [2, 2]
    assert study.checks().loc[("niah_multivalue", 1)].to_numpy().sum() == sum(
        scores.loc[scores["method"] == "pi_mem", "chunks"]
    )
    assert "question  " in study.example("pi_mem")
    lost = study.causes()
    assert lost.sum(axis=1).to_dict() == {("niah_multivalue", 1200, "mem_agent"): 2, ("niah_multivalue", 1200, "pi_mem"): 2}
    assert lost["right"].sum() == (scores["multi_recall"] == 1).sum()

    again = Study("05_evidence", name)
    assert again.run()["calls"].tolist() == [0, 0]
    assert again.scores().equals(scores)

    report = Report(name)
    assert report.scores.equals(scores)
    made = {p.name for p in report.version["tables"].iterdir()}
    assert {"scores.csv", "table4_coverage.csv", "table4_coverage.md", "table4_coverage.tex", "manifest.json"} <= made
    assert "Evidence in the final memory" in report.show("table4_coverage").data
    with pytest.raises(DataError, match="did you mean 'table4_coverage'"):
        report.show("table4_coverag")
    before = (report.version["tables"] / "table4_coverage.csv").read_bytes()
    versions.rebuild(report.version["tables"])
    assert (report.version["tables"] / "table4_coverage.csv").read_bytes() == before


def test_gates_are_measured_from_the_traces_and_have_a_version_of_their_own(
    profile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_versions, "FIGURES", {})
    gates = Gates(profile(), models={"here": Profile.load("tiny").model.path})
    plan = gates.plan()
    assert plan["evidence_within"].tolist() == [1.0] * 3 + [0.2] * 3
    assert plan["method"].tolist() == ["mem_agent", "gru_mem (exit gate off)", "gru_mem"] * 2
    assert set(plan["model"]) == {"here"}
    with pytest.raises(DataError, match="call publish"):
        gates.show("gates_exits")
    cells = gates.publish()
    assert cells["n"].tolist() == [2] * 6
    steps = gates.steps()
    assert steps.groupby("run")["sample"].nunique().tolist() == [2] * 6
    early = steps[steps["within"] == 0.2]
    assert set(early["last_evidence"]) == {1}
    assert (steps["steps_possible"] == 3).all()
    gated = steps[(steps["step"] > 0) & (steps["gate"] != "")]
    assert set(gated["gate"]) == {"malformed"}
    assert "never" in gates.show("gates_exits").data
    assert "only here was run" in gates.show("gates_models").data
    assert "tiny_gates" in gates.folders()
    assert gate_versions.is_one("tiny_gates")
    with pytest.raises(ConfigError, match="11_gates: pi_mem does not read chunk after chunk"):
        Gates("tiny", methods=["pi_mem"])
    with pytest.raises(DataError, match="no table or figure is made from what it says"):
        Gates(profile("scripted")).publish()


def test_more_samples_cost_only_the_new_ones(profile: Any) -> None:
    name = profile()
    first = Study("05_evidence", name, samples=1, methods=["mem_agent"]).run()
    more = Study("05_evidence", name, samples=2, methods=["mem_agent"]).run()
    assert (first["before"].item(), more["before"].item()) == (0, 1)
    assert more["calls"].item() > 0
    with pytest.raises(ConfigError, match="did you mean 'samples'"):
        Study("05_evidence", name, sample=1)


@pytest.mark.slow
def test_notebooks_side_by_side_do_not_meet(profile: Any, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = dataclasses.replace(Profile.load(profile("scripted")), parallel=2)
    assert notebooks.run(loaded, "tiny", only=["00_quickstart", "05_evidence"]) == 0
    captured = capfd.readouterr()
    assert {line.split()[0] for line in captured.out.splitlines() if " done in " in line} == {"00_quickstart", "05_evidence"}
    assert "Invalid" not in captured.err


def test_a_killed_notebook_process_is_said(
    profile: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = dataclasses.replace(Profile.load(profile("scripted")), parallel=2)

    class Killed(ThreadPoolExecutor):
        def __init__(self, count: int, _: object):
            super().__init__(count)

        def submit(self, *_: object) -> Any:  # type: ignore[override]
            done: Future[object] = Future()
            done.set_exception(BrokenProcessPool("a process was terminated abruptly"))
            return done

    monkeypatch.setattr(notebooks, "ProcessPoolExecutor", Killed)
    assert notebooks.run(loaded, "tiny", only=["00_quickstart", "05_evidence"]) == 1
    assert "was killed, perhaps for want of memory" in capsys.readouterr().err


def test_folders_named_from_here_mean_the_same_in_a_kernel(
    profile: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = Profile.load(profile("scripted"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIMEM_RUNS", "relative")
    assert notebooks.run(loaded, "tiny", dry_run=True) == 0
    assert os.environ["PIMEM_RUNS"] == str(tmp_path / "relative")


def test_what_the_scripted_engine_says_is_never_reported(profile: Any) -> None:
    name = profile("scripted")
    assert Study("05_evidence", name).run()["answered"].tolist() == [2, 2]
    with pytest.raises(DataError, match="scripted engine"):
        Report(name)


def test_notebooks_run_through_papermill_and_a_failure_is_named(profile: Any, capfd: pytest.CaptureFixture[str]) -> None:
    loaded = Profile.load(profile("scripted"))
    assert notebooks.run(loaded, "tiny", only=["00_quickstart"]) == 0
    done = json.loads(notebooks.executed(loaded, "00_quickstart").read_text())
    said = "".join(t for c in done["cells"] for o in c.get("outputs", []) for t in o.get("text", []))
    assert "question  When?" in said
    assert done["metadata"]["papermill"]["parameters"] == {"profile": "tiny"}
    assert notebooks.run(loaded, "tiny", only=["10_paper"]) == 1
    assert "10_paper failed" in (err := capfd.readouterr().err)
    assert "DataError: profile tiny: the scripted engine" in err
    with pytest.raises(ConfigError, match="did you mean '10_paper'"):
        notebooks.run(loaded, "tiny", only=["10_papers"])
    folder = notebooks.executed(loaded, "00_quickstart").parent
    shutil.rmtree(folder)
    folder.write_text("in the way")
    assert notebooks.run(loaded, "tiny", only=["00_quickstart"]) == 1
    assert "00_quickstart failed after 0 s: its executed copy could not be written" in capfd.readouterr().err
    assert notebooks.run(loaded, "tiny", dry_run=True) == 0
    assert "niah_multivalue" in capfd.readouterr().out
