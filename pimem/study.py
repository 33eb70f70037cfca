"""What an evaluation notebook calls: the cells of its section, run, scored, and shown as frames. Synchronous.

study = Study("02_hotpotqa", "smoke", lengths=[20])
study.plan(); study.run(); study.scores()
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from pimem import paths, runs, trace_view
from pimem.config import PiMemSpec, RunSpec
from pimem.errors import ConfigError, DataError, nearest
from pimem.paper import causes, cells, figures, style
from pimem.paper import scores as score_frames
from pimem.profiles import Profile
from pimem.progress import Counts
from pimem.prompts import PromptSet
from pimem.records import Sample, Trace
from pimem.scoring import score
from pimem.store import RunStore
from pimem.tasks.base import TASKS
from pimem.tasks.base import build as build_task
from pimem.tokens import Tokenizer, holding, windows


def named(method: str, label: str) -> str:
    """A run in a notebook's frames: the method, and what sets it apart from others of it."""
    return f"{method} ({label})" if label else method


def _about(spec: RunSpec, label: str) -> dict[str, Any]:
    return {"task": spec.task.name, "length": spec.task.length, "method": named(spec.method.method, label)}


@dataclass(frozen=True)
class Cell:
    """One run of a study and, once run, its store."""

    spec: RunSpec
    store: RunStore
    counts: Counts
    label: str = ""
    """What stands behind the method's name in tables."""

    @property
    def about(self) -> dict[str, Any]:
        """What a notebook's frames say of it."""
        return _about(self.spec, self.label)


