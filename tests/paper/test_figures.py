from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_scores import make_scores
from matplotlib.colors import to_rgb

from pimem.errors import StoreError
from pimem.paper import figures, style
from pimem.paper.scores import combine
from pimem.paper.tables import build

VERSION = "2026-01-02-0123456789"


def test_the_figure_draws_the_table(scores: pd.DataFrame) -> None:
    figure, data = figures.hqa(scores, version=VERSION)
    ours, *papers = figure.axes
    assert len(papers) == 2
    table = build("table1_hqa", scores, version=VERSION).cells.query("state == ''")
    drawn = {line.get_color(): line.get_ydata() for line in ours.lines}
    for method, look in style.METHODS.items():
        row = table[(table["method"] == method) & (table["column"] != "Avg")]
        if len(row):
            assert drawn[look.colour].tolist() == row["value"].tolist()
    assert len(ours.collections) == 4
    own = data[data["source"] == "ours"]
    assert own["value"].tolist() == table[table["column"] != "Avg"]["value"].tolist()


def test_the_papers_numbers_have_panels_of_their_own_in_grey(scores: pd.DataFrame) -> None:
    figure, data = figures.hqa(scores, version=VERSION)
    for axis in figure.axes[1:]:
        assert "printed in the paper" in axis.get_title(loc="left")
        assert {line.get_color() for line in axis.lines} == {style.PUBLISHED}
        assert len(axis.lines) == (5 if "Qwen3.5" in axis.get_title(loc="left") else 7)
    assert style.PUBLISHED not in {line.get_color() for line in figure.axes[0].lines}
    paper = data[data["source"] != "ours"]
    assert paper[(paper["model"] == "Qwen2.5-7B") & (paper["method"] == "pi_mem")]["value"].iloc[-1] == 81.25
    assert set(paper["method"]) == set(style.METHODS)
    assert set(paper["variant"]) == {""}


def test_one_length_has_bars_and_many_models_have_panels() -> None:
    figure, _ = figures.hqa(make_scores((17,), n=4), version=VERSION)
    assert len(figure.axes[0].containers) == 4
    figure, _ = figures.hqa(make_scores((50, 100), n=4, models=("a", "b", "c")), version=VERSION)
    assert [a.get_title(loc="left").split("\n")[0] for a in figure.axes if a.lines] == [
        *("a", "b", "c", "Qwen3.5-35B-A3B", "Qwen2.5-7B")
    ]


def test_text_stays_inside_the_page() -> None:
    figure, _ = figures.hqa(make_scores((17,), n=4), version=VERSION)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with style.use():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    page = figure.bbox
    for text in [*figure.texts, *figure.legends, figure._supxlabel]:
        box = text.get_window_extent(canvas.get_renderer())
        assert box.x0 >= page.x0 - 1
        assert box.x1 <= page.x1 + 1


def test_what_was_not_run_is_said(niah_scores: pd.DataFrame, scores: pd.DataFrame) -> None:
    figure, data = figures.hqa(niah_scores, version=VERSION)
    assert [text.get_text() for text in figure.axes[0].texts] == ["not run"]
    assert set(data["source"]) == {"PI-Mem paper, supplement, Table 3"}
    assert "0 of 70 points" in figure._supxlabel.get_text()
    figure, _ = figures.hqa(scores, version=VERSION)
    said = figure._supxlabel.get_text().replace("\n", " ")
    assert "Not run: YaRN, GRU-Mem, ReMemR1. 16 of 70 points" in said
    assert len({axis.get_xlim() for axis in figure.axes}) == 1


def test_the_second_figure_draws_means_over_all_eleven_tasks(ood_scores: pd.DataFrame) -> None:
    figure, data = figures.ood(ood_scores, version=VERSION)
    table = build("table2_ood", ood_scores, version=VERSION).cells.query("state == '' and column != 'Avg'")
    own = data[data["source"] == "ours"]
    assert own["value"].tolist() == table["value"].tolist()
    assert len(figure.axes[0].lines) == 4
    paper = data[(data["source"] != "ours") & (data["model"] == "Qwen2.5-7B") & (data["method"] == "vanilla")]
    assert paper[["tokens", "value"]].iloc[3].tolist() == [65536, 60.65]
    assert {axis.get_ylim() for axis in figure.axes} == {(-3, 103)}


def test_rows_before_reinforcement_learning_stand_beside_the_papers(scores: pd.DataFrame) -> None:
    before = scores[scores["method"] == "pi_mem"].assign(run=lambda f: "x" + f["run"], variant="w/o RL")
    figure, data = figures.hqa(combine([scores, before]), version=VERSION)
    assert set(data[data["source"] != "ours"].query("variant == 'w/o RL'")["method"]) == {"mem_agent", "pi_mem"}
    assert "PI-Mem (w/o RL)" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_files_are_the_same_each_time(scores: pd.DataFrame, tmp_path: Path) -> None:
    for name in ("a", "b"):
        figures.write(*figures.hqa(scores, version=VERSION), tmp_path / name, "hqa")
    files = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert files == ["hqa.csv", "hqa.pdf", "hqa.png"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert (tmp_path / "a" / "hqa.pdf").read_bytes().startswith(b"%PDF")
    png = (tmp_path / "a" / "hqa.png").read_bytes()
    across, _ = figures.hqa(scores, version=VERSION)[0].get_size_inches()
    assert int.from_bytes(png[16:20], "big") == int(across * style.RC["savefig.dpi"])


def test_a_folder_that_cannot_be_written_is_named(scores: pd.DataFrame, tmp_path: Path) -> None:
    figure, _ = figures.hqa(scores, version=VERSION)
    (tmp_path / "hqa.pdf").mkdir()
    with pytest.raises(StoreError, match=r"hqa\.pdf"):
        style.save(figure, tmp_path, "hqa")


def test_methods_differ_without_colour() -> None:
    looks = list(style.METHODS.values())
    assert len({look.marker for look in looks}) == len({str(look.dashes) for look in looks}) == len(looks)
    greys = [np.dot(to_rgb(look.colour), (0.2126, 0.7152, 0.0722)) for look in looks]
    assert max(greys) < 0.75
