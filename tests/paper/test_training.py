"""Records of trainings, and the tables and figures made from them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import fake_training as fake
import numpy as np
import pandas as pd
import pytest
from fake_scores import make_scores

from pimem.errors import DataError, EngineError
from pimem.paper import hyperparameters, training, training_curves, training_runs, training_stages, training_tables
from pimem.paper import scores as score_frames
from pimem.paper import training_records as records
from pimem.paper.tables import Absent
from pimem.paper.training_records import Record

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_train.py"
GOLD = "hotpotqa: gold"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository."""
    (tmp_path / "repository" / "experiments" / "profiles").mkdir(parents=True)
    monkeypatch.setenv("PIMEM_ROOT", str(tmp_path / "repository"))
    return tmp_path / "repository"


@pytest.fixture
def all_kinds(root: Path, tmp_path: Path) -> list[Record]:
    """A base, its cold start, and a run with each turn bonus, kept."""
    fake.judged(tmp_path / "base" / "eval.jsonl", {GOLD: [0, 0, 0, 1]})
    fake.judged(tmp_path / "cold" / "eval.jsonl", {GOLD: [1, 0, 0, 1]})
    fake.history(tmp_path / "cold" / "history.jsonl", [1.0, 0.5, 0.25])
    run, other = fake.reinforcement(tmp_path / "run", 0.2, turns=1), fake.reinforcement(tmp_path / "other", 0.0, seed=1)
    fake.judged(run / "eval.jsonl", {GOLD: [1, 1, 1, 0]})
    for folder, seed in ((tmp_path / "cold", 1), (run, 2)):
        score_frames.write(make_scores((50, 100), n=8, seed=seed), folder / "scores.csv")
    records.keep(records.distil(tmp_path / "base"), "base", title="untrained")
    records.keep(records.distil(tmp_path / "cold"), "cold", after="base")
    records.keep(records.distil(run), "with_bonus", after="cold")
    records.keep(records.distil(other), "without_bonus", after="cold")
    return records.records()


def test_what_is_kept_is_what_was_logged(tmp_path: Path, root: Path) -> None:
    folder = fake.reinforcement(tmp_path / "run", 0.2)
    fake.judged(folder / "eval.jsonl", {GOLD: [1, 0], "random": [1, 1, 0]})
    made = records.distil(folder)
    kept = records.read(records.keep(made, "mini", machine="a card"))
    assert kept.folder == root / "experiments" / "training" / "mini"
    assert kept.trajectories is not None
    assert made.trajectories is not None
    pd.testing.assert_frame_equal(kept.trajectories, made.trajectories, check_dtype=False)
    pd.testing.assert_frame_equal(kept.judged, made.judged, check_dtype=False)
    pd.testing.assert_frame_equal(kept.steps, made.steps)
    assert len(kept.trajectories) == 32
    assert (kept.kind, kept.turn_bonus, kept.about["machine"]) == ("rl", 0.2, "a card")
    assert kept.title == "mini (λ = 0.2)"
    # Folders of the machine it ran on stay there.
    assert "/home" not in (kept.folder / "manifest.json").read_text()


