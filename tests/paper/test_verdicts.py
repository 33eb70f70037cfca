from __future__ import annotations

import pandas as pd
import pytest
from fake_scores import longbench_frame, make_scores, ood_frame, with_hits
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint

from pimem.errors import ConfigError
from pimem.paper import comparison, render, verdicts
from pimem.paper.cells import over_tasks
from pimem.paper.plans import PLANS
from pimem.paper.published import load
from pimem.paper.tables import Table, build

VERSION = "2026-01-02-0123456789"
SAME = {"smollm2-135m": "Qwen2.5-7B"}
LARGE = {"smollm2-135m": "Qwen3.5-35B-A3B"}


def at(table: Table) -> pd.DataFrame:
    """The cells that were run, by method and column."""
    ran = table.cells[table.cells["state"] == ""]
    return ran[ran["metric"] != "turns"].set_index(["method", "column"])


def test_only_for_the_papers_own_models(scores: pd.DataFrame) -> None:
    table = build("table1_hqa", scores, version=VERSION)
    assert set(table.cells["verdict"]) == {""}
    assert table.cells["published"].isna().all()
    assert any("No verdict against the paper" in note for note in table.notes)
    assert comparison.with_published([table]).empty
    assert "Against the paper" not in render.markdown(table)
    with pytest.raises(ConfigError, match=r"did you mean 'Qwen2\.5-7B'"):
        build("table1_hqa", scores, version=VERSION, same_model={"smollm2-135m": "Qwen2.5-7b"})


def test_verdicts_on_hotpotqa(scores: pd.DataFrame) -> None:
    # Printed for Qwen2.5-7B at 7K: PI-Mem 82.81, MemAgent 81.25.
    scores = with_hits(with_hits(scores, "pi_mem", 26), "mem_agent", 4)
    table = build("table1_hqa", scores, version=VERSION, same_model=SAME)
    cells = at(table)
    assert cells.loc[("pi_mem", "50"), ["value", "published", "published_n"]].tolist() == [81.25, 82.81, 64]
    assert cells.loc[("pi_mem", "50"), "verdict"] == "cannot tell"
    assert cells.loc[("mem_agent", "50"), ["value", "published", "verdict"]].tolist() == [12.5, 81.25, "differs"]
    expected = confint_proportions_2indep(26, 32, 53, 64, method="newcomb")
    made = cells.loc[("pi_mem", "50"), ["difference_low", "difference_high"]].tolist()
    assert made == pytest.approx([100 * v for v in expected], abs=0.02)
    assert set(table.cells[table.cells["state"] == "not run"]["verdict"]) == {""}
    assert set(cells.loc["vanilla"].index[cells.loc["vanilla"]["verdict"] == ""]) == {"Avg"}
    text = render.markdown(table)
    assert "cells: 4 differs" in text
    assert "cells: 4 cannot tell" in text
    both = comparison.with_published([table, build("table4_coverage", scores, version=VERSION, same_model=SAME)])
    assert len(both) == 16
    assert set(both["table"]) == {"table1_hqa"}


def test_the_average_needs_all_ten_lengths_on_both_sides() -> None:
    lengths = tuple(int(c) for c in PLANS["table1_hqa"].columns if c != "Avg")
    scores = make_scores(lengths, n=8)
    also = scores[scores["method"] == "rag"].assign(method="gru_mem", run=lambda f: "g" + f["run"])
    table = build("table1_hqa", pd.concat([scores, also]), version=VERSION, same_model=SAME)
    cells = at(table)
    assert cells.loc[("pi_mem", "Avg"), "published"] == 84.06
    # The paper prints GRU-Mem's average over eight lengths.
    assert cells.loc[("gru_mem", "Avg"), "verdict"] == ""
    assert cells.loc[("gru_mem", "50"), "published"] == 81.25
    fewer = build("table1_hqa", make_scores(lengths[:4], n=8), version=VERSION, same_model=SAME)
    assert at(fewer).loc[("pi_mem", "Avg"), "verdict"] == ""


def test_a_mean_of_eleven_tasks_can_agree() -> None:
    """n = 704: printed 98.92 for PI-Mem at 8K, whose own interval is at most that of a share of as many samples."""
    scores = ood_frame((8192,), n=64)
    mine = scores["method"] == "pi_mem"
    scores.loc[mine, ["multi_recall", "sub_em"]] = 1.0
    scores.loc[mine & (scores["sample"] == "q001") & scores["task"].str.startswith("niah"), "multi_recall"] = 0.0
    scores.loc[scores["metric"] == "sub_em", "multi_recall"] = float("nan")
    scores.loc[scores["metric"] != "sub_em", "sub_em"] = float("nan")
    cells = at(build("table2_ood", scores, version=VERSION, same_model=LARGE))
    cell = cells.loc[("pi_mem", "8192")]
    assert cell["value"] == pytest.approx(100 * 696 / 704)
    assert cell[["published", "published_n", "verdict", "n"]].tolist() == [98.92, 704, "agrees", 704]
    low, high = (100 * v for v in proportion_confint(0.9892 * 704, 704, method="wilson"))
    gap = cell["value"] - 98.92
    assert cell["difference_low"] == pytest.approx(gap - ((cell["value"] - cell["low"]) ** 2 + (high - 98.92) ** 2) ** 0.5)
    assert cell["difference_high"] == pytest.approx(gap + ((cell["high"] - cell["value"]) ** 2 + (98.92 - low) ** 2) ** 0.5)
    assert cells.loc[("vanilla", "8192"), "verdict"] == "differs"


