from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from fake_scores import longbench_frame, make_scores, ood_frame
from statsmodels.stats.proportion import proportion_confint

from pimem.errors import DataError
from pimem.paper import render
from pimem.paper.cells import Absent, cells, method_name, tokens_short
from pimem.paper.plans import PLANS
from pimem.paper.published import load
from pimem.paper.scores import combine, validate
from pimem.paper.tables import build

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
    table = build("table1_hqa", fewer, version=VERSION)
    averaged = table.cells[(table.cells["column"] == "Avg") & (table.cells["state"] == "")]
    assert averaged["method"].tolist() == ["vanilla", "rag", "mem_agent"]
    assert any("a row that lacks one has none" in note for note in table.notes)


def test_failed_samples_count_and_are_named(scores: pd.DataFrame) -> None:
    table = build("table1_hqa", scores, version=VERSION)
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
    table = build("table1_hqa", validate(scores, "here"), version=VERSION)
    worst = table.cells.loc[table.cells["failed"].idxmax()]
    assert worst["failed"] >= 32
    cell = table.cells[(table.cells["failed"] == 32) & (table.cells["column"] != "Avg")].iloc[0]
    assert cell["value"] == 0
    assert math.isnan(cell["value_answered"])
    assert any("N/A without them" in note for note in table.notes)


def test_hotpotqa_in_tokens_is_a_column_of_ruler_and_none_of_table_1(scores: pd.DataFrame) -> None:
    tokens = make_scores((8192,)).assign(unit="tokens", run=lambda frame: "t" + frame["run"])
    both = combine([scores, validate(tokens, "here")])
    alone, table = (build("table1_hqa", frame, version=VERSION).cells for frame in (scores, both))
    pd.testing.assert_frame_equal(table, alone)
    ran = build("ruler_by_task", both, version=VERSION).cells.query("state == ''")
    assert set(zip(ran["column"], ran["at"], strict=True)) == {("hotpotqa", "8K tokens")}
    of_unit = cells(both, version=VERSION)
    average = of_unit[(of_unit["method"] == "rag") & (of_unit["column"] == "Avg")]
    assert average["n"].tolist() == [128]


def test_table4_is_memory_coverage_of_methods_with_a_memory(niah_scores: pd.DataFrame) -> None:
    table = build("table4_coverage", niah_scores, version=VERSION)
    ran = table.cells[table.cells["state"] == ""]
    assert set(ran["method"]) == {"mem_agent", "pi_mem"}
    assert set(table.cells["method"]) == {"gru_mem", "rememr1", "mem_agent", "pi_mem"}
    assert set(table.cells["metric"]) == {"coverage"}
    part = niah_scores[(niah_scores["method"] == "pi_mem") & (niah_scores["length"] == 2048)]
    cell = table.cells[(table.cells["method"] == "pi_mem") & (table.cells["column"] == "2048")].iloc[0]
    assert cell["value"] == pytest.approx(100 * part["coverage"].mean())
    assert table.paper.loc[("Qwen3.5-35B-A3B", "MemAgent")].tolist() == ["70.3", "74.2", "58.6"]


def test_every_row_and_column_of_the_paper_is_there_run_or_not(scores: pd.DataFrame) -> None:
    table = build("table1_hqa", scores, version=VERSION)
    printed = load("table1_hqa")
    assert [PLANS["table1_hqa"].columns[column] for column in table.heads] == list(dict.fromkeys(printed["column"]))
    assert {method_name(m) for m in table.cells["method"]} == set(printed["method"])
    assert table.cells["state"].value_counts().to_dict() == {"not run": 77 - 20, "": 20}
    idle = table.cells[table.cells["state"] == "not run"]
    assert idle["value"].isna().all()
    assert set(idle["n"]) == {0}
    assert table.run == 20
    text = render.markdown(table)
    assert "| YaRN | – | – | – | – | – | – | – | – | – | – | – |" in text
    assert "A dash: not run (57 of 77 cells)." in text
    assert "| 800 docs (112K) |" in text