def test_a_torn_last_line_is_left_out_and_a_torn_other_line_is_not(tmp_path: Path) -> None:
    path = fake.reinforcement(tmp_path / "run", 0.2) / "trajectories.jsonl"
    text = path.read_text()
    path.write_text(text[:-40])
    assert len(records.distil(tmp_path / "run").trajectories) == 31
    path.write_text(text[:50] + "\n" + text[50:])
    with pytest.raises(DataError, match="line 1 is not JSON"):
        records.distil(tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accuracy": 1.5}, "accuracy outside"),
        ({"accuracy": None}, "'accuracy' .* not a number"),
        ({"turns": "two"}, "'turns' .* not a number"),
        ({"rows": -1}, "negative count"),
        ({"session": 1}, "stands twice in step 1"),
    ],
)
def test_impossible_trajectories_give_no_number(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    rows = [fake.rollout(1, "q", 0, 1.0, 2) | change, fake.rollout(1, "q", 1, 0.0, 2)]
    fake.lines(tmp_path / "trajectories.jsonl", rows)
    with pytest.raises(DataError, match=message):
        records.distil(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"case": "a", "source": "s", "prompt_tokens": 1, "scores": {"check": 2.0}}, "outside 0..1"),
        ({"case": "a", "source": "s", "prompt_tokens": 1, "scores": {"charm": 1.0}}, "'charm'"),
        ({"case": "a", "source": "s", "prompt_tokens": 1}, "without `case` or `scores`"),
    ],
)
def test_impossible_judgements_give_no_number(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    fake.lines(tmp_path / "eval.jsonl", [row])
    with pytest.raises(DataError, match=message):
        records.distil(tmp_path)


def test_a_folder_without_a_training_and_a_changed_record_are_refused(tmp_path: Path, all_kinds: list[Record]) -> None:
    with pytest.raises(DataError, match="holds no record of a training"):
        records.read(tmp_path)
    path = all_kinds[-1].folder / "trajectories.csv"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(DataError, match=r"trajectories\.csv.*restore it"):
        records.records()


def test_stages_come_in_order_and_know_where_they_began(all_kinds: list[Record]) -> None:
    assert [r.name for r in all_kinds] == ["base", "cold", "with_bonus", "without_bonus"]
    before = [records.predecessor(r, all_kinds) for r in all_kinds]
    assert [r.name if r else None for r in before] == [None, "base", "cold", "cold"]
    assert [r.kind for r in all_kinds] == ["model", "cold_start", "rl", "rl"]


def test_titles_tell_records_apart(all_kinds: list[Record]) -> None:
    records.keep(all_kinds[1], "again", title="untrained")
    with pytest.raises(DataError, match="the title 'untrained'"):
        records.records()


def test_a_method_without_a_check_has_no_curve_of_it(tmp_path: Path) -> None:
    folder = fake.reinforcement(tmp_path / "run", 0.2)
    spec = json.loads((folder / "run.json").read_text())
    spec["spec"]["method"] = {"method": "mem_agent"}
    (folder / "run.json").write_text(json.dumps(spec))
    fake.lines(folder / "trajectories.jsonl", [fake.rollout(1, "q", g, 1.0, 0, checks=0, positive=0) for g in range(2)])
    run = records.distil(folder)
    assert (run.method, run.turn_bonus) == ("mem_agent", None)
    _, data = training_curves.progress([run], version="v")
    assert "positive_share" not in set(data["what"])
    assert {"accuracy", "failed", "actor/kl_loss"} <= set(data["what"])
    with pytest.raises(Absent, match="of PI-Mem"):
        training_curves.turn_reward([run], version="v")


def test_a_curve_is_the_mean_of_its_steps_with_an_interval_over_questions() -> None:
    rows = [(1, "a", 1.0), (1, "a", 1.0), (1, "b", 0.0), (2, "c", 1.0), (2, "c", 0.0), (3, "d", math.nan)]
    frame = pd.DataFrame(rows, columns=["step", "sample", "accuracy"])
    line = training_curves.curve(frame, "accuracy", around=1)
    assert line["step"].tolist() == [1, 2]
    assert line["value"].tolist() == pytest.approx([2 / 3, 1 / 2])
    assert line["smooth"].tolist() == pytest.approx([3 / 5, 3 / 5])
    # By hand: questions' sums of deviations from 0.6 are 0.8, -0.6 and -0.2.
    half = 1.959963984540054 * math.sqrt((0.64 + 0.36 + 0.04) * 3 / 2) / 5
    assert line["low"][0] == pytest.approx(max(0, 0.6 - half))
    assert line["high"][0] == pytest.approx(min(1, 0.6 + half))
    assert (line["n"][0], line["questions"][0]) == (5, 3)
    alone = training_curves.curve(frame[frame["step"] == 2], "accuracy")
    assert (alone["low"][0], alone["high"][0]) == (0, 1)
    shuffled = training_curves.curve(frame.sample(frac=1, random_state=0), "accuracy", around=1)
    pd.testing.assert_frame_equal(shuffled, line)


def test_the_turn_bonus_is_compared_on_the_same_questions(all_kinds: list[Record]) -> None:
    sheet = training_runs.turn_bonus(all_kinds, version="v", share=0.5)
    first, second, gap = sheet.cells.to_dict("records")
    assert (first["turn_bonus"], second["turn_bonus"], gap["stage"]) == (0.2, 0.0, "with_bonus - without_bonus")
    assert first["steps"] == "3 to 4"
    assert (first["turns"], second["turns"], gap["turns"]) == pytest.approx((1.5, 2.5, -1.0))
    assert (first["n"], gap["n"], gap["questions"]) == (16, 8, 8)
    late = [r.trajectories[r.trajectories["step"] > 2]["accuracy"].mean() for r in all_kinds[2:]]
    assert gap["accuracy"] == pytest.approx(late[0] - late[1])


def test_a_run_that_does_not_say_its_bonus_is_not_compared(tmp_path: Path) -> None:
    folder = fake.reinforcement(tmp_path / "run", 0.2)
    (folder / "run.json").unlink()
    with pytest.raises(DataError, match=r"run\.json"):
        training_runs.turn_bonus([records.distil(folder)], version="v")


def test_parts_of_a_step_add_up_to_it() -> None:
    steps = pd.DataFrame([fake.step(1), fake.step(2, **{"timing_s/save_checkpoint": 0.5, "timing_s/agent_loop/slowest": 3.0})])
    parts = training_runs.parts_of(steps)
    assert list(parts) == ["rollouts", "updates", "checkpoint", "other"]
    assert parts.sum(axis=1).tolist() == [8.0, 8.0]
    assert parts["other"].tolist() == [1.0, 0.5]


def test_times_leave_the_first_step_out(tmp_path: Path) -> None:
    folder = fake.reinforcement(tmp_path / "run", 0.2, steps=1)
    slow = fake.step(1, **{"timing_s/gen": 100.0, "timing_s/step": 104.0})
    fake.lines(folder / "steps.jsonl", [slow, fake.step(2), fake.step(3)])
    cells = training_runs.times([records.distil(folder)], version="v").cells.set_index("what")
    assert (cells["value"]["rollouts"], cells["share"]["rollouts"], cells["n"]["rollouts"]) == (4.0, 0.5, 2)
    assert cells["value"]["rows per second, generating"] == 20.0
    assert cells["value"]["tokens per second, whole step"] == 1000.0


def test_cases_are_paired_by_example(all_kinds: list[Record]) -> None:
    sheet = training_tables.cases(all_kinds, version="v")
    at = sheet.cells.set_index(["case", "stage"])
    assert [at.loc[(GOLD, s), "value"] for s in ("base", "cold", "with_bonus")] == [25.0, 50.0, 75.0]
    assert at.loc[(GOLD, "cold"), "how"] == "wilson"
    gap = at.loc[(GOLD, "with_bonus - cold")]
    assert (gap["value"], gap["only_now"], gap["only_before"], gap["tested"]) == (25.0, 2, 1, 4)
    assert gap["p_mcnemar"] == 1.0
    (row,) = sheet.shown.to_dict("records")
    assert row["untrained"] == "25.0 [4.6, 69.9]"
    assert row["n"] == "4"


def test_mcnemar_takes_each_question_once(tmp_path: Path, root: Path) -> None:
    sources = ["a", "a", "b", "c"]
    made = {}
    for name, values in {"cold": [0, 1, 0, 0], "run": [1, 1, 1, 1]}.items():
        rows = [
            {"case": GOLD, "source": s, "prompt_tokens": 1, "scores": {"check": v}}
            for s, v in zip(sources, values, strict=True)
        ]
        fake.lines(tmp_path / name / "eval.jsonl", rows)
        made[name] = records.read(records.keep(records.distil(tmp_path / name), name, after="cold" if name == "run" else None))
    cells = training_tables.cases(list(made.values()), version="v").cells.set_index(["case", "stage"])
    gap = cells.loc[(GOLD, "run - cold")]
    assert (gap["value"], gap["n"], gap["tested"], gap["only_now"]) == (75.0, 4, 3, 3)
    assert gap["p_mcnemar"] == 0.25
    assert cells.loc[(GOLD, "cold"), "how"] == "cluster bootstrap"


def test_stages_judged_on_other_examples_are_not_paired(all_kinds: list[Record], tmp_path: Path) -> None:
    rows = [{"case": GOLD, "source": "elsewhere", "prompt_tokens": 1, "scores": {"check": 1.0}}] * 4
    fake.lines(tmp_path / "x" / "eval.jsonl", rows)
    records.keep(records.distil(tmp_path / "x"), "x", after="cold")
    with pytest.raises(DataError, match="other examples"):
        training_tables.cases(records.records(), version="v")


def test_every_read_is_a_read(tmp_path: Path) -> None:
    reads = ["hotpotqa: gold", "chain: gold, rest known (cached order)", "random", "needles: cut", "planted: none"]
    others = ["hotpotqa: gated yes, end", "hotpotqa: merge", "hotpotqa: final", "needles: recall none", "planted: answer"]
    fake.judged(tmp_path / "eval.jsonl", {case: [1.0] for case in [*others, *reads]}, score="format")
    part = training_tables.chosen(records.distil(tmp_path), None, "format")
    assert part["case"].tolist() == reads


def test_workflows_are_compared_with_the_stage_before(all_kinds: list[Record]) -> None:
    cells = training_tables.workflows(all_kinds, version="v").cells
    mine = cells[(cells["stage"] == "with_bonus") & (cells["method"] == "pi_mem") & (cells["length"] == 50)].iloc[0]
    both = [r.scores[(r.scores["method"] == "pi_mem") & (r.scores["length"] == 50)]["sub_em"].mean() for r in all_kinds[1:3]]
    assert (mine["against"], mine["n"], mine["turns"]) == ("cold", 8, 2.0)
    assert mine["value"] == pytest.approx(100 * (both[1] - both[0]))


def test_the_configurations_are_the_papers_table() -> None:
    sheet = hyperparameters.table([], version="v")
    assert sheet.cells["setting"].nunique() == len(hyperparameters.ROWS) + len(hyperparameters.OURS)
    assert not (sheet.cells["same"] == False).any()  # noqa: E712
    # All printed cells but context length and hours of both columns, and those that print N/A.
    assert (sheet.cells["same"] == True).sum() == 2 * (len(hyperparameters.ROWS) - 2) - 2  # noqa: E712
    assert set(sheet.shown["Setting"][:25]) == set(hyperparameters.published.load("s1_training")["column"])


def test_a_setting_that_is_not_the_papers_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hyperparameters.ROWS, "Learning rate", lambda train: 3e-6)
    shown = hyperparameters.table([], version="v").shown.set_index("Setting")
    assert shown.loc["Learning rate", "Qwen2.5-7B, here"] == "3e-6 (not the paper's)"
    assert shown.loc["Learning rate", "Qwen2.5-7B, paper"] == "1e-6"


