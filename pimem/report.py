"""What the paper notebook calls: the scores of a profile's evaluation notebooks, made into a version of tables and figures."""

from __future__ import annotations

from typing import Any

import pandas as pd

from pimem.errors import DataError, nearest
from pimem.paper import scores, versions
from pimem.profiles import Profile
from pimem.study import Study


class Report:
    """The tables and figures of one profile.

    Reads the run store and computes what it lacks, so that a report is never of half a run. Raises as `Study` does, and
    `StoreError` where the version cannot be written.
    """

    def __init__(self, profile: str = "smoke"):
        if Profile.load(profile).engine.kind == "scripted":
            raise DataError(
                f"profile {profile}: the scripted engine is for tests; no table or figure is made from what it says"
            )
        self.studies = [study for study in (Study(name, profile) for name in _notebooks(profile)) if study.specs]
        if not self.studies:
            raise DataError(f"profile {profile}: none of its notebooks runs anything, so there is nothing to report")
        self.scores = scores.combine(study.scores() for study in self.studies)
        first = self.studies[0].profile
        after, before = first.model.path, first.before_rl
        self.version = versions.publish(
            self.scores,
            same_model={after: first.published_model} if first.published_model else None,
            before_rl={before: after} if before in set(self.scores["model"]) else None,
        )

    def show(self, name: str) -> Any:
        """A table (`table1_hqa`) or figure (`hqa_by_length`) of the version, as a notebook displays it.

        Raises `DataError` for one the version does not have.
        """
        from IPython.display import Image, Markdown

        table, figure = self.version["tables"] / f"{name}.md", self.version["figures"] / f"{name}.png"
        if table.is_file():
            return Markdown(table.read_text(encoding="utf-8"))
        if figure.is_file():
            return Image(filename=str(figure), width=900)
        made = [p.stem for p in (*self.version["tables"].glob("*.md"), *self.version["figures"].glob("*.png"))]
        raise DataError(f"no table or figure {name!r} in {self.version['tables'].name}; {nearest(name, made)}")

    def coverage(self) -> str:
        """How much of each table was run, a line a table."""
        return versions.coverage(self.version["tables"])

    def comparison(self) -> pd.DataFrame:
        """PI-Mem against every other method that was run, a row a column of a table; empty where there is none."""
        path = self.version["tables"] / "comparison_methods.csv"
        return pd.read_csv(path).drop(columns=["profile", "version"]) if path.is_file() else pd.DataFrame()

    def folders(self) -> str:
        """Where the version lies, a line a kind."""
        return "\n".join(f"{kind:8} {folder}" for kind, folder in self.version.items())


def _notebooks(profile: str) -> list[str]:
    return list(Profile.load(profile).notebooks)