@pytest.mark.parametrize("name", PLANS)
def test_a_table_of_which_nothing_was_run_says_so(name: str, scores: pd.DataFrame, niah_scores: pd.DataFrame) -> None:
    other = niah_scores.assign(task="own task") if name != "table1_hqa" else niah_scores
    table = build(name, other, version=VERSION)
    assert table.run == 0
    assert set(table.cells["state"]) == {"not run"}
    assert set(table.cells["method"]) >= {"mem_agent", "pi_mem", "gru_mem", "rememr1"}
    assert f"A dash: not run ({len(table.cells)} of {len(table.cells)} cells)" in render.markdown(table)
    assert r"\begin{tabular}" in render.latex(table)
    rows = [row for _, rows in render.layout(table)[1] for row in rows]
    assert {text for row in rows for text in row[1:]} == {render.DASH}


def test_the_supplements_tables_have_rows_before_training_and_of_turns(scores: pd.DataFrame) -> None:
    before = scores[scores["method"] == "pi_mem"].assign(run=lambda f: "x" + f["run"], variant="w/o RL", turns=3)
    table = build("s3_hqa", combine([scores, before]), version=VERSION)
    ((_, rows),) = render.layout(table)[1]
    assert [row[0] for row in rows] == [
        *("Vanilla", "YaRN", "RAG", "GRU-Mem", "ReMemR1", "MemAgent (w/o RL)", "MemAgent"),
        *("PI-Mem (w/o RL)", "PI-Mem", "PI-Mem (w/o RL) turns", "PI-Mem turns"),
    ]
    assert {row[0] for row in rows} - {row[0] for row in rows if "GRU" in row[0] or "ReM" in row[0]} <= {
        *load("s3_hqa")["method"],
        *(f"{m} turns" for m in load("s3_hqa")["method"]),
    }
    turns = dict(zip([row[0] for row in rows], rows, strict=True))
    assert turns["PI-Mem turns"][1].startswith("2.00 [1.")
    assert turns["PI-Mem (w/o RL) turns"][1].startswith("3.00 [2.")
    assert "| PI-Mem turns | 2.312 | 2.203 |" in render.markdown(table)


def test_a_mean_over_some_of_the_tasks_is_none(ood_scores: pd.DataFrame) -> None:
    part = validate(
        ood_scores[(ood_scores["method"] != "rag") | ~ood_scores["task"].isin(["variable_tracking", "frequent_words"])], "here"
    )
    table = build("table2_ood", part, version=VERSION)
    rag = table.cells[table.cells["method"] == "rag"].set_index("column")
    assert rag.loc[["8192", "16384", "Avg"], "state"].tolist() == ["9 of 11 tasks", "9 of 11 tasks", "not run"]
    assert rag["value"].isna().all()
    text = render.markdown(table)
    assert "| RAG | 9 of 11 | 9 of 11 | – |" in text
    assert "k of 11: so many of its tasks were run" in text
    by_task = build("ruler_by_task", part, version=VERSION)
    assert len(by_task.cells[(by_task.cells["method"] == "rag") & (by_task.cells["state"] == "")]) == 18
    blocks = [name for name, _ in render.layout(by_task)[1]]
    assert blocks == [f"smollm2-135m, prompts default, {at} tokens" for at in ("8K", "16K")]
    assert "## PI-Mem paper" not in render.markdown(by_task)


def test_n_stands_in_the_head_or_where_cells_differ_in_the_cell(scores: pd.DataFrame) -> None:
    part = scores[(scores["method"] != "rag") | (scores["length"] != 100) | (scores["sample"] < "q020")]
    text = render.markdown(build("table1_hqa", validate(part, "here"), version=VERSION))
    head = next(line for line in text.splitlines() if line.startswith("| Method"))
    assert head.startswith("| Method | 50 docs (7K), n = 32 | 100 docs (14K) | 200 docs (28K), n = 32 |")
    row = next(line for line in text.splitlines() if line.startswith("| RAG"))
    assert row.count("(n = 20)") == 1
    assert row.count("(n = ") == 1


def test_longbench_is_laid_out_by_group() -> None:
    frame = combine([longbench_frame(), longbench_frame(length=120_000)])
    table = build("table3_longbench_v2", frame, version=VERSION)
    assert list(table.heads) == ["All", "Easy", "Hard", "Short", "Medium", "Long"]
    assert table.heads["Hard"] == "Hard, n = 16"
    assert [name.rpartition(", ")[2] for name, _ in render.layout(table)[1]] == ["cut at 120K", "cut at 4M"]