@pytest.mark.parametrize(
    ("printed", "value", "same"),
    [("1e-6", 1e-6, True), ("15000", 15_000, True), ("1000", "1,000", True), ("0.2", 0.3, False), ("N/A", "N/A", None)],
)
def test_printed_and_configured_values_are_compared_as_numbers(printed: str, value: Any, same: bool | None) -> None:
    assert hyperparameters._same(printed, value) is same


def test_figure_6_draws_the_curves(all_kinds: list[Record]) -> None:
    figure, data = training_curves.turn_reward(all_kinds, version="v")
    turns, accuracy = figure.axes
    assert (turns.get_title(loc="left"), accuracy.get_title(loc="left")) == ("turns", "accuracy reward")
    for run in all_kinds[2:]:
        assert run.trajectories is not None
        line = training_curves.curve(run.trajectories, "turns")
        drawn = [np.asarray(one.get_ydata()).tolist() for one in turns.lines]
        assert line["smooth"].tolist() in drawn
        assert data[(data["stage"] == run.name) & (data["what"] == "turns")]["value"].tolist() == line["value"].tolist()


def test_figure_4_needs_both_sides(all_kinds: list[Record]) -> None:
    figure, data = training_stages.before_after(all_kinds, version="v")
    assert [a.get_title(loc="left").split("\n")[0] for a in figure.axes if a.lines] == [
        *("hotpotqa", "Qwen3.5-35B-A3B", "Qwen2.5-7B")
    ]
    ours = data[data["source"] == "ours"]
    assert set(ours["method"]) == {"pi_mem"}
    assert set(ours["stage"]) == {"before", "after"}
    assert data[(data["model"] == "Qwen2.5-7B") & (data["stage"] == "before")]["value"].iloc[-1] == pytest.approx(60.09, abs=1)
    with pytest.raises(Absent, match="none has the other side"):
        training_stages.before_after([r for r in all_kinds if r.kind == "rl"], version="v")


