from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from fake_scores import make_scores
from statsmodels.stats.proportion import proportion_confint

from pimem.errors import DataError
from pimem.paper import render
from pimem.paper.scores import combine, validate
from pimem.paper.tables import Absent, cells, table1, table4, tokens_short

VERSION = "2026-01-02-0123456789"


def test_cells_are_means_with_intervals(scores: pd.DataFrame) -> None:
    table = cells(scores, version=VERSION)
    cell = table[(table["method"] == "pi_mem") & (table["column"] == "100")].iloc[0]
    part = scores[(scores["method"] == "pi_mem") & (scores["length"] == 100)]
    assert cell["value"] == pytest.approx(100 * part["sub_em"].mean())
    low, high = proportion_confint(part["sub_em"].sum(), 32, method="wilson")
    assert (cell["low"], cell["high"]) == pytest.approx((100 * low, 100 * high))
    assert cell[["metric", "n", "clusters", "failed", "how", "profile", "version", "level"]].tolist() == [
        *("sub_em", 32, 32, 0, "wilson", "fixture", VERSION, 0.95)
    ]


def test_the_average_is_over_lengths_and_keeps_questions_together(scores: pd.DataFrame) -> None:
    table = cells(scores, version=VERSION)
    rows = table[table["method"] == "mem_agent"]
    average = rows[rows["column"] == "Avg"].iloc[0]
    assert average["value"] == pytest.approx(rows[rows["column"] != "Avg"]["value"].mean())
    assert (average["n"], average["clusters"], average["how"]) == (128, 32, "cluster bootstrap")
    assert list(dict.fromkeys(table["method"])) == ["vanilla", "rag", "mem_agent", "pi_mem"]
    assert rows["column"].tolist() == ["50", "100", "200", "400", "Avg"]


def test_a_row_that_lacks_a_length_has_no_average(scores: pd.DataFrame) -> None:
    fewer = scores[(scores["method"] != "pi_mem") | (scores["length"] != 400)].reset_index(drop=True)
    table = table1(fewer, version=VERSION)
    averaged = table.cells[table.cells["column"] == "Avg"]
    assert averaged["method"].tolist() == ["vanilla", "rag", "mem_agent"]
    assert any("a row that lacks one has none" in note for note in table.notes)


def test_failed_samples_count_and_are_named(scores: pd.DataFrame) -> None:
    table = table1(scores, version=VERSION)
    cell = table.cells[(table.cells["method"] == "vanilla") & (table.cells["column"] == "50")].iloc[0]
    part = scores[(scores["method"] == "vanilla") & (scores["length"] == 50)]
    hits = part["sub_em"].sum()
    assert (cell["n"], cell["failed"], cell["value"]) == (32, 1, 100 * hits / 32)
    assert cell["value_answered"] == pytest.approx(100 * hits / 31)
    said = f"Vanilla with smollm2-135m at 50: 1 of 32, {100 * hits / 31:.1f} without them"
    assert any(said in note for note in table.notes)


def test_a_cell_whose_samples_all_failed_scores_nought(scores: pd.DataFrame) -> None:
    failed = scores["run"] == scores["run"][0]
    scores.loc[failed, "status"] = "failed"
    scores.loc[failed, ["sub_em", "sub_em_strict", "em", "f1", "extracted", "coverage"]] = 0.0
    table = table1(validate(scores, "here"), version=VERSION)
    worst = table.cells.loc[table.cells["failed"].idxmax()]
    assert worst["failed"] >= 32
    cell = table.cells[(table.cells["failed"] == 32) & (table.cells["column"] != "Avg")].iloc[0]
    assert cell["value"] == 0
    assert math.isnan(cell["value_answered"])
    assert any("N/A without them" in note for note in table.notes)


def test_table4_is_memory_coverage_of_methods_with_a_memory(niah_scores: pd.DataFrame) -> None:
    table = table4(niah_scores, version=VERSION)
    assert set(table.cells["method"]) == {"mem_agent", "pi_mem"}
    assert set(table.cells["metric"]) == {"coverage"}
    part = niah_scores[(niah_scores["method"] == "pi_mem") & (niah_scores["length"] == 2048)]
    cell = table.cells[(table.cells["method"] == "pi_mem") & (table.cells["column"] == "2048")].iloc[0]
    assert cell["value"] == pytest.approx(100 * part["coverage"].mean())
    assert table.paper.loc[("Qwen3.5-35B-A3B", "MemAgent")].tolist() == ["70.3", "74.2", "58.6"]