def test_longbench_has_the_papers_numbers_of_questions() -> None:
    table = build("s5_longbench_v2", longbench_frame(), version=VERSION, same_model=LARGE)
    cells = at(table)
    assert cells.loc[("pi_mem", "All"), ["published", "published_n"]].tolist() == [54.1, 503]
    assert cells.loc[("pi_mem", "Long"), ["published", "published_n"]].tolist() == [63.9, 108]
    assert "n = 108" in table.notes[-2]
    assert "n = 503" in table.notes[-2]
    # Every printed share is that of a whole number of so many questions.
    printed = load("s5_longbench_v2")
    counts = printed["column"].map(PLANS["s5_longbench_v2"].counts)
    right = (printed["number"] * counts / 100).round()
    assert (100 * right / counts).round(1).tolist() == printed["number"].tolist()


def test_turns_are_compared_on_the_scale_of_three() -> None:
    """Printed for Qwen2.5-7B at 7K: 2.312 turns of PI-Mem; of 1 to 3 that is a share of 0.656."""
    scores = make_scores((50, 100), n=64)
    table = build("s3_hqa", scores, version=VERSION, same_model=SAME)
    turns = table.cells[(table.cells["metric"] == "turns") & (table.cells["state"] == "")].set_index("column")
    cell = turns.loc["50"]
    assert cell[["value", "published", "margin"]].tolist() == [2, 2.312, pytest.approx(0.2)]
    low, high = (1 + 2 * v for v in proportion_confint(0.656 * 64, 64, method="wilson"))
    assert cell["difference_high"] == pytest.approx(-0.312 + ((cell["high"] - 2) ** 2 + (2.312 - low) ** 2) ** 0.5)
    assert cell["difference_low"] == pytest.approx(-0.312 - ((2 - cell["low"]) ** 2 + (high - 2.312) ** 2) ** 0.5)
    assert cell["verdict"] == "differs"


def test_rows_before_reinforcement_learning_meet_their_own_numbers(scores: pd.DataFrame) -> None:
    before = scores[scores["method"] == "pi_mem"].assign(run=lambda f: "x" + f["run"], variant="w/o RL")
    table = build("s3_hqa", pd.concat([scores, before]), version=VERSION, same_model=SAME)
    rows = table.cells[(table.cells["column"] == "50") & (table.cells["method"] == "pi_mem")]
    assert rows.set_index(["variant", "metric"])["published"].to_dict() == {
        ("w/o RL", "sub_em"): 57.03,
        ("", "sub_em"): 82.81,
        ("w/o RL", "turns"): 2.883,
        ("", "turns"): 2.312,
    }
    assert "w/o RL" not in set(build("table1_hqa", pd.concat([scores, before]), version=VERSION).cells["variant"])


def test_coverage_is_a_share_of_at_most_that_many() -> None:
    scores = make_scores((262144,), n=16, task="niah_multivalue", metric="multi_recall")
    cells = at(build("table4_coverage", scores, version=VERSION, same_model=SAME))
    assert cells.loc[("mem_agent", "262144"), ["published", "published_n"]].tolist() == [73.8, 64]
    assert ("vanilla", "262144") not in cells.index


def test_what_samples_can_tell() -> None:
    said = verdicts.resolution(64)
    low, high = proportion_confint(32, 64, method="wilson")
    assert f"±{50 * (high - low):.1f} points at 50 %" in said
    low, high = confint_proportions_2indep(32, 64, 32, 64, method="newcomb")
    assert f"the difference of two such cells to ±{50 * (high - low):.1f}" in said
    assert said.startswith("with n = 64 a cell is known to ±11.9 points at 50 % and ±9.7 at 80 %")
    assert said.endswith("±16.8 and ±13.9")


def test_an_unknown_column_or_method_has_no_verdict(ood_scores: pd.DataFrame) -> None:
    plan, found = PLANS["table2_ood"], over_tasks(ood_scores, version=VERSION)
    made = verdicts.add(found.replace({"column": {"8192": "9000"}}), load("table2_ood"), plan.columns, plan.counts, SAME)
    assert set(made.set_index("column").loc["9000", "verdict"]) == {""}
    renamed = verdicts.add(found.assign(method="own"), load("table2_ood"), plan.columns, plan.counts, SAME)
    assert set(renamed["verdict"]) == {""}
