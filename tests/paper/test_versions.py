from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fake_scores import make_scores
from matplotlib.figure import Figure

from pimem.errors import DataError, StoreError
from pimem.paper import versions
from pimem.paper.plans import PLANS
from pimem.paper.scores import combine, read, validate


@pytest.fixture
def both() -> pd.DataFrame:
    return combine([make_scores((50, 100), n=8), make_scores((2048,), n=4, task="niah_multivalue", metric="multi_recall")])


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor more tables than the tests look at."""
    monkeypatch.setattr(versions.figures, "FIGURES", {})
    monkeypatch.setattr(versions.tables, "PLANS", {"table1_hqa": PLANS["table1_hqa"]})


def record_of(folders: dict[str, Path]) -> dict[str, Any]:
    return json.loads((folders["tables"] / "manifest.json").read_text())


def contents(folders: dict[str, Path]) -> dict[str, bytes]:
    return {f"{kind}/{p.name}": p.read_bytes() for kind, folder in folders.items() for p in folder.iterdir()}


def test_a_version_holds_everything_and_is_found_again(
    both: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = versions.publish(both, root=tmp_path, note="made for a test")
    assert folders["tables"].parent == tmp_path / "paper_tables" / "fixture"
    assert folders["tables"].name == folders["figures"].name
    assert sorted(contents(folders)) == [
        "figures/hqa_by_length.csv",
        "figures/hqa_by_length.pdf",
        "figures/hqa_by_length.png",
        "figures/manifest.json",
        "figures/ood_by_length.csv",
        "figures/ood_by_length.pdf",
        "figures/ood_by_length.png",
        "tables/comparison_methods.csv",
        "tables/comparison_methods.md",
        "tables/manifest.json",
        *sorted(["tables/scores.csv", *(f"tables/{name}.{suffix}" for name in PLANS for suffix in ("csv", "md", "tex"))]),
    ]
    assert record_of(folders)["cells"]["table1_hqa"] == {"run": 12, "of": 77}
    assert record_of(folders)["cells"]["table3_longbench_v2"] == {"run": 0, "of": 42}
    assert "table1_hqa               12 of   77 cells run\n" in versions.coverage(folders["tables"])
    record = json.loads((folders["tables"] / "manifest.json").read_text())
    assert (record["note"], record["profile"], record["samples"]) == ("made for a test", "fixture", len(both))
    assert set(record["files"]) == {k.split("/")[1] for k in contents(folders) if k.startswith("tables")} - {"manifest.json"}
    assert record["skipped"] == {"with_published": "nothing to compare"}
    assert versions.latest("fixture", tmp_path) == folders
    before = contents(folders)
    monkeypatch.setattr(versions.time, "strftime", lambda *_: "2031-01-01")
    monkeypatch.setattr(versions, "_make", None)
    assert versions.publish(both.sample(frac=1, random_state=0), root=tmp_path) == folders
    assert contents(folders) == before


def test_rebuilding_gives_the_same_bytes(both: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.figures, "FIGURES", {"hqa_by_length": figure_of_nothing})
    monkeypatch.setattr(versions.tables, "PLANS", {name: PLANS[name] for name in ("table1_hqa", "table4_coverage")})
    folders = versions.publish(both, root=tmp_path, same_model={"smollm2-135m": "Qwen2.5-7B"})
    before = contents(folders)
    for path in folders["figures"].iterdir():
        path.unlink()
    (folders["tables"] / "table1_hqa.md").unlink()
    files = versions.rebuild(folders["tables"], tmp_path)
    after = contents(folders)
    assert {k for k in before if before[k] != after[k]} == {"tables/manifest.json", "figures/manifest.json"}
    assert {p.name for p in files} == {k.split("/")[1] for k in before}
    assert "rebuilt" in json.loads((folders["tables"] / "manifest.json").read_text())
    monkeypatch.setattr(versions.figures, "FIGURES", {})
    assert versions.rebuild("fixture", tmp_path) == [p for p in files if "_by_length" not in p.name]


@pytest.mark.parametrize("place", ["paper_tables", "figures", "paper_tables/fixture", "figures/fixture"])
def test_a_folder_that_cannot_be_made_is_an_error_and_the_next_try_finishes(
    both: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(versions.figures, "FIGURES", {"hqa_by_length": figure_of_nothing})
    monkeypatch.setattr(versions.tables, "PLANS", {"table1_hqa": PLANS["table1_hqa"]})
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("in the way")
    with pytest.raises(StoreError, match="could not be written"):
        versions.publish(both, root=tmp_path)
    (tmp_path / place).unlink()
    folders = versions.publish(both, root=tmp_path)
    assert all((folder / "manifest.json").is_file() for folder in folders.values())
    assert (folders["figures"] / "hqa_by_length.png").is_file()


def figure_of_nothing(*_: object, **__: object) -> tuple[Figure, pd.DataFrame]:
    return Figure((0.5, 0.5)), pd.DataFrame({"value": [1]})


@pytest.mark.usefixtures("no_figures")
def test_an_unfinished_version_is_finished(both: pd.DataFrame, tmp_path: Path) -> None:
    folders = versions.publish(both, root=tmp_path)
    (folders["tables"] / "manifest.json").unlink()
    (folders["tables"] / "table1_hqa.tex").unlink()
    assert versions.publish(both, root=tmp_path) == folders
    assert (folders["tables"] / "table1_hqa.tex").is_file()
    assert (folders["tables"] / "manifest.json").is_file()


@pytest.mark.usefixtures("no_figures")
def test_other_scores_of_the_same_runs_do_not_overwrite(both: pd.DataFrame, tmp_path: Path) -> None:
    first = versions.publish(both, root=tmp_path)
    other = both.copy()
    other.loc[other["method"] == "rag", "calls"] += 1
    second = versions.publish(other, root=tmp_path)
    assert second["tables"].name == first["tables"].name + "-2"
    assert read(first["tables"] / "scores.csv")["calls"].sum() == both["calls"].sum()
    assert versions.publish(other, root=tmp_path) == second
    assert versions.publish(both, root=tmp_path) == first
    assert versions.latest("fixture", tmp_path) == first


def test_the_name_depends_on_runs_counts_and_code(both: pd.DataFrame) -> None:
    name = versions.digest(both, "code")
    assert versions.digest(both.sample(frac=1, random_state=0), "code") == name
    assert versions.digest(both, "other code") != name
    assert versions.digest(both.iloc[1:], "code") != name
    assert versions.digest(both.assign(run="r" + both["run"]), "code") != name


def test_a_version_is_of_one_profile(scores: pd.DataFrame, tmp_path: Path) -> None:
    mixed = validate(pd.concat([scores, make_scores((17,), profile="other")]), "here")
    with pytest.raises(DataError, match="2 profiles"):
        versions.publish(mixed, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("no_figures")
def test_tampered_or_missing_scores_are_refused(both: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No profile has one yet"):
        versions.rebuild("fixture", tmp_path)
    folders = versions.publish(both, root=tmp_path)
    with pytest.raises(DataError, match="did you mean 'fixture'"):
        versions.rebuild("fixtures", tmp_path)
    path = folders["tables"] / "scores.csv"
    text = path.read_text()
    path.write_text(text.replace(",answered,sub_em,50,", ",failed,sub_em,50,", 1))
    with pytest.raises(DataError, match="not the scores its manifest"):
        versions.rebuild("fixture", tmp_path)
    path.write_text(text)
    (folders["tables"] / "manifest.json").write_text("{")
    with pytest.raises(StoreError, match=r"manifest\.json: damaged"):
        versions.rebuild("fixture", tmp_path)


@pytest.mark.usefixtures("no_figures")
def test_what_is_declared_of_models_is_kept_for_rebuilding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.tables, "PLANS", {name: PLANS[name] for name in ("table1_hqa", "s3_hqa")})
    frame = make_scores((50,), n=8, models=("base", "trained"))
    declared = {"same_model": {"trained": "Qwen2.5-7B"}, "before_rl": {"base": "trained"}}
    folders = versions.publish(frame, root=tmp_path, **declared)
    table = (folders["tables"] / "s3_hqa.md").read_text()
    assert "PI-Mem (w/o RL)" in table.partition("## PI-Mem paper")[0]
    assert "Ours: base" not in table
    against = pd.read_csv(folders["tables"] / "comparison_with_published.csv", keep_default_na=False)
    assert {"table1_hqa", "s3_hqa"} == set(against["table"])
    assert "w/o RL" in set(against["variant"])
    before = contents(folders)
    versions.rebuild("fixture", tmp_path)
    after = contents(folders)
    assert {k for k in before if before[k] != after[k]} == {"tables/manifest.json", "figures/manifest.json"}
    assert {k: record_of(folders)[k] for k in declared} == declared
    assert sorted(set(read(folders["tables"] / "scores.csv")["model"])) == ["base", "trained"]


@pytest.mark.usefixtures("no_figures")
def test_a_bad_table_is_no_skipped_table(scores: pd.DataFrame, tmp_path: Path) -> None:
    again = scores[scores["method"] == "pi_mem"].assign(run=lambda f: "x" + f["run"])
    with pytest.raises(DataError, match="give each a `variant`"):
        versions.publish(combine([scores, again]), root=tmp_path)
