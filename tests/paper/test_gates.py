"""Tables and figures of gates: the right cells, made again byte for byte, and what was not run said so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_gates import make, several
from fake_training import lines, rollout, step

from pimem import config
from pimem.errors import DataError
from pimem.paper import gate_figures, gate_tables, gate_training, gate_versions
from pimem.paper import training_records as records
from pimem.paper.gate_tables import Measured
from pimem.paper.tables import Absent
from pimem.training import launch, spec

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "11_gates.py"
AT = {"task": "hotpotqa", "length": 50, "within": 0.2}


@pytest.fixture(scope="module")
def study() -> Measured:
    return Measured(*several(), models=("untrained", "trained"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "experiments" / "profiles").mkdir(parents=True)
    monkeypatch.setenv("PIMEM_ROOT", str(tmp_path))
    return tmp_path


def trained(folder: Path, alpha: float | None, right: float) -> records.Record:
    """A run of GRU-Mem whose update gates are right with this share."""
    logged = {"pimem/part/step": 2 * right - 1, "pimem/part/exit": -0.2, "pimem/part/format": 0.9, "pimem/accuracy": 0.5}
    lines(folder / "trajectories.jsonl", [rollout(s, "q", 0, 1.0, 3, method="gru_mem") for s in (1, 2)])
    lines(folder / "steps.jsonl", [step(s, **logged, **{"pimem/turns": 4.0}) for s in (1, 2)])
    train = spec.load(launch.find("gru_mem_qwen2.5_7b"), {} if alpha is None else {"reward.alpha": alpha})
    (folder / "run.json").write_text(json.dumps({"spec": config.as_dict(train), "model": "/home/someone/model"}))
    return records.distil(folder)


def two(**status: Any) -> Measured:
    """MemAgent and GRU-Mem on two samples; the gate ends the reading of one at once."""
    asked = {"s0": (("yes end",), (0,)), "s1": (("yes continue", "no continue", "no end"), (0,))}
    a, b = make({name: (("",) * 4, gold) for name, (_, gold) in asked.items()}, 4, method="mem_agent", run="mem000000000")
    c, d = make(asked, 4, status=status)
    return Measured(pd.concat([a, c], ignore_index=True), pd.concat([b, d], ignore_index=True))


def test_score_time_and_what_was_read_stand_side_by_side() -> None:
    sheet = gate_tables.score_and_time(two(), version="v")
    ours = sheet.cells.set_index("method")
    assert ours["value"].to_dict() == {"mem_agent": 50.0, "gru_mem": 50.0}
    assert ours["seconds"].to_dict() == {"mem_agent": 4.5, "gru_mem": 2.5}
    assert ours.loc["gru_mem", "speed_up"] == pytest.approx(9 / 5)
    assert ours["steps"].to_dict() == {"mem_agent": 4.0, "gru_mem": 2.0}
    assert ours["prompt_tokens"].to_dict() == {"mem_agent": 500.0, "gru_mem": 300.0}
    assert sheet.shown["Faster than MemAgent"].tolist() == ["", "1.80 x"]
    assert sheet.shown["Evidence"].tolist() == ["first 20 %"] * 2
    assert any("ranks no method" in note for note in sheet.notes)


def test_exits_are_shares_of_all_samples_failed_ones_included() -> None:
    cell = gate_tables.exits(two(s1="failed"), version="v").cells.iloc[0]
    assert cell[["exact", "early", "late", "never", "failed"]].tolist() == [50.0, 0.0, 0.0, 0.0, 50.0]
    assert (cell["deviation"], cell["deviation_absolute"]) == (0.0, 0.0)
    cell = gate_tables.exits(two(), version="v").cells.iloc[0]
    assert cell[["exact", "late"]].tolist() == [50.0, 50.0]
    assert (cell["deviation"], cell["deviation_absolute"]) == (1.0, 1.0)


def test_by_task_has_the_papers_columns_and_says_what_was_not_run(study: Measured) -> None:
    sheet = gate_tables.by_task(study, version="v")
    assert list(sheet.shown) == ["Model", "Method", *gate_tables.TASKS.values()]
    assert set(sheet.shown["SK-1"]) == {"not run"}
    assert "not run" not in set(sheet.shown["HQA"])
    assert set(sheet.cells["lengths"]) == {"50 100"}
    one = study.samples[(study.samples["model"] == "trained") & (study.samples["within"] == 1)]
    one = one[(one["method"] == "gru_mem") & (one["variant"] == "")]
    wanted = one.groupby("length")["score"].mean().mean() * 100
    at = ["model", "method", "variant"]
    assert sheet.cells.set_index(at).loc[("trained", "gru_mem", ""), "value"] == pytest.approx(wanted)
    order = [("mem_agent", ""), ("gru_mem", "exit gate off"), ("gru_mem", "")]
    assert sheet.cells[at].to_numpy().tolist() == [[model, *row] for model in ("untrained", "trained") for row in order]
    with pytest.raises(Absent, match="anywhere"):
        gate_tables.by_task(two(), version="v")


def test_models_are_paired_by_sample_and_one_model_is_no_comparison(study: Measured) -> None:
    sheet = gate_training.models(study, version="v")
    assert set(sheet.cells["against"]) == {"untrained"}
    assert set(sheet.cells["n"]) == {24}
    assert len(sheet.cells) == 12
    with pytest.raises(Absent, match="only m was run"):
        gate_training.models(two(), version="v")


def test_alpha_is_read_from_the_runs_and_what_the_paper_has_besides_is_not_run(tmp_path: Path) -> None:
    runs = (trained(tmp_path / "half", 0.5, 0.75), trained(tmp_path / "usual", None, 0.9))
    made_of = Measured(*make({"s0": (("yes end",), (0,))}, 4), runs)
    sheet = gate_training.alphas(made_of, version="v")
    assert sheet.cells["alpha"].tolist() == [0.9, 0.5]
    assert sheet.cells["update"].tolist() == [pytest.approx(90), pytest.approx(75)]
    assert sheet.cells["format"].tolist() == [pytest.approx(90)] * 2
    assert sheet.shown["alpha"].tolist() == ["0.9", "0.5", "1"]
    assert sheet.shown["Steps"].tolist()[-1] == "not run"
    _, data = gate_training.alpha_curves(made_of, version="v")
    assert len(data) == 4
    with pytest.raises(Absent, match="no run of reinforcement learning of GRU-Mem"):
        gate_training.alphas(two(), version="v")


def test_the_printed_numbers_keep_their_digits_and_stand_alone() -> None:
    shown = gate_tables.printed(two(), version="v").shown.set_index(["Model", "Method", "Evidence"])
    row = shown.loc[("Qwen2.5-7B-Instruct", "GRU-Mem w EG", "anywhere")]
    assert row["HQA"] == "76.37 %, 209 s"
    assert row["MV"] == ""
    assert shown.loc[("Qwen2.5-7B-Instruct", "MemAgent", "first 20 %"), "896K"] == "1691.93 s"


def test_figures_are_drawn_from_the_tables_cells(study: Measured) -> None:
    _, sizes = gate_figures.memory(study, version="v")
    assert set(sizes["length"]) == {100}
    _, shares = gate_figures.exits(study, version="v")
    assert shares[list(gate_figures.EXITS)].sum(axis=1).tolist() == [pytest.approx(100)] * len(shares)
    _, right = gate_figures.updates(study, version="v")
    assert right.equals(gate_tables.updates(study, version="v").cells)


def test_without_gru_mem_there_are_no_gates() -> None:
    lonely = Measured(*make({"s0": (("", ""), (0,))}, 2, method="mem_agent"))
    for build in (gate_tables.updates, gate_tables.exits, gate_figures.updates, gate_figures.exits):
        with pytest.raises(Absent, match="no run of GRU-Mem"):
            build(lonely, version="v")


def test_a_version_is_found_again_and_made_again_byte_for_byte(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_versions, "FIGURES", {"gates_exit_positions": gate_figures.exits})
    made_of = two()
    folders = gate_versions.publish(made_of.scores, made_of.steps)
    assert folders["tables"].parent == root / "paper_tables" / "t_gates"
    made = {p: p.read_bytes() for f in folders.values() for p in f.iterdir() if p.name != "manifest.json"}
    wanted = {"gates_exits.md", "gates_exits.csv", "gates_exits.tex", "gates_exit_positions.pdf", "steps.csv"}
    assert wanted <= {p.name for p in made}
    assert gate_versions.publish(made_of.scores, made_of.steps) == folders
    for path in made:
        if path.name not in ("scores.csv", "steps.csv"):
            path.unlink()
    assert gate_versions.is_one("t_gates")
    assert gate_versions.is_one(folders["tables"])
    gate_versions.rebuild("t_gates")
    assert {p: p.read_bytes() for p in made} == made
    about = json.loads((folders["tables"] / "manifest.json").read_text())
    assert "only m was run" in about["skipped"]["gates_models"]
    steps = folders["tables"] / "steps.csv"
    steps.write_text(steps.read_text().replace("yes", "no"))
    with pytest.raises(DataError, match="not the one its manifest"):
        gate_versions.rebuild(folders["tables"])
    assert not gate_versions.is_one("t")
    with pytest.raises(DataError, match="no profile with a version of gates"):
        gate_versions.rebuild("t")


def test_the_notebook_shows_everything() -> None:
    shown = set(re.findall(r'gates\.show\("(\w+)"\)', NOTEBOOK.read_text(encoding="utf-8")))
    assert shown == {*gate_versions.SHEETS, *gate_versions.FIGURES}
