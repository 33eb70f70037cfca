"""The one look of all figures: colours that colour-blind readers tell apart, and lines that still differ in grey."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pimem.journal import replace_bytes

RC = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "svg.hashsalt": "pimem",
    "figure.dpi": 110,
    "savefig.dpi": 300,
}

PUBLISHED = "#8a8a8a"
"""The one grey of numbers that are not ours."""


class Line(NamedTuple):
    """How a method is drawn: Okabe and Ito's colours, with a marker and dashes of its own."""

    colour: str
    marker: str
    dashes: Any
    width: float = 1.2

    def handle(self, hollow: bool = False) -> Line2D:
        """Its entry in a legend."""
        fill = "white" if hollow else self.colour
        return Line2D([], [], color=self.colour, marker=self.marker, ls=self.dashes, lw=self.width, ms=4, mfc=fill)


METHODS = {
    "pi_mem": Line("#D55E00", "o", "-", 1.8),
    "mem_agent": Line("#0072B2", "s", (0, (5, 2))),
    "gru_mem": Line("#E69F00", "P", (0, (3, 1, 1, 1, 1, 1))),
    "rememr1": Line("#56B4E9", "X", (0, (8, 2))),
    "rag": Line("#009E73", "^", (0, (5, 2, 1, 2))),
    "yarn": Line("#CC79A7", "v", (0, (2, 1))),
    "vanilla": Line("#000000", "D", (0, (1, 1.4))),
}
OTHER = Line("#555555", "*", "-")


@contextmanager
def use() -> Iterator[None]:
    """The style for figures made inside."""
    with mpl.rc_context({**mpl.rcParamsDefault, **RC}):
        yield


def line(method: str) -> Line:
    return METHODS.get(method, OTHER)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes `name.pdf` (vector) and `name.png` (300 dpi), whole or not at all; the same figure gives the same bytes.

    Raises `StoreError` where they cannot be written.
    """
    paths = []
    for suffix, metadata in (("pdf", {"CreationDate": None, "ModDate": None, "Producer": None}), ("png", {"Software": None})):
        path = folder / f"{name}.{suffix}"
        buffer = io.BytesIO()
        with use():
            figure.savefig(buffer, format=suffix, metadata=metadata)
        replace_bytes(path, buffer.getvalue())
        paths.append(path)
    return paths
