from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from pimem.errors import ConfigError, DataError
from pimem.paper import comparison
from pimem.paper.scores import combine, validate

VERSION = "2026-01-02-0123456789"


def with_hits(scores: pd.DataFrame, method: str, hits: int) -> pd.DataFrame:
    """The first `hits` samples of every run of a method right, the others wrong."""
    rows = scores["method"] == method
    scores.loc[rows, "sub_em"] = (scores.loc[rows].groupby("run").cumcount() < hits).astype(float)
    return scores.assign(status="answered")


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


def test_the_method_must_be_there(scores: pd.DataFrame) -> None:
    with pytest.raises(DataError, match="did you mean 'mem_agent'"):
        comparison.methods(scores, "memagent", version=VERSION)


def test_against_the_paper_only_for_its_own_models(scores: pd.DataFrame) -> None:
    assert comparison.with_published(scores, {}, version=VERSION).empty
    with pytest.raises(ConfigError, match=r"did you mean 'Qwen2\.5-7B'"):
        comparison.with_published(scores, {"smollm2-135m": "Qwen2.5-7b"}, version=VERSION)


def test_verdicts_against_the_paper(scores: pd.DataFrame) -> None:
    # Printed for Qwen2.5-7B at 7K: PI-Mem 82.81, MemAgent 81.25.
    scores = with_hits(with_hits(scores, "pi_mem", 26), "mem_agent", 4)
    table = comparison.with_published(scores, {"smollm2-135m": "Qwen2.5-7B"}, version=VERSION)
    at = table.set_index(["method", "column"])
    assert set(table["column"]) == {"50", "100", "200", "400"}
    assert at.loc[("pi_mem", "50"), ["value", "published", "verdict"]].tolist() == [81.25, 82.81, "cannot tell"]
    assert at.loc[("mem_agent", "50"), ["value", "published", "verdict"]].tolist() == [12.5, 81.25, "differ"]
    wide = comparison.with_published(scores, {"smollm2-135m": "Qwen2.5-7B"}, version=VERSION, margin=25)
    assert wide.set_index(["method", "column"]).loc[("pi_mem", "50"), "verdict"] == "agree"


def test_newcombes_interval(scores: pd.DataFrame) -> None:
    from statsmodels.stats.proportion import confint_proportions_2indep

    scores = with_hits(scores, "pi_mem", 26)
    table = comparison.with_published(scores, {"smollm2-135m": "Qwen2.5-7B"}, version=VERSION)
    row = table[(table["method"] == "pi_mem") & (table["column"] == "50")].iloc[0]
    expected = confint_proportions_2indep(26, 32, 53, 64, method="newcomb")
    assert (row["low"], row["high"]) == pytest.approx(tuple(100 * v for v in expected), abs=0.02)


def test_the_average_needs_all_ten_lengths() -> None:
    from fake_scores import make_scores

    lengths = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600)
    table = comparison.with_published(make_scores(lengths, n=8), {"smollm2-135m": "Qwen2.5-7B"}, version=VERSION)
    average = table[(table["method"] == "pi_mem") & (table["column"] == "Avg")]
    assert average["published"].tolist() == [84.06]


def test_comparison_files(scores: pd.DataFrame, tmp_path: Path) -> None:
    table = comparison.methods(scores, version=VERSION)
    csv, md = comparison.write(table, tmp_path, "comparison_methods", "PI-Mem against the others")
    assert len(pd.read_csv(csv)) == len(table) == 3 * 5
    text = md.read_text()
    assert text.startswith("# PI-Mem against the others\n")
    assert "nan" not in text
    assert VERSION in text
