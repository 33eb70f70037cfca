from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fake_scores import longbench_frame, make_scores
from scipy.stats import norm
from statsmodels.stats.proportion import proportion_confint

from pimem.errors import DataError
from pimem.paper.cells import OOD, RULER, Absent, by_group, by_task, cells, heading, over_tasks, with_rows_before_rl
from pimem.paper.scores import combine, primary_scores, validate

VERSION = "2026-01-02-0123456789"


def test_the_eleven_tasks() -> None:
    assert len(RULER) == len(set(RULER)) == 13
    assert set(RULER) - set(OOD) == {"common_words", "hotpotqa"}


def test_a_mean_over_tasks_weighs_them_alike_and_keeps_their_questions_apart(ood_scores: pd.DataFrame) -> None:
    found = over_tasks(ood_scores, version=VERSION)
    cell = found[(found["method"] == "rag") & (found["column"] == "8192")].iloc[0]
    part = ood_scores.assign(score=primary_scores(ood_scores)).query("method == 'rag' and length == 8192")
    by = part.groupby("task")["score"]
    assert cell["value"] == pytest.approx(100 * by.mean().mean())
    # Questions of all tasks have the same ids here, and are different questions all the same.
    assert (cell["n"], cell["clusters"], cell["task"], cell["metric"]) == (66, 66, "ruler_ood", "mean_of_11_tasks")
    error = 100 * np.sqrt((by.var(ddof=0) / 6).sum()) / 11
    assert cell["high"] - cell["low"] == pytest.approx(2 * norm.ppf(0.975) * error, rel=0.15)


def test_the_average_over_tasks_and_lengths(ood_scores: pd.DataFrame) -> None:
    found = over_tasks(ood_scores, version=VERSION).set_index(["method", "column"])["value"]
    for method in ("vanilla", "rag", "mem_agent", "pi_mem"):
        assert found[method, "Avg"] == pytest.approx((found[method, "8192"] + found[method, "16384"]) / 2)
    lacking = validate(ood_scores[(ood_scores["method"] != "rag") | (ood_scores["length"] != 16384)], "here")
    assert "Avg" not in set(over_tasks(lacking, version=VERSION).query("method == 'rag'")["column"])


def test_unequal_numbers_of_samples_do_not_weigh_a_task_more(ood_scores: pd.DataFrame) -> None:
    part = ood_scores[(ood_scores["task"] != "variable_tracking") | (ood_scores["sample"] < "q002")]
    found = over_tasks(validate(part, "here"), version=VERSION).set_index(["method", "column"])
    score = part.assign(score=primary_scores(part)).query("method == 'pi_mem' and length == 8192")
    assert found.loc[("pi_mem", "8192"), "value"] == pytest.approx(100 * score.groupby("task")["score"].mean().mean())
    assert found.loc[("pi_mem", "8192"), "n"] == 62


def test_two_runs_of_a_task_need_a_variant(ood_scores: pd.DataFrame) -> None:
    again = ood_scores[(ood_scores["method"] == "rag") & (ood_scores["task"] == "variable_tracking")].assign(
        run=lambda f: "x" + f["run"]
    )
    with pytest.raises(
        DataError, match=r"variable_tracking / smollm2-135m / default / rag /  at 8192: runs .* give each a `variant`"
    ):
        over_tasks(combine([ood_scores, again]), version=VERSION)


def test_tasks_one_by_one(ood_scores: pd.DataFrame) -> None:
    found = by_task(ood_scores, version=VERSION)
    assert set(found["column"]) == set(OOD)
    assert list(dict.fromkeys(found["at"])) == ["8K tokens", "16K tokens"]
    cell = found[(found["method"] == "pi_mem") & (found["column"] == "squad") & (found["at"] == "8K tokens")].iloc[0]
    part = ood_scores.query("method == 'pi_mem' and task == 'squad' and length == 8192")["sub_em"]
    expected = proportion_confint(part.sum(), 6, method="wilson")
    assert (cell["low"], cell["high"]) == pytest.approx(tuple(100 * v for v in expected))
    assert cell["metric"] == "sub_em"


def test_groups_of_longbench() -> None:
    frame = longbench_frame()
    found = by_group(frame, version=VERSION).query("method == 'pi_mem'").set_index("column")
    part = frame[frame["method"] == "pi_mem"]
    for column, group in (("All", ""), ("Easy", "=easy"), ("Hard", "=hard"), ("Medium", "=medium")):
        mine = part[part["groups"].str.contains(group)]["accuracy"]
        low, high = proportion_confint(mine.sum(), len(mine), method="wilson")
        assert found.loc[column, ["value", "low", "high", "n"]].tolist() == pytest.approx(
            [100 * mine.mean(), 100 * low, 100 * high, len(mine)]
        )
    assert set(found["at"]) == {""}


def test_groups_without_a_sample_have_no_cell() -> None:
    frame = longbench_frame()
    found = by_group(validate(frame[frame["groups"].str.contains("=easy")], "here"), version=VERSION)
    assert list(dict.fromkeys(found["column"])) == ["All", "Easy", "Short", "Medium", "Long"]


def test_turns_are_means_with_an_interval_that_is_open_above(scores: pd.DataFrame) -> None:
    turns = scores.assign(turns=scores["turns"].where(scores["sample"] < "q016", 3))
    cell = cells(turns, "turns", version=VERSION).set_index("column").loc["50"]
    assert (cell["method"], cell["value"], cell["metric"]) == ("pi_mem", 2.5, "turns")
    error = norm.ppf(0.975) * 0.5 / np.sqrt(32)
    assert (cell["low"], cell["high"]) == pytest.approx((2.5 - error, 2.5 + error), abs=0.04)
    same = cells(scores, "turns", version=VERSION).set_index("column").loc["50"]
    assert same["low"] < same["value"] == 2 < same["high"]


def test_no_score_no_cells(scores: pd.DataFrame) -> None:
    with pytest.raises(Absent):
        over_tasks(scores, version=VERSION)
    with pytest.raises(Absent, match="accuracy"):
        cells(scores, "accuracy", version=VERSION)


def test_rows_before_reinforcement_learning_join_those_after() -> None:
    frame = make_scores((50,), n=4, models=("base", "trained"))
    fewer = validate(frame[(frame["model"] == "base") | (frame["method"] != "vanilla")], "here")
    named = with_rows_before_rl(fewer, {"base": "trained"})
    assert set(named["model"]) == {"trained"}
    rows = set(named[["method", "variant"]].itertuples(index=False, name=None))
    # Vanilla ran with one of the two only; RAG with both.
    assert rows == {
        *(("vanilla", ""), ("rag", ""), ("rag", "w/o RL"), ("mem_agent", ""), ("mem_agent", "w/o RL")),
        *(("pi_mem", ""), ("pi_mem", "w/o RL")),
    }
    base = frame.query("model == 'base' and method == 'pi_mem'")["sub_em"].tolist()
    assert named.query("method == 'pi_mem' and variant == 'w/o RL'")["sub_em"].tolist() == base
    assert set(fewer["model"]) == {"base", "trained"}
    with pytest.raises(DataError, match="no scores of a model 'bas' before reinforcement learning; did you mean 'base'"):
        with_rows_before_rl(fewer, {"bas": "trained"})


def test_heads_of_columns(scores: pd.DataFrame) -> None:
    found = cells(scores, version=VERSION)
    assert [heading(found, c) for c in ("50", "Avg", "8192")] == ["50 docs (7K)", "Avg", "8192"]
