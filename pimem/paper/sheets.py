"""Sheets and figures of one version: built from what was measured, written, and accounted for in a manifest."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimem.errors import DataError, nearest
from pimem.journal import replace_file
from pimem.packages import sha256
from pimem.paper import figures
from pimem.paper.render import latex_text, pipes, tabular, write_texts
from pimem.paper.tables import Absent
from pimem.paper.training_tables import Sheet

MANIFEST = "manifest.json"

Builder = Callable[..., Any]
"""Takes what was measured, `version` and `level`; gives a `Sheet`, or a figure with its data. Raises `Absent`."""


@dataclass(frozen=True)
class Outputs:
    """What a kind of version holds."""

    profile: str
    """Its folder, and the name that `pimem report` knows it by."""
    sheets: Mapping[str, Builder]
    figures: Mapping[str, Builder]

    def make(self, made_of: Any, folders: Mapping[str, Path], about: Mapping[str, Any]) -> list[Path]:
        """Builds and writes everything that is not absent, manifests last; returns the files. Raises `StoreError`."""
        said = {"version": folders["tables"].name, "level": float(about["level"])}
        made: dict[str, list[Path]] = {"tables": [], "figures": []}
        skipped: dict[str, dict[str, str]] = {"tables": {}, "figures": {}}
        for name, build in self.sheets.items():
            try:
                made["tables"] += write(build(made_of, **said), folders["tables"])
            except Absent as error:
                skipped["tables"][name] = str(error)
        for name, draw in self.figures.items():
            try:
                figure, data = draw(made_of, **said)
                made["figures"] += figures.write(figure, data, folders["figures"], name)
            except Absent as error:
                skipped["figures"][name] = str(error)
        for kind, folder in folders.items():
            files = {path.name: sha256(path) for path in made[kind]}
            record = {**about, "version": said["version"], "profile": self.profile, "files": files, "skipped": skipped[kind]}
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(folder / MANIFEST, json.dumps(record, indent=1, default=str) + "\n")
        return [*made["tables"], *made["figures"], *(folder / MANIFEST for folder in folders.values())]

    def show(self, version: Mapping[str, Path], name: str) -> Any:
        """A table or figure as a notebook displays it, or a line that says why the version lacks it.

        Raises `DataError` for one that does not exist.
        """
        from IPython.display import Image, Markdown

        if name not in {**self.sheets, **self.figures}:
            raise DataError(f"no table or figure {name!r} in {self.profile}; {nearest(name, {**self.sheets, **self.figures})}")
        kind, suffix = ("tables", "md") if name in self.sheets else ("figures", "png")
        path = version[kind] / f"{name}.{suffix}"
        if not path.is_file():
            about = json.loads((version[kind] / MANIFEST).read_text(encoding="utf-8"))
            return Markdown(f"*Not here yet: {about['skipped'][name]}.*")
        if kind == "figures":
            return Image(filename=str(path), width=900)
        # Under the notebook's own headlines.
        return Markdown(path.read_text(encoding="utf-8").replace("# ", "#### ", 1))


def write(sheet: Sheet, folder: Path) -> list[Path]:
    """A table as csv (its cells), md and tex; returns the files. Raises `StoreError`."""
    folder.mkdir(parents=True, exist_ok=True)
    head, rows = [str(c) for c in sheet.shown], sheet.shown.astype(str).to_numpy().tolist()
    latex = [
        r"% Needs \usepackage{booktabs,graphicx}.",
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{latex_text(sheet.title)}.}}",
        rf"\label{{tab:{sheet.name}}}",
        *tabular([_latex(c) for c in head], [" & ".join(map(_latex, row)) + r" \\" for row in rows]),
        r"\par\smallskip\parbox{\linewidth}{\footnotesize\raggedright",
        *(_latex(note) for note in sheet.notes),
        "}",
        r"\end{table}",
    ]
    texts = {
        "csv": sheet.cells.to_csv(index=False, lineterminator="\n", float_format="%.6g"),
        "md": "\n".join([f"# {sheet.title}", "", *pipes(head, rows), "", *(f"- {note}" for note in sheet.notes), ""]),
        "tex": "\n".join([*latex, ""]),
    }
    return write_texts(folder, sheet.name, texts)


def _latex(text: str) -> str:
    return latex_text(text).replace("λ", r"$\lambda$").replace("\N{NO-BREAK SPACE}", "~").replace("—", "---")
