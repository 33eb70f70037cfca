"""Our cells against the paper's printed ones: the difference with its interval, and what may be concluded from it.

Made only for models that the caller declares to be the paper's own. Of a printed number nothing is known but its value and
how many samples are behind it; a mean of scores in a known range varies at most as much as a share does, and that much is
taken, so a verdict errs on the side of "cannot tell".
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd

from pimem import stats
from pimem.errors import ConfigError, nearest
from pimem.paper import published
from pimem.paper.cells import method_name

MARGIN = 0.1
"""How much of a score's range two results may differ by and still agree: 10 points of percent, 0.2 of turns 1 to 3."""

_RANGES = {"turns": (1.0, 3.0)}
"""Where a score lies that is not in percent: turns under the paper's K of 3."""

COLUMNS = ("published", "published_n", "difference", "difference_low", "difference_high", "margin", "verdict")


def check_models(same_model: Mapping[str, str]) -> None:
    """Raises `ConfigError` for a model that the paper does not have."""
    known = set(published.load("table1_hqa")["model"])
    for model in same_model.values():
        if model not in known:
            raise ConfigError(f"the paper has no model {model!r}; {nearest(model, known)}")


def add(
    cells: pd.DataFrame,
    printed: pd.DataFrame,
    columns: Mapping[str, str],
    counts: Mapping[str, int],
    same_model: Mapping[str, str],
    *,
    margin: float = MARGIN,
    level: float = 0.95,
) -> pd.DataFrame:
    """The cells with `COLUMNS` beside them, empty for a cell that was not run or that the paper does not have.

    `columns` are our columns by the paper's names, `counts` the samples behind a printed cell of each. differs: the interval of
    ours minus theirs excludes 0; agrees: it lies within `margin` of 0; else too few samples were asked to tell. An
    average is compared only where ours and theirs are over all columns. Raises `ConfigError` for an unknown model.
    """
    check_models(same_model)
    numbers = printed.dropna(subset="number").set_index(["model", "method", "column", "metric"])["number"]
    score = next(m for m in printed["metric"] if m not in _RANGES)
    lengths = [c for c in columns.values() if c != "Avg"]
    out = []
    for cell in cells.itertuples():
        metric = cell.metric if cell.metric in _RANGES else score
        key = (same_model.get(cell.model, ""), method_name(cell.method, cell.variant))
        column = columns.get(cell.column, "")
        if column == "Avg":
            ours = cells[(cells["model"] == cell.model) & (cells["prompts"] == cell.prompts) & (cells["metric"] == cell.metric)]
            ours = ours[(ours["method"] == cell.method) & (ours["variant"] == cell.variant) & ours["value"].notna()]
            whole = {columns.get(c, c) for c in ours["column"]} == {*lengths, "Avg"}
            column = "Avg" if whole and all((*key, c, metric) in numbers.index for c in lengths) else ""
        value = numbers.get((*key, column, metric), math.nan)
        if math.isfinite(value) and pd.notna(cell.value):
            bounds = _RANGES.get(cell.metric, (0.0, 100.0))
            out.append(_compared((cell.low, cell.value, cell.high), value, counts[column], bounds, margin, level))
        else:
            out.append({})
    frame = pd.DataFrame(out, index=cells.index).reindex(columns=list(COLUMNS))
    frame["verdict"] = frame["verdict"].astype(object).where(frame["verdict"].notna(), "")
    return cells.assign(**{c: frame[c] for c in COLUMNS})


def _compared(
    ours: tuple[float, float, float], value: float, n: int, bounds: tuple[float, float], margin: float, level: float
) -> dict[str, object]:
    size, (low, mine, high) = bounds[1] - bounds[0], ours
    their_low, their_high = (bounds[0] + size * limit for limit in stats.wilson(n * (value - bounds[0]) / size, n, level))
    gap_low, gap_high = stats.newcombe(mine, (low, high), value, (their_low, their_high))
    verdict = "cannot tell"
    if gap_low > 0 or gap_high < 0:
        verdict = "differs"
    elif -margin * size <= gap_low and gap_high <= margin * size:
        verdict = "agrees"
    return dict(zip(COLUMNS, (value, n, mine - value, gap_low, gap_high, margin * size, verdict), strict=True))


def resolution(n: int, level: float = 0.95) -> str:
    """What n samples can tell: half the interval of a share, and of a difference of two such shares, in points."""
    ones, twos = [], []
    for share in (0.5, 0.8):
        own = stats.wilson(share * n, n, level)
        low, high = stats.newcombe(share, own, share, own)
        ones.append(f"±{100 * stats.half_width(n, share, level):.1f}")
        twos.append(f"±{50 * (high - low):.1f}")
    return (
        f"with n = {n} a cell is known to {ones[0]} points at 50 % and {ones[1]} at 80 %, "
        f"the difference of two such cells to {twos[0]} and {twos[1]}"
    )


def row_summary(row: pd.DataFrame) -> str:
    """The verdicts of a table's row in a few words: its average's, then how many of its cells have which."""
    of_all = row[row["column"].isin(["Avg", "All"]) & (row["verdict"] != "")]
    singles = row[~row.index.isin(of_all.index) & (row["verdict"] != "")]["verdict"].value_counts()
    parts = [f"{cell.column}: {cell.verdict}" for cell in of_all.itertuples()]
    counts = [f"{singles[v]} {v}" for v in ("agrees", "differs", "cannot tell") if v in singles]
    return "; ".join([*parts, *([f"cells: {', '.join(counts)}"] if counts else [])])
