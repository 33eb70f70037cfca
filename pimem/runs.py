"""Runs from specifications alone: loads what they name, and brings them through `evaluate` on one engine a model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimem import models
from pimem.config import EngineSpec, Execution, ModelSpec, RunSpec, canonical_hash
from pimem.engines.lazy import LazyEngine
from pimem.errors import EngineError
from pimem.evaluation import evaluate
from pimem.packages import sha256
from pimem.portal import Portal
from pimem.progress import Kind
from pimem.store import RunStore
from pimem.tokens import Tokenizer
from pimem.workflows.base import Workflow


@dataclass(frozen=True)
class Parts:
    """What a run's specification stands for, loaded; no model is."""

    task: Any
    workflow: Workflow
    weights: str
    tokenizer: Tokenizer | None = None


def prepare(run: RunSpec, engine: EngineSpec, execution: Execution, tokenizer: Tokenizer | None = None) -> Parts:
    """Loads the prompts and data of a run, and its model's tokenizer where it is not given.

    Raises `ConfigError` and `DataError` as they do.
    """
    from pimem.prompts import PromptSet
    from pimem.tasks.base import build as build_task
    from pimem.workflows.base import build as build_workflow

    folder = model_folder(engine, run.model)
    tokenizer = tokenizer or Tokenizer.load(folder)
    workflow = build_workflow(
        run.method,
        PromptSet.load(run.prompts),
        tokenizer,
        run.model.window,
        run.sampling,
        execution.retries,
        run.model.template_args,
    )
    return Parts(build_task(run.task, tokenizer), workflow, weights_hash(engine, folder), tokenizer)


def model_folder(engine: EngineSpec, model: ModelSpec) -> Path:
    """The model's folder with what the engine needs of it here: a server has the weights. Raises as `models.resolve`."""
    return models.resolve(model, weights=engine.kind != "openai_api")


def weights_hash(engine: EngineSpec, folder: Path) -> str:
    """Digest of what answers: the model's weights and end tokens, or the script, which is never taken for a model.

    Of weights that are on a server alone nothing is known but the model's configuration and the name it is served under.
    """
    if engine.kind == "scripted":
        return f"scripted-{engine.seed}"
    found = models.fingerprint(folder)
    if not any(folder.glob("*.safetensors")):
        return f"served-{canonical_hash([found, engine.served_model])}"
    ends = folder / "generation_config.json"
    # A fetched model's are those of its weights; in any other folder they may be edited.
    if (folder / models.MANIFEST).is_file() or not ends.is_file():
        return found
    return canonical_hash([found, sha256(ends)], 16)


async def run(
    runs: Sequence[RunSpec],
    n: int | Sequence[int],
    engine: EngineSpec,
    execution: Execution,
    root: str | Path,
    *,
    retry_failed: bool = True,
    progress: Kind | None = None,
) -> list[RunStore]:
    """`evaluate` for every specification, one after another; returns their stores in the order given.

    `n`: samples of each run, or of all. Runs of the same model share its tokenizer and one engine, which starts only if
    some call is not in a store. Raises as `evaluate`, and `EngineError` where every sample of a run has failed at a model
    request: that says nothing about its method.
    """
    wanted = [n] * len(runs) if isinstance(n, int) else list(n)
    stores: dict[int, RunStore] = {}
    for model in dict.fromkeys(canonical_hash(r.model) for r in runs):
        mine = [(i, r) for i, r in enumerate(runs) if canonical_hash(r.model) == model]
        lazy = LazyEngine.of(engine, mine[0][1].model)
        try:
            tokenizer = None
            for i, spec in mine:
                parts = await asyncio.to_thread(prepare, spec, engine, execution, tokenizer)
                tokenizer = parts.tokenizer
                stores[i] = await evaluate(
                    spec,
                    wanted[i],
                    engine=lazy,
                    execution=execution,
                    root=root,
                    task=parts.task,
                    workflow=parts.workflow,
                    weights=parts.weights,
                    engine_spec=engine,
                    retry_failed=retry_failed,
                    progress=progress,
                )
                if retry_failed:
                    _check_engine(stores[i], wanted[i])
        finally:
            await lazy.close()
    return [stores[i] for i in range(len(runs))]


def _check_engine(store: RunStore, n: int) -> None:
    if any(store.outcomes[i].status == "answered" for i in range(n)):
        return
    traces = list(store.traces(n))
    if all(any(call.error for call in trace.calls()) for trace in traces):
        raise EngineError(
            f"{store.path}: all {n} samples failed at a model request, the first one so: {traces[0].failure}. What was "
            "answered is kept; mend the engine and give the same command again",
            retryable=False,
        )


def run_sync(
    runs: Sequence[RunSpec],
    n: int | Sequence[int],
    engine: EngineSpec,
    execution: Execution,
    root: str | Path,
    *,
    retry_failed: bool = True,
    progress: Kind | None = None,
) -> list[RunStore]:
    """`run` for notebooks and scripts, whether or not a loop is running already."""
    with Portal() as portal:
        return portal.call(run, runs, n, engine, execution, root, retry_failed=retry_failed, progress=progress)
