"""Random draws that outlive library versions, and recipes of built samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.config import TaskSpec
from pimem.errors import ConfigError, DataError
from pimem.tasks import base
from pimem.tasks.base import Built, Draw
from pimem.tokens import Tokenizer


def test_draws_are_what_they_always_were() -> None:
    assert [int(v) for v in Draw("a", 1).raw(2)] == [5341300978986129663, 15016180269018434168]
    assert Draw("a", 1).order(6).tolist() == [5, 3, 0, 2, 4, 1]


@given(n=st.integers(0, 300), key=st.text(max_size=5))
def test_an_order_is_a_permutation(n: int, key: str) -> None:
    assert sorted(Draw(key).order(n).tolist()) == list(range(n))


def test_keys_are_told_apart() -> None:
    orders = {tuple(Draw(*key).order(12)) for key in [("a", 1), ("a", 2), ("a1",), ("a", 1, 0), ("b", 1)]}
    assert len(orders) == 5


def test_every_task_of_ruler_builds_and_says_what_it_is(tokenizer: Tokenizer) -> None:
    for name in base.RULER.values():
        length = 20 if name == "hotpotqa" else 1200
        task = base.build(TaskSpec(name=name, length=length), tokenizer)
        assert task.name == name
        assert task.metric == ("sub_em" if name in ("hotpotqa", "squad") else "multi_recall")
        assert task.unit == ("documents" if name == "hotpotqa" else "tokens")
        (sample,) = task.samples(1, start=2)
        assert sample.id == f"{name}-{length}-2"
        assert len(sample.context_ids) == sample.meta["tokens"]


def test_rulers_thirteen_tasks_and_the_papers_eleven_are_ours() -> None:
    assert len(base.RULER) == 13
    assert set(base.TASKS) - set(base.RULER.values()) == {"longbench_v2"}
    assert len(base.OOD) == 11
    assert set(base.RULER.values()) - set(base.OOD) == {"common_words", "hotpotqa"}
    with pytest.raises(ConfigError, match="RULER's vt is variable_tracking here"):
        base.build(TaskSpec(name="vt"), None)  # type: ignore[arg-type]


def test_a_recipe_is_kept_compared_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path))
    built = Built({"what": 1})
    assert built.get(0) is None
    built.keep(0, {"tokens": 5, "ids": "x"})
    built.keep(0, {"tokens": 5, "ids": "x"})
    assert Built({"what": 1}).get(0) == {"tokens": 5, "ids": "x"}
    assert Built({"what": 2}).get(0) is None
    with pytest.raises(DataError, match=r"sample 0 comes out differently .*\(ids\)"):
        built.keep(0, {"tokens": 5, "ids": "y"})
    (built.folder / "000000.json").write_text('{"tok')
    built.keep(0, {"tokens": 5, "ids": "x"})
    assert built.get(0) == {"tokens": 5, "ids": "x"}
    assert not [p for p in built.folder.iterdir() if p.name.startswith(".")]


def test_a_changed_sample_is_refused_and_not_scored_silently(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TaskSpec(length=12, seed=77)
    list(base.build(spec, tokenizer).samples(1))
    monkeypatch.setattr(Draw, "order", lambda self, n: np.arange(n))
    with pytest.raises(DataError, match="comes out differently"):
        list(base.build(spec, tokenizer).samples(1))


def test_an_unwritable_home_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "built").write_text("in the way")
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path))
    with pytest.raises(DataError, match="set PIMEM_HOME"):
        Built({"what": 1}).keep(0, {})
