"""Tables as Markdown and LaTeX. Ours come first, with their notes; the paper's numbers follow under a headline of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pimem.journal import replace_file
from pimem.paper.tables import Table, heading, method_name

MOST_COLUMNS = 6
"""Columns of our numbers across a LaTeX page; further ones go below. Intervals would be too small to read otherwise."""


def layout(table: Table) -> tuple[list[str], list[tuple[str, list[list[str]]]]]:
    """Column heads, and for each model its rows of texts: method, then `value [low, high]` a length."""
    ours = table.cells
    columns = [str(c) for c in sorted(ours["length"].dropna().unique())] + (["Avg"] if (ours["column"] == "Avg").any() else [])
    blocks = []
    for (model, prompts), block in ours.groupby(["model", "prompts"], sort=False):
        rows = []
        for (method, variant), row in block.groupby(["method", "variant"], sort=False):
            at = row.set_index("column")
            texts = [f"{at.value[c]:.1f} [{at.low[c]:.1f}, {at.high[c]:.1f}]" if c in at.index else "" for c in columns]
            rows.append([method_name(method, variant), *texts])
        blocks.append((f"{model}, prompts {prompts}", rows))
    return ["Method", *[heading(ours, c) for c in columns]], blocks


def markdown(table: Table) -> str:
    """Ours, its notes, then the paper's numbers under their own headline."""
    head, blocks = layout(table)
    lines = [f"# {table.title}", ""]
    for model, rows in blocks:
        lines += [f"**Ours: {model}**", "", *pipes(head, rows), ""]
    lines += [f"- {note}" for note in table.notes]
    lines += ["", f"## {table.paper_title}", ""]
    for model, part in table.paper.groupby(level="model", sort=False):
        rows = [[method, *values] for (_, method), values in zip(part.index, part.to_numpy(), strict=True)]
        lines += [f"**{model}**", "", *pipes(["Method", *part.columns], rows), ""]
    return "\n".join(lines)


def pipes(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = [":--", *["--:"] * (len(head) - 1)]
    return ["| " + " | ".join(str(c).replace("|", "\\|") for c in row) + " |" for row in (head, rule, *rows)]


_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {c: f"\\{c}" for c in "&%$#_{}"}


def latex_text(text: str) -> str:
    """Text made safe for LaTeX."""
    return "".join(_LATEX.get(c, c) for c in text)


def latex(table: Table) -> str:
    """Two tabulars for a document that loads booktabs and graphicx: ours with its notes, then the paper's."""
    head, blocks = layout(table)
    ours: list[str] = []
    for start in range(1, len(head), MOST_COLUMNS):
        columns = slice(start, start + MOST_COLUMNS)
        ours += [r"\par\smallskip"] * (start > 1)
        ours += tabular(["Method", *map(latex_text, head[columns])], _our_rows(blocks, columns))
    theirs = []
    for model, part in table.paper.groupby(level="model", sort=False):
        theirs.append(rf"\multicolumn{{{len(part.columns) + 1}}}{{l}}{{\textit{{{latex_text(model)}}}}} \\")
        for (_, method), values in zip(part.index, part.to_numpy(), strict=True):
            theirs.append(" & ".join([latex_text(method), *values]) + r" \\")
    return "\n".join(
        [
            r"% Needs \usepackage{booktabs,graphicx}.",
            r"\begin{table}[t]",
            r"\centering",
            rf"\caption{{{latex_text(table.title)}.}}",
            rf"\label{{tab:{table.name}}}",
            *ours,
            r"\par\smallskip\parbox{\linewidth}{\footnotesize\raggedright",
            *(latex_text(note) for note in table.notes),
            r"}\par\medskip",
            rf"\parbox{{\linewidth}}{{\centering\itshape {latex_text(table.paper_title)}}}\par\smallskip",
            *tabular(["Method", *map(latex_text, table.paper.columns)], theirs),
            r"\end{table}",
            "",
        ]
    )


def _our_rows(blocks: Sequence[tuple[str, list[list[str]]]], columns: slice) -> list[str]:
    lines = []
    for model, rows in blocks:
        width = 1 + len(rows[0][columns])
        lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{Ours: {latex_text(model)}}}}} \\")
        lines += [" & ".join([latex_text(row[0]), *map(_stacked, row[columns])]) + r" \\[2pt]" for row in rows]
    return lines


def _stacked(text: str) -> str:
    """The interval under its value, both centred on the row."""
    value, _, interval = text.partition(" ")
    return rf"\begin{{tabular}}{{@{{}}r@{{}}}}{value}\\[-3pt]{{\scriptsize {interval}}}\end{{tabular}}" if interval else text


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