@pytest.mark.slow
def test_a_version_is_made_again_byte_for_byte(all_kinds: list[Record], root: Path) -> None:
    folders = training.publish(all_kinds)
    made = {p: p.read_bytes() for f in folders.values() for p in f.iterdir() if p.name != "manifest.json"}
    names = {p.name for p in made}
    for name in training.SHEETS:
        assert {f"{name}.csv", f"{name}.md", f"{name}.tex"} <= names
    for name in training.FIGURES:
        assert {f"{name}.csv", f"{name}.pdf", f"{name}.png"} <= names
    assert training.publish(all_kinds) == folders
    for path in made:
        path.unlink()
    files = training.rebuild()
    assert {p: p.read_bytes() for p in files if p.name != "manifest.json"} == made
    about = json.loads((folders["tables"] / "manifest.json").read_text())
    assert about["rebuilt"]["code"]
    assert about["command"] == ["pimem", "report", "training"]
    assert list(about["records"]) == [r.name for r in all_kinds]
    records.keep(all_kinds[0], "base", title="another title")
    fake.judged(root / "eval.jsonl", {GOLD: [1, 1, 1, 1]})
    records.keep(records.distil(root), "base")
    with pytest.raises(DataError, match="base changed since"):
        training.rebuild()


def test_what_is_missing_is_said_and_not_drawn(root: Path, tmp_path: Path) -> None:
    fake.judged(tmp_path / "base" / "eval.jsonl", {GOLD: [0, 1]})
    shown = training.Training([str(tmp_path / "base")])
    assert shown.overview()[["record", "kind", "judged", "rollouts"]].to_numpy().tolist() == [["base", "model", 2, 0]]
    assert "Not here yet: no run of reinforcement learning" in shown.figure("figure6_turn_reward").data
    assert "needs scores.csv" in shown.figure("figure4_before_after").data
    assert shown.table("s1_training").data.startswith("#### Training hyperparameters")
    with pytest.raises(DataError, match="figure6_turn_reward"):
        shown.figure("figure6_turn_rewards")
    with pytest.raises(DataError, match="keep them there"):
        training.rebuild()