def test_what_the_scores_lack_is_absent(scores: pd.DataFrame, niah_scores: pd.DataFrame) -> None:
    with pytest.raises(Absent, match="no task 'hotpotqa'"):
        table1(niah_scores, version=VERSION)
    with pytest.raises(Absent, match="niah_multivalue"):
        table4(scores, version=VERSION)


def test_two_runs_in_one_cell_need_a_variant(scores: pd.DataFrame) -> None:
    again = scores[scores["method"] == "pi_mem"].assign(run=lambda f: "x" + f["run"])
    with pytest.raises(DataError, match="give each a `variant`") as error:
        cells(combine([scores, again]), version=VERSION)
    assert not isinstance(error.value, Absent)
    table = table1(combine([scores, again.assign(variant="no select")]), version=VERSION)
    assert "PI-Mem (no select)" in render.markdown(table)


def test_few_questions_are_said_to_rank_nothing() -> None:
    few = table1(make_scores((17,), n=4), version=VERSION)
    assert any("ranks no method" in note for note in few.notes)
    assert "Avg" not in few.cells["column"].tolist()


def test_markdown_keeps_the_papers_numbers_apart(scores: pd.DataFrame) -> None:
    text = render.markdown(table1(scores, version=VERSION))
    ours, _, paper = text.partition("\n## PI-Mem paper, Table 1")
    assert "| 3.6M |" in paper
    assert "| 3.6M |" not in ours
    assert "| YaRN | 82.81 | 81.25 |" in paper
    assert "| GRU-Mem | 81.25 | 79.69 | 77.34 | 76.56 | 74.22 | 73.44 | 71.88 | 76.56 | N/A | N/A | 76.37 |" in paper
    for said in ("50 docs (7K)", "Sub-EM", "n = 32 samples", "95% interval", "Profile fixture", VERSION):
        assert said in ours


def test_lengths_in_short() -> None:
    assert [tokens_short(n) for n in (300, 7100, 8192, 1_048_576, 3_600_000, 1_792_000, 2300)] == [
        *("300", "7.1K", "8K", "1M", "3.6M", "1.8M", "2.3K")
    ]


def test_latex_escapes_names(scores: pd.DataFrame) -> None:
    text = render.latex(table1(scores.assign(model="qwen_2.5 & 50% #1"), version=VERSION))
    assert r"qwen\_2.5 \& 50\% \#1" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 2
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0]
    rows = [line for line in body.splitlines() if line.startswith(("Vanilla", "RAG", "MemAgent", "PI-Mem"))]
    assert [row.count(" & ") for row in rows] == [5] * 4


def test_many_lengths_go_below_one_another_in_latex() -> None:
    lengths = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600)
    text = render.latex(table1(make_scores(lengths, n=4), version=VERSION))
    ours = text.partition("PI-Mem paper, Table 1")[0]
    assert ours.count(r"\toprule") == 2
    heads = [line for line in ours.splitlines() if line.startswith("Method & ")]
    assert [head.count(" & ") for head in heads] == [6, 5]
    assert heads[1].endswith(r"& Avg \\")


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex")
def test_latex_compiles(scores: pd.DataFrame, niah_scores: pd.DataFrame, tmp_path: Path) -> None:
    names = [
        render.write(table, tmp_path)[2].name
        for table in (table1(scores.assign(model="a_b^c~{}\\"), version=VERSION), table4(niah_scores, version=VERSION))
    ]
    inputs = "".join(rf"\input{{{name}}}" for name in names)
    document = rf"\documentclass{{article}}\usepackage{{booktabs,graphicx}}\begin{{document}}{inputs}\end{{document}}"
    (tmp_path / "all.tex").write_text(document)
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout


def test_files_hold_the_same_numbers(scores: pd.DataFrame, tmp_path: Path) -> None:
    table = table1(scores, version=VERSION)
    csv, md, tex = render.write(table, tmp_path)
    back = pd.read_csv(csv, dtype={"variant": str, "column": str}, keep_default_na=False)
    assert back["value"].tolist() == pytest.approx(table.cells["value"].tolist(), abs=1e-4)
    for row in table.cells.itertuples():
        assert f"{row.value:.1f} [{row.low:.1f}, {row.high:.1f}]" in md.read_text()
        assert f"[{row.low:.1f}, {row.high:.1f}]" in tex.read_text()
