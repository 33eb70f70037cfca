"""What the notebook of GRU-Mem's gates calls: its cells, run, and a version of tables and figures made from their traces."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pandas as pd

from pimem import runs
from pimem.config import RunSpec
from pimem.errors import ConfigError, DataError
from pimem.paper import gate_steps, gate_versions
from pimem.study import Cell, Study
from pimem.tokens import Tokenizer
from pimem.trace_view import RECURRENT

NOTEBOOK = "11_gates"
SECTION = ("tasks", "lengths", "lengths_of", "evidence_within", "samples", "models")
"""What of the section stands in a version's manifest."""


class Gates(Study):
    """The section of `11_gates`: methods that read chunk after chunk, under every setting and model.

    gates = Gates("families", evidence_within=[1.0, 0.2])
    gates.plan(); gates.run(); gates.publish(); gates.show("gates_exits")

    Raises as `Study`, and `ConfigError` for a method that does not read chunk after chunk.
    """

    def __init__(self, profile: str = "families", **changes: Any):
        super().__init__(NOTEBOOK, profile, **changes)
        if other := sorted({spec.method.method for spec in self.specs} - RECURRENT):
            raise ConfigError(
                f"{NOTEBOOK}: {other[0]} does not read chunk after chunk; choose of {', '.join(sorted(RECURRENT))}"
            )

    def plan(self) -> pd.DataFrame:
        """A row a run, with its model and where its evidence lies."""
        rows = super().plan()
        rows.insert(2, "evidence_within", [within(spec) for spec in self.specs])
        rows.insert(3, "model", [self.model_name(spec) for spec in self.specs])
        return rows

    def scores(self) -> pd.DataFrame:
        """The per-sample scores of all cells, models by the names the section gives them."""
        named = {path: name for name, path in self.section.models.items()}
        scores = super().scores()
        return scores.assign(model=scores["model"].map(lambda path: named.get(path, path)))

    def steps(self) -> pd.DataFrame:
        """What every step did, computed from the stored traces."""
        return gate_steps.validate(pd.DataFrame(self._steps()), NOTEBOOK)

    def publish(self) -> pd.DataFrame:
        """Makes the version of tables and figures; returns a row a cell with score, exits, updates and cost.

        Raises `DataError` under the scripted engine, and `StoreError` where something cannot be written.
        """
        if self.profile.engine.kind == "scripted":
            raise DataError(
                f"profile {self.profile.name}: the scripted engine is for tests; no table or figure is made from what it says"
            )
        sections = {name: getattr(self.section, name) for name in SECTION}
        self.version = gate_versions.publish(self.scores(), self.steps(), models=tuple(self.section.models), section=sections)
        return self._tables("gates_score_and_time")

    def show(self, name: str) -> Any:
        """A table or figure of the version, or a line that says what it lacks. Raises `DataError` for an unknown one."""
        return gate_versions.outputs(self.profile.name).show(self.version, name)

    def folders(self) -> str:
        """Where the version lies, a line a kind."""
        return "\n".join(f"{kind:8} {folder}" for kind, folder in self.version.items())

    @functools.cached_property
    def version(self) -> dict[str, Any]:
        raise DataError("no version yet: call publish() first")

    def model_name(self, spec: RunSpec) -> str:
        """What outputs call a run's model."""
        return next((name for name, path in self.section.models.items() if path == spec.model.path), spec.model.path)

    def _tables(self, name: str) -> pd.DataFrame:
        cells = pd.read_csv(self.version["tables"] / f"{name}.csv", keep_default_na=False, na_values=[""])
        kept = [
            "task",
            "length",
            "within",
            "model",
            "method",
            "variant",
            "value",
            "low",
            "high",
            "seconds",
            "steps",
            "possible",
        ]
        return cells[[*kept, "speed_up", "n", "failed"]].fillna({"variant": ""}).round(2)

    def _steps(self) -> Iterator[dict[str, Any]]:
        for cell in self.open():
            count = _counter(self._tokenizer_of(cell))
            run, share = cell.store.path.name.rpartition("-")[2], within(cell.spec)
            for sample, trace in cell.store.records(self._samples(cell.spec)):
                size = cell.spec.method.chunk_tokens  # type: ignore[union-attr]  # every recurrent method has chunks
                yield from gate_steps.steps_of(sample, trace, size, count, run=run, within=share)

    def _tokenizer_of(self, cell: Cell) -> Tokenizer:
        if cell.spec.model == self.profile.model:
            return self.tokenizer
        return Tokenizer.load(runs.model_folder(self.profile.engine, cell.spec.model))


def within(spec: RunSpec) -> float:
    """The share of the context in which a run's evidence lies."""
    return float(spec.task.params.get("evidence_within", 1.0))


def _counter(tokenizer: Tokenizer) -> Any:
    """Tokens of a memory; most steps leave the memory as it was."""
    return functools.lru_cache(maxsize=4096)(lambda text: len(tokenizer.encode(text)) if text else 0)