def test_two_runs_in_one_cell_need_a_variant(scores: pd.DataFrame) -> None:
    again = scores[scores["method"] == "pi_mem"].assign(run=lambda f: "x" + f["run"])
    with pytest.raises(DataError, match="give each a `variant`") as error:
        cells(combine([scores, again]), version=VERSION)
    assert not isinstance(error.value, Absent)
    with pytest.raises(DataError, match="give each a `variant`"):
        build("table1_hqa", combine([scores, again]), version=VERSION)
    table = build("table1_hqa", combine([scores, again.assign(variant="no select")]), version=VERSION)
    assert "PI-Mem (no select)" in render.markdown(table)


def test_few_questions_are_said_to_rank_nothing() -> None:
    few = build("table1_hqa", make_scores((17,), n=4), version=VERSION)
    assert any("ranks no method" in note for note in few.notes)
    assert few.cells[(few.cells["column"] == "Avg")]["value"].isna().all()
    assert next(iter(few.heads)) == "17"


def test_markdown_keeps_the_papers_numbers_apart(scores: pd.DataFrame) -> None:
    text = render.markdown(build("table1_hqa", scores, version=VERSION))
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
    text = render.latex(build("table1_hqa", scores.assign(model="qwen_2.5 & 50% #1"), version=VERSION))
    assert r"qwen\_2.5 \& 50\% \#1" in text
    assert text.count(r"\toprule") == text.count(r"\bottomrule") == 3


@pytest.mark.parametrize("name", PLANS)
def test_latex_is_whole(name: str) -> None:
    """Every row as wide as its head, everything that is opened closed, and no float higher than a page."""
    scores = make_scores((50, 100), n=4)
    several = combine([ood_frame((8192,), n=2), scores, scores.assign(model="other", run=lambda f: "o" + f["run"])])
    text = render.latex(build(name, several, version=VERSION, same_model={"other": "Qwen2.5-7B"}))
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == text.count(r"\caption{")
    assert text.count(r"\label{") == 1
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    for part in text.split(r"\toprule")[1:]:
        head, _, body = part.partition(r"\midrule")
        rows = [row for row in body.partition(r"\bottomrule")[0].split("\n") if row and r"\multicolumn" not in row]
        assert {row.count(" & ") for row in rows} == {head.count(" & ")}
        assert {row.rstrip()[-2:] for row in rows} <= {r"\\", "t]"}


def test_parts_share_a_page_as_long_as_they_fit() -> None:
    parts = [(height, [str(height)]) for height in (30, 18, 1, 60, 5, 43)]
    pages = [[line for part in page for line in part] for page in render._pages(parts)]
    assert pages == [["30", "18"], ["1"], ["60"], ["5", "43"]]


def test_many_lengths_go_below_one_another_in_latex() -> None:
    lengths = (50, 100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600)
    text = render.latex(build("table1_hqa", make_scores(lengths, n=4), version=VERSION))
    ours = text.partition("PI-Mem paper, Table 1")[0]
    assert ours.count(r"\toprule") == 2
    heads = [line for line in ours.splitlines() if line.startswith("Method & ")]
    assert [head.count(" & ") for head in heads] == [6, 5]
    assert heads[1].endswith(r"& Avg \\")


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex")
def test_latex_compiles(scores: pd.DataFrame, niah_scores: pd.DataFrame, tmp_path: Path) -> None:
    names = [
        render.write(table, tmp_path)[2].name
        for table in (
            build("table1_hqa", scores.assign(model="a_b^c~{}\\"), version=VERSION),
            *(build(name, niah_scores, version=VERSION) for name in PLANS if name != "table1_hqa"),
        )
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
    table = build("table1_hqa", scores, version=VERSION)
    csv, md, tex = render.write(table, tmp_path)
    back = pd.read_csv(csv, dtype={"column": str})
    assert back["value"].tolist() == pytest.approx(table.cells["value"].tolist(), abs=1e-4, nan_ok=True)
    assert back["state"].fillna("").tolist() == table.cells["state"].tolist()
    for row in table.cells[table.cells["state"] == ""].itertuples():
        assert f"{row.value:.1f} [{row.low:.1f}, {row.high:.1f}]" in md.read_text()
        assert f"[{row.low:.1f}, {row.high:.1f}]" in tex.read_text()
