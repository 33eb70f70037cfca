"""The numbers the paper and its supplement print, as read from `paper_tables/published/`; never ours, only beside ours.

One csv a table, one row a printed cell: model, method, setting, column, metric, unit, value, note. `value` keeps the digits
as printed, without thousands separators and percent signs, and is empty where the table prints N/A.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from pimem.errors import DataError, nearest

FOLDER = Path(__file__).parents[2] / "paper_tables" / "published"

COLUMNS = ("model", "method", "setting", "column", "metric", "unit", "value", "note")

METHOD_NAMES = {
    "vanilla": "Vanilla",
    "yarn": "YaRN",
    "rag": "RAG",
    "gru_mem": "GRU-Mem",
    "rememr1": "ReMemR1",
    "mem_agent": "MemAgent",
    "pi_mem": "PI-Mem",
}
"""Our method names as the paper prints them, in the order of its tables."""

HQA_DOCUMENTS = {
    "7K": 50,
    "14K": 100,
    "28K": 200,
    "56K": 400,
    "112K": 800,
    "224K": 1600,
    "448K": 3200,
    "896K": 6400,
    "1.8M": 12800,
    "3.6M": 25600,
}
"""The paper's names of the HotpotQA lengths, and the documents in a context of each."""


def names(folder: Path = FOLDER) -> list[str]:
    """Every transcribed table. Raises `DataError` where the folder is not there."""
    if not folder.is_dir():
        raise DataError(f"{folder}: the published numbers are not there; they come with a checkout of the repository")
    return sorted(path.stem for path in folder.glob("*.csv"))


def load(name: str, folder: Path = FOLDER) -> pd.DataFrame:
    """One table with two more columns: `number` (NaN where the cell is no number) and `decimals` as printed (-1 there).

    Raises `DataError` for an unknown table and for a file with other columns.
    """
    known = names(folder)
    if name not in known:
        raise DataError(f"no published table {name!r}; {nearest(name, known)}")
    frame = pd.read_csv(folder / f"{name}.csv", dtype=str, keep_default_na=False, encoding="utf-8")
    if tuple(frame.columns) != COLUMNS:
        raise DataError(f"{folder / f'{name}.csv'}: expected the columns {', '.join(COLUMNS)}")
    frame["number"] = pd.to_numeric(frame["value"], errors="coerce")
    decimals = frame["value"].str.partition(".")[2].str.len()
    frame["decimals"] = decimals.where(frame["number"].notna(), -1).astype(int)
    return frame


def wide(frame: pd.DataFrame, metric: str, rows: tuple[str, ...] = ("model", "method"), values: str = "number") -> pd.DataFrame:
    """One metric laid out as the table prints it: `rows` down, columns across, both in printed order.

    `values` "value" gives the printed digits, "N/A" where there are none. Raises `DataError` for a metric the table lacks.
    """
    part = frame[frame["metric"] == metric]
    if part.empty:
        raise DataError(f"no metric {metric!r}; {nearest(metric, set(frame['metric']))}")
    table = part.pivot_table(index=list(rows), columns="column", values=values, sort=False, dropna=False, aggfunc="first")
    table = table.reindex(columns=list(dict.fromkeys(part["column"])))
    present = part.set_index(list(rows)).index.unique()
    table = table.loc[table.index.isin(present)]
    return table.fillna("").replace("", "N/A") if values == "value" else table
