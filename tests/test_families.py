"""Every workflow on every task, as small as `make families` has them: no crash, traces that keep their schema.

A task that is added to `TASKS` is tested by being there; its length and parameters stand here only where the usual ones do not
fit.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from pimem import models, paths, records, runs
from pimem.config import RunSpec, SamplingSpec, TaskSpec
from pimem.errors import DataError
from pimem.profiles import Profile
from pimem.prompts import PromptSet
from pimem.scoring import score
from pimem.tasks.base import TASKS
from pimem.tasks.base import build as build_task
from pimem.tokens import Tokenizer

SIZES: dict[str, TaskSpec] = {
    "hotpotqa": TaskSpec("hotpotqa", 8, params={"split": "eval"}),
    "longbench_v2": TaskSpec("longbench_v2", 4_000_000, params={"file": str(paths.root() / "examples/multiple_choice.jsonl")}),
}
"""Where 1,000 tokens and no parameters would not do."""

FAMILIES = Profile.load("families")


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


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_workflow_runs_and_its_traces_keep_their_schema(name: str, tmp_path: Path) -> None:
    spec = SIZES.get(name, TaskSpec(name, 1000))
    try:
        tokenizer = Tokenizer.load(models.resolve(FAMILIES.model))
        task = build_task(spec, tokenizer)
    except DataError as error:
        pytest.skip(str(error))
    sampling = SamplingSpec(temperature=0.0, top_p=1.0)
    specs = [RunSpec(FAMILIES.method(method), FAMILIES.model, spec, sampling, FAMILIES.prompts) for method in FAMILIES.methods]
    assert {s.method.method for s in specs} >= {"vanilla", "rag", "mem_agent", "gru_mem", "rememr1", "pi_mem"}
    stores = runs.run_sync(specs, 1, FAMILIES.engine, FAMILIES.execution, tmp_path, progress="none")
    form = PromptSet.load(FAMILIES.prompts).answer_form
    for run, store in zip(specs, stores, strict=True):
        where = f"{name}, {run.method.method}"
        ((sample, trace),) = store.records()
        assert trace.status == "answered", f"{where}: {trace.failure}"
        keeps(records.Trace, trace, where)
        assert records.trace_from_json(json.loads(json.dumps(records.to_json(trace)))) == trace
        assert trace.method == run.method.method
        assert trace.context_tokens == sample.meta["tokens"]
        assert all(call.completion and call.completion.generated_tokens for call in trace.calls()), where
        assert set(score(trace, sample.answers, form, task.metric)) >= {task.metric, "extracted"}
