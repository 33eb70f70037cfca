"""Scores by a benchmark's own groups."""

from __future__ import annotations

import pandas as pd
import pytest
from fake_scores import make_scores

from pimem.paper.groups import PRINTED, by_group
from pimem.paper.scores import validate
from pimem.paper.tables import Absent


def grouped() -> pd.DataFrame:
    scores = make_scores(lengths=(1000,), n=6, task="longbench_v2")
    number = scores["sample"].str[1:].astype(int)
    right = (number % 3 == 0).astype(float)
    kinds = number.map(
        lambda n: f"difficulty={'easy' if n % 3 == 0 else 'hard'};length=short;domain={'Code' if n < 2 else 'Law'}"
    )
    changes = {"metric": "accuracy", "accuracy": right, "accuracy_released": 1.0, "sub_em": None, "groups": kinds}
    return validate(scores.assign(**changes), "test")


def test_columns_are_the_papers_and_then_the_domains_and_an_empty_group_is_left_out() -> None:
    cells = by_group(grouped(), version="v")
    mine = cells[cells["method"] == "pi_mem"].set_index("column")
    assert mine.index.tolist() == ["All", "Easy", "Hard", "Short", "Code", "Law"]
    assert set(PRINTED) - set(mine.index) == {"Medium", "Long"}
    assert mine["n"].tolist() == [6, 2, 4, 6, 2, 4]
    assert mine["value"].round(2).tolist() == [33.33, 100.0, 0.0, 33.33, 50.0, 25.0]
    assert set(mine["metric"]) == {"accuracy"}


def test_another_reading_of_the_same_answers() -> None:
    cells = by_group(grouped(), "accuracy_released", version="v")
    assert set(cells["value"]) == {100.0}
    assert set(cells["metric"]) == {"accuracy_released"}


def test_scores_without_groups_have_no_such_table() -> None:
    with pytest.raises(Absent, match="no sample with groups"):
        by_group(make_scores(), version="v")


def test_scores_written_before_there_were_groups_are_valid() -> None:
    old = make_scores().drop(columns=["groups", "accuracy", "accuracy_released"])
    assert validate(old, "old")["groups"].eq("").all()
