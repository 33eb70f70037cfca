"""Fixtures of the tests of tables and figures."""

from __future__ import annotations

import pandas as pd
import pytest
from fake_scores import make_scores, ood_frame

from pimem import stats
from pimem.paper import style


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer resamples and pixels than outside the tests."""
    monkeypatch.setattr(stats, "DRAWS", 400)
    monkeypatch.setitem(style.RC, "savefig.dpi", 60)


@pytest.fixture
def scores() -> pd.DataFrame:
    return make_scores()


@pytest.fixture
def niah_scores() -> pd.DataFrame:
    return make_scores((2048, 4096), task="niah_multivalue", metric="multi_recall")


@pytest.fixture
def ood_scores() -> pd.DataFrame:
    return ood_frame((8192, 16384))
