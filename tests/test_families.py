"""Every workflow on every task family, at smoke size, with the small model of `make smoke`: no crash, traces that keep their schema.

A family that is added to `TASKS` is tested by being there; its length and parameters stand here only where the usual ones do not
fit it.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from pimem import models, records, runs
from pimem.config import EngineSpec, Execution, ModelSpec, RunSpec, SamplingSpec, TaskSpec
from pimem.data import home
from pimem.errors import DataError
from pimem.profiles import Profile
from pimem.prompts import PromptSet
from pimem.scoring import score
from pimem.tasks.base import TASKS
from pimem.tasks.base import build as build_task
from pimem.tokens import Tokenizer

SIZES: dict[str, TaskSpec] = {"hotpotqa": TaskSpec("hotpotqa", 8, params={"split": "eval"})}
"""Where 1,400 tokens and no parameters would not do."""

SMOKE = Profile.load("smoke")


def keeps(kind: Any, value: Any, where: str) -> None:
    """Asserts that a value read from a trace is of the type that `pimem.records` gives its field."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return
    if dataclasses.is_dataclass(kind):
        assert isinstance(value, kind), where  # type: ignore[arg-type]
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            keeps(hints[field.name], getattr(value, field.name), f"{where}.{field.name}")
    elif origin in (typing.Union, types.UnionType):
        wanted = [a for a in args if a is not type(None)]
        assert value is not None or len(wanted) < len(args), where
        if value is not None:
            keeps(wanted[0], value, where)
    elif origin is typing.Literal:
        assert value in args, f"{where}: {value!r}"
    elif origin is list or (origin is tuple and args[1:] == (...,)):
        assert isinstance(value, origin), where
        for at, one in enumerate(value):
            keeps(args[0], one, f"{where}[{at}]")
    elif origin is dict:
        assert isinstance(value, dict), where
    elif isinstance(kind, type) and issubclass(kind, tuple):
        for name, hint in typing.get_type_hints(kind).items():
            keeps(hint, getattr(value, name), f"{where}.{name}")
    else:
        wide = (int, float) if kind is float else kind
        assert isinstance(value, wide), f"{where}: {value!r}"
        assert kind is bool or not isinstance(value, bool), where


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    try:
        models.resolve(SMOKE.model)
    except DataError as error:
        pytest.skip(str(error))
    for name in ("hotpotqa", "essays"):
        if not (home() / "data" / name).exists():
            pytest.skip(f"needs: pimem data fetch {name}")
    return SMOKE.model


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("family", sorted({known.module for known in TASKS.values()}))
def test_every_workflow_on_every_task_of_a_family(family: str, model: ModelSpec, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(models.resolve(model))
    tasks = [SIZES.get(name, TaskSpec(name, 1400)) for name, known in TASKS.items() if known.module == family]
    specs = [
        RunSpec(SMOKE.method(name), model, task, SamplingSpec(0.0, 1.0), SMOKE.prompts)
        for task in tasks
        for name in SMOKE.methods
    ]
    engine, form = EngineSpec("transformers", device="cpu", max_batch_tokens=16384), PromptSet.load(SMOKE.prompts).answer_form
    stores = runs.run_sync(specs, 1, engine, Execution(), tmp_path, progress="none")
    for spec, store in zip(specs, stores, strict=True):
        where = f"{spec.task.name}, {spec.method.method}"
        ((sample, trace),) = store.records()
        assert trace.status == "answered", f"{where}: {trace.failure}"
        keeps(records.Trace, trace, where)
        assert records.trace_from_json(json.loads(json.dumps(records.to_json(trace)))) == trace
        assert trace.method == spec.method.method
        assert trace.context_tokens == sample.meta["tokens"]
        assert all(call.completion and call.completion.generated_tokens for call in trace.calls()), where
        assert set(score(trace, sample.answers, form, build_task(spec.task, tokenizer).metric)) >= {"extracted"}
