"""One question over a person's own text files: the whole workflow behind one call, and its trace.

Answers go through the run store like any run's, so an interrupted question goes on where it stopped and the same question costs
nothing the second time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimem import models, paths, runs, trace_view
from pimem.config import METHODS, EngineSpec, Execution, MethodSpec, ModelSpec, RunSpec, SamplingSpec, TaskSpec, method_spec
from pimem.engines.lazy import LazyEngine
from pimem.errors import ConfigError, nearest
from pimem.evaluation import evaluate
from pimem.portal import Portal
from pimem.prompts import PromptSet
from pimem.records import Trace
from pimem.scoring import extract
from pimem.tasks.files import Files
from pimem.tokens import Tokenizer
from pimem.workflows.base import build as build_workflow

DEFAULT_MODEL = "smollm2-135m-pimem"
"""The embedded default: small enough for a laptop, trained here to do PI-Mem."""
SMALL = {DEFAULT_MODEL: (2048, "trained"), "smollm2-135m": (2048, "small")}
"""Small models: the window they are given where none is asked for, and the prompt set they follow."""


@dataclass(frozen=True)
class Asked:
    """A question's trace and what it takes to show it."""

    trace: Trace
    task: Files
    spec: RunSpec
    tokenizer: Tokenizer
    answer: str
    """The extracted answer; the whole response where nothing could be extracted."""

    def as_text(self, show_trace: bool = True) -> str:
        """The trace, or only the answer with the evidence it rests on and the cost."""
        size: int = getattr(self.spec.method, "chunk_tokens", 0)
        if show_trace:
            return trace_view.as_text(
                self.trace,
                context_ids=self.task.sample.context_ids,
                tokenizer=self.tokenizer,
                chunk_tokens=size or None,
                source=self.task.source,
            )
        lines = [f"answer    {trace_view.one_line(self.answer) or '(none)'}"]
        for turn in self.trace.turns:
            for index in turn.selected:
                text = trace_view.one_line(turn.reads[index].text)
                lines.append(f"evidence  turn {turn.number}, chunk {index + 1} ({self.task.source(index * size)}): {text}")
        return "\n".join([*lines, trace_view.cost(self.trace)])


def ask(
    files: Sequence[str | Path],
    question: str,
    *,
    method: str = "pi_mem",
    fields: Mapping[str, Any] | None = None,
    semantics: str = "paper",
    model: str = DEFAULT_MODEL,
    window: int | None = None,
    yarn: float = 1.0,
    prompts: str | None = None,
    engine: EngineSpec | None = None,
    temperature: float = 0.0,
) -> Asked:
    """Answers `question` over the text of `files`. Synchronous; safe in a notebook.

    Budgets that `fields` does not name are set from the window (`budgets`). Raises `ConfigError`, `DataError` and
    `BudgetError` for what cannot work, before any model call.
    """
    if method not in METHODS:
        raise ConfigError(f"unknown method {method!r}; {nearest(method, METHODS)}")
    small = SMALL.get(model)
    if window is None:
        own = (
            small[0] * yarn if small else models.window_of(models.resolve(ModelSpec(model, window=1, yarn=yarn), weights=False))
        )
        window = int(own) if own else None
    if window is None:
        raise ConfigError(f"model {model!r} does not say how long its window is; give --window")
    weights = ModelSpec(model, window=window, yarn=yarn)
    return answer(
        files,
        question,
        method=method_spec(method, {**budgets(method, window), **(fields or {})}, semantics),
        model=weights,
        prompts=prompts or (small[1] if small else "default"),
        sampling=SamplingSpec(temperature=temperature, top_p=1.0 if temperature == 0 else 0.95),
        engine=engine or EngineSpec(),
    )


def answer(
    files: Sequence[str | Path],
    question: str,
    *,
    method: MethodSpec,
    model: ModelSpec,
    prompts: str,
    sampling: SamplingSpec,
    engine: EngineSpec,
    execution: Execution | None = None,
) -> Asked:
    """`ask` with every specification given."""
    if not question.strip():
        raise ConfigError("the question is empty")
    execution = execution or Execution()
    folder = runs.model_folder(engine, model)
    tokenizer = Tokenizer.load(folder)
    task = Files(files, question, tokenizer)
    spec = RunSpec(method, model, TaskSpec("files", len(task.sample.context_ids)), sampling, prompts)
    texts = PromptSet.load(prompts)
    workflow = build_workflow(method, texts, tokenizer, model.window, sampling, execution.retries, model.template_args)

    async def run() -> Trace:
        lazy = LazyEngine.of(engine, model)
        try:
            store = await evaluate(
                spec,
                1,
                engine=lazy,
                execution=execution,
                root=paths.runs(),
                task=task,
                workflow=workflow,
                weights=runs.weights_hash(engine, folder),
                engine_spec=engine,
            )
            return next(store.traces(1))
        finally:
            await lazy.close()

    with Portal() as portal:
        trace = portal.call(run)
    return Asked(trace, task, spec, tokenizer, extract(trace.response, texts.answer_form) or trace.response.strip())


def budgets(method: str, window: int) -> dict[str, int]:
    """Sizes that fit a window: the paper's 5,000 and 1,024 tokens where it is large enough, less where it is not."""
    sizes = {
        "chunk_tokens": min(5000, window // 4),
        "memory_tokens": min(1024, window // 12),
        "read_tokens": min(1024, window // 16),
        "answer_tokens": min(1024, window // 32),
    }
    known = {f.name for f in dataclasses.fields(type(method_spec(method)))}
    return {k: max(1, v) for k, v in sizes.items() if k in known}