def test_no_record_at_all_still_has_the_papers_settings(root: Path) -> None:
    shown = training.Training()
    assert shown.overview().empty
    assert shown.table("s1_training").data.startswith("#### ")
    assert "no stage of a model" in shown.table("training_cases").data


def test_the_notebook_shows_what_exists() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    tables, figures = (set(re.findall(rf'trained\.{kind}\("(\w+)"\)', text)) for kind in ("table", "figure"))
    assert tables == set(training.SHEETS) - {"training_cases_all"}
    assert figures == set(training.FIGURES)


def test_a_training_that_cannot_start_says_why(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(EngineError, match="exit code 2"):
        training.train("minu", "runs/training/x", {"steps": 1})
    assert "did you mean" in capfd.readouterr().out.lower()
    assert not (root / "experiments" / "training").exists()


def test_a_training_that_was_started_leaves_its_record(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.reinforcement(tmp_path / "ready", 0.0)
    command = tmp_path / "python"
    command.write_text(f"""#!/bin/sh
echo "$@"
mkdir -p {root}/runs/training && cp -r {tmp_path}/ready {root}/runs/training/lambda_0
""")
    command.chmod(0o755)
    monkeypatch.setattr(training.sys, "executable", str(command))
    folder = training.train("mini", "runs/training/lambda_0", {"reward.turn_bonus": 0, "prompts": "trained"})
    said = capfd.readouterr().out
    assert f'-m pimem.cli train mini --out {root}/runs/training/lambda_0 --set reward.turn_bonus=0 prompts="trained"' in said
    (kept,) = records.records()
    assert (kept.folder, kept.name, kept.turn_bonus) == (folder, "lambda_0", 0.0)
    assert kept.about["machine"]


def test_a_record_is_kept_from_the_command_line(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake.reinforcement(tmp_path / "run", 0.0)
    judged = fake.judged(tmp_path / "after" / "eval.jsonl", {GOLD: [1, 1]})
    records.main(["rl", str(tmp_path / "run"), "--judged", str(judged), "--after", "cold", "--title", "RL"])
    (kept,) = records.records()
    assert capsys.readouterr().out.strip() == str(kept.folder)
    assert (kept.title, kept.about["after"], len(kept.judged)) == ("RL", "cold", 2)
    with pytest.raises(SystemExit) as ended:
        records.main(["rl", str(tmp_path / "run"), "--judged", str(tmp_path / "nothing.jsonl")])
    assert ended.value.code == 2
