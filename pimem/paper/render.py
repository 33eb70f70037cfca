"""Tables as Markdown and LaTeX. Ours come first, with their notes; the paper's numbers follow under a headline of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from pimem.journal import replace_file
from pimem.paper import verdicts
from pimem.paper.tables import NOT_RUN, Table, method_name

DASH = "\N{EN DASH}"
"""Stands in a cell that was not run."""

MOST_COLUMNS = 6
"""Columns of our numbers across a LaTeX page; further ones go below. Intervals would be too small to read otherwise."""


MOST_LINES = 48
"""Lines of a LaTeX page that a float may fill; a row with its interval takes two."""


def layout(table: Table) -> tuple[list[str], list[tuple[str, list[list[str]]]]]:
    """Column heads, and for each model its rows of texts: method, then `value [low, high]` a column.

    Where a model is the paper's own the last text is what its row says against the paper's.
    """
    ours, columns = table.cells, list(table.heads)
    against = "verdict" in ours and (ours["verdict"] != "").any()
    blocks = []
    for (model, prompts, at), block in ours.groupby(["model", "prompts", "at"], sort=False):
        rows = []
        turned = block["metric"] == "turns"
        for (method, variant, turns), row in block.groupby(["method", "variant", turned], sort=False):
            texts = dict(zip(row["column"], (_text(cell, table.heads) for cell in row.itertuples()), strict=True))
            name = method_name(method, variant) + (" turns" if turns else "")
            rows.append([name, *(texts[c] for c in columns), *([verdicts.row_summary(row)] if against else [])])
        blocks.append((f"{model}, prompts {prompts}" + (f", {at}" if at else ""), rows))
    return ["Method", *table.heads.values(), *(["Against the paper"] if against else [])], blocks


def _text(cell: Any, heads: Mapping[str, str]) -> str:
    if cell.state:
        return DASH if cell.state == NOT_RUN else cell.state.removesuffix(" tasks")
    digits = 2 if cell.metric == "turns" else 1
    text = f"{cell.value:.{digits}f} [{cell.low:.{digits}f}, {cell.high:.{digits}f}]"
    # A column whose cells have different n has none in its head.
    return text if cell.column == "Avg" or ", n = " in heads[cell.column] else f"{text} (n = {cell.n})"


def markdown(table: Table) -> str:
    """Ours, its notes, then the paper's numbers under their own headline."""
    head, blocks = layout(table)
    lines = [f"# {table.title}", ""]
    for model, rows in blocks:
        lines += [f"**Ours: {model}**", "", *pipes(head, rows), ""]
    lines += [f"- {note}" for note in table.notes]
    lines += ["", f"## {table.paper_title}", ""] if len(table.paper) else [""]
    for model, part in _by_model(table.paper):
        rows = [[method, *values] for (_, method), values in zip(part.index, part.to_numpy(), strict=True)]
        lines += [f"**{model}**", "", *pipes(["Method", *part.columns], rows), ""]
    return "\n".join(lines)


def _by_model(paper: pd.DataFrame) -> list[tuple[Any, pd.DataFrame]]:
    return list(paper.groupby(level="model", sort=False)) if len(paper) else []


def pipes(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = [":--", *["--:"] * (len(head) - 1)]
    return ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in (head, rule, *rows)]


_LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    DASH: "--",
    "±": r"$\pm$",
}


def latex_text(text: str) -> str:
    """Text made safe for LaTeX."""
    return "".join(_LATEX.get(c, c) for c in text)


def latex(table: Table) -> str:
    """Floats for a document that loads booktabs and graphicx: ours with its notes, then the paper's, as many as pages need."""
    head, blocks = layout(table)
    parts = []
    for start in range(1, len(head), MOST_COLUMNS):
        columns = slice(start, start + MOST_COLUMNS)
        rows = _our_rows(blocks, columns)
        parts.append((2 * len(rows), tabular(["Method", *map(latex_text, head[columns])], rows)))
    notes = [r"\parbox{\linewidth}{\footnotesize\raggedright", *(latex_text(note) for note in table.notes), "}"]
    parts.append((2 * len(table.notes), notes))
    theirs = []
    for model, part in _by_model(table.paper):
        theirs.append(rf"\multicolumn{{{len(part.columns) + 1}}}{{l}}{{\textit{{{latex_text(model)}}}}} \\")
        for (_, method), values in zip(part.index, part.to_numpy(), strict=True):
            theirs.append(" & ".join([latex_text(method), *values]) + r" \\")
    if theirs:
        title = rf"\parbox{{\linewidth}}{{\centering\itshape {latex_text(table.paper_title)}}}\par\smallskip"
        parts.append((len(theirs), [title, *tabular(["Method", *map(latex_text, table.paper.columns)], theirs)]))
    lines = [r"% Needs \usepackage{booktabs,graphicx}."]
    for number, float_parts in enumerate(_pages(parts)):
        caption = latex_text(table.title) + (", continued" if number else "")
        lines += [r"\begin{table}[t]", r"\centering", rf"\caption{{{caption}.}}"]
        lines += [rf"\label{{tab:{table.name}}}"] if not number else []
        for i, part in enumerate(float_parts):
            lines += [*([r"\par\medskip"] if i else []), *part]
        lines.append(r"\end{table}")
    return "\n".join([*lines, ""])


def _pages(parts: Sequence[tuple[int, list[str]]]) -> list[list[list[str]]]:
    """Parts with their heights in lines, put together as long as they fit a page."""
    pages: list[list[list[str]]] = []
    room = 0
    for height, part in parts:
        if height > room or not pages:
            pages.append([])
            room = MOST_LINES
        pages[-1].append(part)
        room -= height
    return pages


def _our_rows(blocks: Sequence[tuple[str, list[list[str]]]], columns: slice) -> list[str]:
    lines = []
    for model, rows in blocks:
        width = 1 + len(rows[0][columns])
        lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{Ours: {latex_text(model)}}}}} \\")
        lines += [" & ".join([latex_text(row[0]), *map(_stacked, row[columns])]) + r" \\[2pt]" for row in rows]
    return lines


def _stacked(text: str) -> str:
    """The interval under its value, both centred on the row."""
    value, bracket, interval = text.partition(" [")
    if not bracket:
        return latex_text(text)
    return rf"\begin{{tabular}}{{@{{}}r@{{}}}}{value}\\[-3pt]{{\scriptsize [{interval}}}\end{{tabular}}"


def tabular(head: Sequence[str], rows: Sequence[str]) -> list[str]:
    return [
        r"\resizebox{\ifdim\width>\linewidth \linewidth\else \width\fi}{!}{%",
        rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
        r"\toprule",
        " & ".join(head) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}}",
    ]


def write(table: Table, folder: Path) -> list[Path]:
    """The table as csv (our cells), md and tex; returns the files. Raises `StoreError` where they cannot be written."""
    texts = {
        "csv": table.cells.to_csv(index=False, lineterminator="\n", float_format="%.4f"),
        "md": markdown(table),
        "tex": latex(table),
    }
    return write_texts(folder, table.name, texts)


def write_texts(folder: Path, name: str, texts: Mapping[str, str]) -> list[Path]:
    """One file a suffix; returns them. Raises `StoreError` where they cannot be written."""
    paths = [folder / f"{name}.{suffix}" for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        replace_file(path, text)
    return paths
