from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fake_scores import make_scores
from matplotlib.colors import to_rgb

from pimem.errors import StoreError
from pimem.paper import figures, style
from pimem.paper.tables import Absent, table1

VERSION = "2026-01-02-0123456789"


def test_the_figure_draws_the_table(scores: pd.DataFrame) -> None:
    figure, data = figures.hqa(scores, version=VERSION)
    ours, *papers = figure.axes
    assert len(papers) == 2
    table = table1(scores, version=VERSION).cells
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
        assert len(axis.lines) == 4
    assert style.PUBLISHED not in {line.get_color() for line in figure.axes[0].lines}
    paper = data[data["source"] != "ours"]
    assert paper[(paper["model"] == "Qwen2.5-7B") & (paper["method"] == "pi_mem")]["value"].iloc[-1] == 81.25
    assert set(paper["method"]) == {"vanilla", "rag", "mem_agent", "pi_mem"}


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


def test_no_hotpotqa_no_figure(niah_scores: pd.DataFrame) -> None:
    with pytest.raises(Absent, match="hotpotqa"):
        figures.hqa(niah_scores, version=VERSION)


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