class Study:
    """One notebook's section of a profile, with the notebook's own parameters on top.

    Raises `ConfigError` for an unknown profile, notebook, parameter, task or method, `DataError` for a model or data set that
    is not here.
    """

    def __init__(self, notebook: str, profile: str = "smoke", **changes: Any):
        self.notebook = notebook
        self.profile = Profile.load(profile)
        self.section = self.profile.section(notebook, changes)
        for task in self.section.tasks:
            if task not in TASKS:
                raise ConfigError(f"profile {self.profile.name}: {notebook}: unknown task {task!r}; {nearest(task, TASKS)}")
        labelled = list(self.profile.labelled(self.section))
        self.specs = [spec for spec, _ in labelled]
        self.labels = [label for _, label in labelled]
        self.cells: list[Cell] = []

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.load(runs.model_folder(self.profile.engine, self.profile.model))

    def plan(self) -> pd.DataFrame:
        """A row a run: task, length, method, samples, and the budgets that matter."""
        budgets = ("chunk_tokens", "memory_tokens", "max_turns")
        rows = []
        for spec, label in zip(self.specs, self.labels, strict=True):
            row = _about(spec, label) | {"samples": self._samples(spec), "window": spec.model.window}
            rows.append(row | {b: getattr(spec.method, b, None) for b in budgets})
        return pd.DataFrame(rows).astype(dict.fromkeys(budgets, "Int64"))

    def run(self) -> pd.DataFrame:
        """Makes what the store lacks; returns a row a run with calls made and replayed, tokens and failures."""
        profile = self.profile
        wanted = [self._samples(spec) for spec in self.specs]
        finished = runs.run_sync(self.specs, wanted, profile.engine, profile.execution, paths.runs())
        made = zip(self.specs, finished, self.labels, strict=True)
        self.cells = [Cell(spec, store, store.counts, label) for spec, store, label in made]
        rows = [c.about | asdict(c.counts) for c in self.cells]
        return pd.DataFrame(rows).drop(columns=["stale", "cached_tokens"])

    def _samples(self, spec: RunSpec) -> int:
        return self.section.samples_of(spec.task.length)

    def open(self) -> list[Cell]:
        """The cells, run if they are not yet."""
        if not self.cells:
            self.run()
        return self.cells

    def scores(self) -> pd.DataFrame:
        """The tidy per-sample scores of all cells, computed from the stored traces."""
        frames = []
        for cell in self.open():
            task = build_task(cell.spec.task, self.tokenizer)
            n = self._samples(cell.spec)
            frames.append(
                score_frames.collect(
                    cell.store.traces(n),
                    cell.store.samples(n),
                    cell.spec,
                    run=cell.store.path.name.rpartition("-")[2],
                    profile=self.profile.name,
                    form=PromptSet.load(cell.spec.prompts).answer_form,
                    variant=cell.label,
                    metric=task.metric,
                    unit=task.unit,
                )
            )
        return score_frames.combine(frames)

    def summary(self, scores: pd.DataFrame) -> pd.DataFrame:
        """A row a cell: the primary score with its 95 % interval by question, coverage where there is a memory, turns, cost."""
        primary = cells.cells(scores, version="")
        primary = primary[primary["column"] != "Avg"]
        keys = ["task", "length", "method", "prompts", "variant"]
        spent = scores.groupby(keys, sort=False).agg(
            coverage=("coverage", lambda c: 100 * c.mean()),
            turns=("turns", "mean"),
            calls=("calls", "mean"),
            tokens_read=("prompt_tokens", "mean"),
        )
        shown = primary[[*keys, "metric", "value", "low", "high", "n", "failed"]].merge(spent.reset_index(), on=keys)
        told = [key for key in ("prompts", "variant") if shown[key].nunique() == 1]
        return shown.drop(columns=told).round(1)

    def groups(self, scores: pd.DataFrame) -> pd.DataFrame:
        """Accuracy in percent by LongBench v2's own groups, a row a method, a column a group, with its interval and n."""
        shown = cells.by_group(scores, version="", columns=cells.GROUPS | cells.domains(scores))
        text = [f"{r.value:.1f} [{r.low:.0f}, {r.high:.0f}] n={r.n}" for r in shown.itertuples()]
        rows = [named(r.method, r.variant) for r in shown.itertuples()]
        frame = shown.assign(text=text, row=rows)
        wide = frame.pivot_table(index=["prompts", "row"], columns="column", values="text", aggfunc="first", sort=False)
        return wide.reindex(columns=list(dict.fromkeys(shown["column"]))).fillna("")

    def figure(self, scores: pd.DataFrame) -> Any:
        """Sub-EM over length, as the report draws it."""
        from IPython.display import Image

        drawn, _ = figures.hqa(scores, version="(preview)")
        buffer = io.BytesIO()
        with style.use():
            drawn.savefig(buffer, format="png")
        return Image(data=buffer.getvalue(), width=900)

    def traces(self, method: str) -> Iterator[tuple[Cell, Sample, Trace]]:
        """The samples and traces of one method, cell by cell."""
        for cell in self.open():
            if cell.spec.method.method == method:
                for sample, trace in cell.store.records(self._samples(cell.spec)):
                    yield cell, sample, trace

    def example(self, method: str = "pi_mem", index: int = 0) -> str:
        """One trace as text, the chunks that hold gold evidence marked."""
        for number, (cell, sample, trace) in enumerate(self.traces(method)):
            if number == index:
                size = getattr(cell.spec.method, "chunk_tokens", None)
                return trace_view.as_text(trace, chunk_tokens=size, evidence=sample.evidence)
        raise DataError(f"{self.notebook}: no trace {index} of method {method!r}")

    def causes(self) -> pd.DataFrame:
        """How many samples of each run were answered, and where the others were lost (`pimem.paper.causes`)."""
        rows = []
        for cell in self.open():
            form = PromptSet.load(cell.spec.prompts).answer_form
            metric = build_task(cell.spec.task, self.tokenizer).metric
            size = getattr(cell.spec.method, "chunk_tokens", None)
            for sample, trace in cell.store.records(self._samples(cell.spec)):
                right = score(trace, sample.answers, form, metric)[metric]
                rows.append(cell.about | {"cause": causes.cause(sample, trace, size, right, metric)})
        counts = pd.DataFrame(rows).value_counts(sort=False).unstack(fill_value=0)
        order = list(dict.fromkeys((r["task"], r["length"], r["method"]) for r in rows))
        return counts.reindex(index=order, columns=list(causes.CAUSES), fill_value=0)

    def checks(self) -> pd.DataFrame:
        """PI-Mem's check signal against gold, by turn: how chunks with and without evidence were judged."""
        rows = []
        for cell, sample, trace in self.traces("pi_mem"):
            if not isinstance(cell.spec.method, PiMemSpec) or not cell.spec.method.select:
                continue
            gold = holding(windows(trace.context_tokens, cell.spec.method.chunk_tokens), sample.evidence)
            for turn in trace.turns:
                for index, call in enumerate(turn.reads):
                    where = "in the chunk" if index in gold else "not in the chunk"
                    rows.append({"task": cell.spec.task.name, "turn": turn.number, "evidence": where, "check": call.check})
        if not rows:
            raise DataError(f"{self.notebook}: no run of PI-Mem with selection, so there is no check signal")
        counts = pd.DataFrame(rows).value_counts().unstack(fill_value=0)
        return counts.reindex(columns=["yes", "no", "malformed", "failed"], fill_value=0)
