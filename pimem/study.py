"""What an evaluation notebook calls: the cells of its section, run, scored, and shown as frames. Synchronous.

    study = Study("02_hotpotqa", "smoke", lengths=[20])
    study.plan(); study.run(); study.scores()
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from pimem import models, paths, runs, trace_view
from pimem.config import RunSpec
from pimem.errors import DataError
from pimem.paper import scores as score_frames
from pimem.portal import Portal
from pimem.profiles import Profile
from pimem.progress import Counts
from pimem.prompts import PromptSet
from pimem.records import Sample, Trace
from pimem.store import RunStore
from pimem.tasks.base import build as build_task
from pimem.tokens import Tokenizer, windows


@dataclass(frozen=True)
class Cell:
    """One run of a study and, once run, its store."""

    spec: RunSpec
    store: RunStore
    counts: Counts


class Study:
    """One notebook's section of a profile, with the notebook's own parameters on top.

    Raises `ConfigError` for an unknown profile, notebook, parameter or method, `DataError` for a model or data set that is not
    here.
    """

    def __init__(self, notebook: str, profile: str = "smoke", **changes: Any):
        self.notebook = notebook
        self.profile = Profile.load(profile)
        self.section = self.profile.section(notebook, changes)
        self.specs = list(self.profile.run_specs(self.section))
        self.cells: list[Cell] = []

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(models.resolve(self.profile.model))

    def plan(self) -> pd.DataFrame:
        """A row a run: task, length, method, samples, and the budgets that matter."""
        budgets = ("chunk_tokens", "memory_tokens", "max_turns")
        rows = []
        for spec in self.specs:
            row = {"task": spec.task.name, "length": spec.task.length, "method": spec.method.method, "samples": self.section.samples}
            rows.append(row | {b: getattr(spec.method, b, None) for b in budgets} | {"window": spec.model.window})
        return pd.DataFrame(rows).astype({b: "Int64" for b in budgets})

    def run(self) -> pd.DataFrame:
        """Makes what the store lacks; returns a row a run with calls made and replayed, tokens and failures."""
        profile = self.profile
        with Portal() as portal:
            finished = portal.call(
                runs.run, self.specs, self.section.samples, profile.engine, profile.execution, paths.runs()
            )
        self.cells = [Cell(spec, store, store.counts) for spec, store in zip(self.specs, finished, strict=True)]
        rows = [
            {"task": c.spec.task.name, "length": c.spec.task.length, "method": c.spec.method.method, **asdict(c.counts)}
            for c in self.cells
        ]
        return pd.DataFrame(rows).drop(columns=["stale", "cached_tokens"])

    def open(self) -> list[Cell]:
        """The cells, run if they are not yet."""
        if not self.cells:
            self.run()
        return self.cells

    def scores(self) -> pd.DataFrame:
        """The tidy per-sample scores of all cells, computed from the stored traces."""
        form = PromptSet.load(self.profile.prompts).answer_form
        frames = []
        for cell in self.open():
            task = build_task(cell.spec.task, self.tokenizer)
            n = self.section.samples
            frames.append(
                score_frames.collect(
                    cell.store.traces(n),
                    cell.store.samples(n),
                    cell.spec,
                    run=cell.store.path.name.rpartition("-")[2],
                    profile=self.profile.name,
                    form=form,
                    metric=task.metric,
                    unit=task.unit,
                )
            )
        return score_frames.combine(frames)

    def traces(self, method: str) -> Iterator[tuple[Cell, Sample, Trace]]:
        """The samples and traces of one method, cell by cell."""
        for cell in self.open():
            if cell.spec.method.method == method:
                for sample, trace in cell.store.records(self.section.samples):
                    yield cell, sample, trace

    def example(self, method: str = "pi_mem", index: int = 0) -> str:
        """One trace as text, the chunks that hold gold evidence marked."""
        for number, (cell, sample, trace) in enumerate(self.traces(method)):
            if number == index:
                size = getattr(cell.spec.method, "chunk_tokens", None)
                return trace_view.as_text(trace, chunk_tokens=size, evidence=sample.evidence)
        raise DataError(f"{self.notebook}: no trace {index} of method {method!r}")

    def checks(self) -> pd.DataFrame:
        """PI-Mem's check signal against gold, by turn: how chunks with and without evidence were judged."""
        rows = []
        for cell, sample, trace in self.traces("pi_mem"):
            spans = windows(trace.context_tokens, cell.spec.method.chunk_tokens)
            for turn in trace.turns:
                for (start, end), call in zip(spans, turn.reads, strict=True):
                    holds = any(e.start < end and e.end > start for e in sample.evidence)
                    rows.append(
                        {"task": cell.spec.task.name, "turn": turn.number, "evidence": "in chunk" if holds else "not in chunk", "check": call.check}
                    )
        if not rows:
            raise DataError(f"{self.notebook}: PI-Mem is not among its methods, so there is no check signal")
        counts = pd.DataFrame(rows).value_counts().unstack(fill_value=0)
        return counts.reindex(columns=["yes", "no", "malformed", "failed"], fill_value=0)
