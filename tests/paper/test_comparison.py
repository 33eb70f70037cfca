from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_scores import longbench_frame, with_hits
from scipy.stats import binomtest

from pimem.errors import DataError
from pimem.paper import comparison
from pimem.paper.scores import combine, primary_scores, validate

VERSION = "2026-01-02-0123456789"


def test_methods_are_paired_by_sample(scores: pd.DataFrame) -> None:
    scores = with_hits(with_hits(scores, "pi_mem", 30), "mem_agent", 18)
    table = comparison.methods(scores, version=VERSION)
    row = table[(table["second"] == "MemAgent") & (table["column"] == "100")].iloc[0]
    assert row["difference"] == pytest.approx(100 * 12 / 32)
    assert row[["n", "only_first", "only_second", "unpaired", "verdict"]].tolist() == [32, 12, 0, 0, "better"]
    assert row["p_mcnemar"] == pytest.approx(2 / 2**12)
    whole = table[(table["second"] == "MemAgent") & (table["column"] == "all")].iloc[0]
    assert (whole["n"], whole["clusters"], whole["difference"]) == (128, 32, row["difference"])
    assert set(table["second"]) == {"MemAgent", "RAG", "Vanilla"}


def test_worse_is_said_too(scores: pd.DataFrame) -> None:
    scores = with_hits(with_hits(scores, "pi_mem", 2), "rag", 30)
    table = comparison.methods(scores, version=VERSION)
    assert set(table[table["second"] == "RAG"]["verdict"]) == {"worse"}


def test_few_questions_tell_nothing(scores: pd.DataFrame) -> None:
    few = scores[scores["sample"] < "q010"].reset_index(drop=True)
    few = with_hits(with_hits(few, "pi_mem", 10), "vanilla", 0)
    table = comparison.methods(few, version=VERSION)
    row = table[(table["second"] == "Vanilla") & (table["column"] == "50")].iloc[0]
    assert (row["difference"], row["verdict"]) == (100, "cannot tell")


def test_samples_without_a_partner_are_counted(scores: pd.DataFrame) -> None:
    part = scores[~((scores["method"] == "rag") & (scores["sample"] < "q004"))]
    table = comparison.methods(validate(part, "here"), version=VERSION)
    row = table[(table["second"] == "RAG") & (table["column"] == "50")].iloc[0]
    assert (row["n"], row["unpaired"]) == (28, 4)
    other = scores.assign(seed=scores["seed"].where(scores["method"] != "rag", 7))
    assert "RAG" not in set(comparison.methods(other, version=VERSION)["second"])
    # The same number in another set of questions is another question.
    elsewhere = (scores["method"] == "rag") & (scores["sample"] < "q004")
    asked = scores.assign(cluster=scores["cluster"].where(~elsewhere, "other " + scores["cluster"]))
    row = comparison.methods(validate(asked, "here"), version=VERSION).query("second == 'RAG' and column == '50'").iloc[0]
    assert (row["n"], row["unpaired"]) == (28, 8)


def test_variants_meet_once(scores: pd.DataFrame) -> None:
    ablation = scores[scores["method"] == "pi_mem"].assign(run=lambda f: "x" + f["run"], variant="no merge")
    table = comparison.methods(combine([scores, ablation]), version=VERSION)
    own = table[table["second"].str.startswith("PI-Mem")]
    assert own[["first", "second"]].drop_duplicates().to_numpy().tolist() == [["PI-Mem", "PI-Mem (no merge)"]]


def test_means_over_tasks_are_compared_with_each_tasks_questions_apart(ood_scores: pd.DataFrame) -> None:
    table = comparison.methods(ood_scores, version=VERSION)
    rows = table[(table["task"] == "ruler_ood") & (table["second"] == "RAG")].set_index("column")
    assert list(rows.index) == ["8192", "16384", "all"]
    primary = ood_scores.assign(score=primary_scores(ood_scores))
    means = primary.groupby(["method", "length", "task"])["score"].mean().groupby(["method", "length"]).mean()
    assert rows.loc["8192", "difference"] == pytest.approx(100 * (means["pi_mem", 8192] - means["rag", 8192]))
    assert rows.loc["all", "difference"] == pytest.approx(100 * (means["pi_mem"] - means["rag"]).mean())
    assert rows.loc["all", ["n", "clusters", "metric"]].tolist() == [2 * 66, 66, "mean_of_11_tasks"]
    gap = primary.pivot_table(index=["task", "sample"], columns=["method", "length"], values="score")
    gap = gap["pi_mem"][8192] - gap["rag"][8192]
    error = np.sqrt((gap.groupby("task").var(ddof=0) / 6).sum()) / 11
    assert rows.loc["8192", "high"] - rows.loc["8192", "low"] == pytest.approx(2 * 1.96 * 100 * error, rel=0.15)
    assert len(table[(table["task"] == "variable_tracking") & (table["second"] == "RAG")]) == 3


def test_no_mean_is_compared_over_some_of_the_tasks(ood_scores: pd.DataFrame) -> None:
    part = validate(ood_scores[(ood_scores["task"] != "variable_tracking") | (ood_scores["length"] != 8192)], "here")
    table = comparison.methods(part, version=VERSION)
    assert set(table[table["task"] == "ruler_ood"]["column"]) == {"16384"}


def test_groups_of_questions_are_compared_too() -> None:
    frame = longbench_frame()
    table = comparison.methods(frame, version=VERSION)
    rows = table[table["second"] == "Vanilla"].set_index("column")
    assert rows["n"].to_dict() == {"All": 40, "Easy": 24, "Hard": 16, "Short": 14, "Medium": 13, "Long": 13}
    wide = frame.pivot_table(index="sample", columns="method", values="accuracy")
    gap = wide["pi_mem"] - wide["vanilla"]
    assert rows.loc["All", "difference"] == pytest.approx(100 * gap.mean())
    first, second = (gap > 0).sum(), (gap < 0).sum()
    assert rows.loc["All", "p_mcnemar"] == pytest.approx(binomtest(first, first + second).pvalue)
    hard = gap[frame[frame["method"] == "rag"].set_index("sample")["groups"].str.startswith("difficulty=hard")]
    assert rows.loc["Hard", "difference"] == pytest.approx(100 * hard.mean())


def test_the_method_must_be_there(scores: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="did you mean 'mem_agent'"):
        comparison.methods(scores, "memagent", version=VERSION)


def test_comparison_files(scores: pd.DataFrame, tmp_path: Path) -> None:
    table = comparison.methods(scores, version=VERSION)
    csv, md = comparison.write(table, tmp_path, "comparison_methods", "PI-Mem against the others")
    assert len(pd.read_csv(csv)) == len(table) == 3 * 5
    text = md.read_text()
    assert text.startswith("# PI-Mem against the others\n")
    assert "nan" not in text
    assert VERSION in text
