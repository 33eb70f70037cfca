"""Specifications: strict building, presets, documented fields, the canonical hash."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import subprocess
import sys
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem import config
from pimem.config import (
    EngineSpec,
    Execution,
    MemAgentSpec,
    ModelSpec,
    PiMemSpec,
    RagSpec,
    RunSpec,
    SamplingSpec,
    TaskSpec,
    VanillaSpec,
    as_dict,
    build,
    canonical_hash,
    field_docs,
    load_yaml,
    method_spec,
)
from pimem.errors import ConfigError

SPECS = (ModelSpec, EngineSpec, Execution, PiMemSpec, MemAgentSpec, VanillaSpec, RagSpec, TaskSpec, SamplingSpec, RunSpec)


@pytest.mark.parametrize("cls", SPECS)
def test_every_field_has_its_docstring(cls: type) -> None:
    docs = field_docs(cls)
    for field in dataclasses.fields(cls):
        assert docs.get(field.name, "").endswith("."), f"{cls.__name__}.{field.name}"


def test_field_docs_are_joined_over_lines() -> None:
    assert field_docs(PiMemSpec)["max_turns"] == "K, the most read-select-merge turns."


def test_builds_nested_mappings_and_tells_methods_apart() -> None:
    run = build(RunSpec, {"method": {"method": "rag", "top": 3}, "model": {"window": 512}, "task": {"name": "niah_single_1"}})
    assert run == RunSpec(RagSpec(top=3), ModelSpec(window=512), TaskSpec("niah_single_1"))
    assert build(RunSpec, {"method": MemAgentSpec(chunk_tokens=9)}).method == MemAgentSpec(chunk_tokens=9)


def test_a_whole_specification_survives_json() -> None:
    run = RunSpec(PiMemSpec(select=False, max_turns=5), task=TaskSpec(params={"needles": [1, 2]}))
    assert build(RunSpec, as_dict(run)) == run


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            {"method": {"method": "pi_mem", "chunk_token": 9}},
            r"RunSpec\.method: unknown key 'chunk_token'; did you mean 'chunk_tokens'",
        ),
        ({"method": {"method": "pi_mm"}}, r"RunSpec\.method\.method: unknown method 'pi_mm'; did you mean 'pi_mem'"),
        ({"method": {"method": ["pi_mem"]}}, r"RunSpec\.method\.method: unknown method \['pi_mem'\]"),
        ({"method": {"chunk_tokens": 9}}, r"RunSpec\.method: the key 'method' must say which one"),
        ({"method": "pi_mem"}, r"RunSpec\.method: expected PiMemSpec or .*got 'pi_mem' \(str\)"),
        ({}, r"RunSpec: method must be given"),
        ({"method": {"method": "pi_mem", "max_turns": True}}, r"max_turns: expected int, got True \(bool\)"),
        ({"method": {"method": "pi_mem", "max_turns": "3"}}, r"max_turns: expected int, got '3' \(str\)"),
        ({"method": {"method": "pi_mem", "max_turns": 3.0}}, r"max_turns: expected int, got 3\.0 \(float\)"),
        ({"method": {"method": "pi_mem", "select": 1}}, r"select: expected bool, got 1 \(int\)"),
        ({"method": {"method": "pi_mem", "select": "false"}}, r"select: expected bool"),
        (
            {"method": {"method": "pi_mem", "prompt_order": "papr"}},
            r"prompt_order: 'papr' is not allowed; did you mean 'paper'",
        ),
        ({"method": {"method": "pi_mem"}, "model": {"window": None}}, r"model\.window: expected int, got None"),
        ({"method": {"method": "pi_mem"}, "model": {"revision": 3}}, r"model\.revision: expected str or NoneType, got 3"),
        ({"method": {"method": "pi_mem"}, "model": {"template_args": []}}, r"template_args: expected a mapping"),
        ({"method": {"method": "pi_mem"}, "model": []}, r"RunSpec\.model: expected a mapping with the keys of ModelSpec"),
        ({"method": {"method": "pi_mem"}, "sampling": {"temperature": True}}, r"temperature: expected float, got True"),
        ({"method": {"method": "pi_mem"}, "sampling": {"temperature": math.nan}}, r"temperature: expected a finite number"),
        ({"method": {"method": "pi_mem"}, "sampling": {"top_p": math.inf}}, r"top_p: expected a finite number"),
        (
            {"method": {"method": "pi_mem"}, "task": {"params": {"a": [date(2024, 1, 1)]}}},
            r"task\.params\.a\[0\]: expected text, a num",
        ),
        ({"method": {"method": "pi_mem"}, "task": {"params": {"a": math.nan}}}, r"task\.params\.a: expected a finite number"),
        ({"metod": 1}, r"RunSpec: unknown key 'metod'; did you mean 'method'"),
        ({1: 1}, r"RunSpec: unknown key 1"),
    ],
)
def test_refuses_by_place_and_nearest_name(data: dict[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(RunSpec, data)


@pytest.mark.parametrize(
    ("cls", "field", "bad", "good"),
    [
        *((PiMemSpec, f, 0, 1) for f in ("chunk_tokens", "memory_tokens", "read_tokens", "answer_tokens", "max_turns")),
        *((MemAgentSpec, f, -1, 1) for f in ("chunk_tokens", "memory_tokens", "answer_tokens")),
        *((RagSpec, f, 0, 1) for f in ("chunk_tokens", "top", "answer_tokens")),
        (VanillaSpec, "answer_tokens", 0, 1),
        (ModelSpec, "window", 0, 1),
        (TaskSpec, "length", 0, 1),
        (SamplingSpec, "temperature", -0.1, 0.0),
        (SamplingSpec, "top_p", 0.0, 1.0),
        (SamplingSpec, "top_p", 1.1, 0.1),
        (Execution, "concurrency", 0, 1),
        (Execution, "inflight_tokens", 0, 1),
        (Execution, "retries", -1, 0),
        (EngineSpec, "tensor_parallel", 0, 1),
        (EngineSpec, "max_batch_tokens", 0, 1),
        (EngineSpec, "gpu_memory", 0.0, 1.0),
        (EngineSpec, "timeout", 0.0, 0.1),
    ],
)
def test_numbers_outside_their_range_are_refused(cls: type, field: str, bad: Any, good: Any) -> None:
    assert getattr(build(cls, {field: good}), field) == good
    with pytest.raises(ConfigError, match=rf"^here\.{field}: "):
        build(cls, {field: bad}, "here")
    with pytest.raises(ConfigError, match=rf"^{field}: "):
        cls(**{field: bad})


def test_integers_pass_as_floats_and_nothing_else_is_converted() -> None:
    sampling = build(SamplingSpec, {"temperature": 1})
    assert sampling.temperature == 1.0
    assert isinstance(sampling.temperature, float)


def test_free_form_fields_are_copied() -> None:
    given_ = {"enable_thinking": False, "list": [1]}
    model = build(ModelSpec, {"template_args": given_})
    given_["list"].append(2)  # type: ignore[attr-defined]
    assert model.template_args == {"enable_thinking": False, "list": [1]}


def test_presets_differ_where_the_released_code_does() -> None:
    assert method_spec("pi_mem") == PiMemSpec()
    assert method_spec("pi_mem", semantics="released") == PiMemSpec(
        check_rule="lenient", labels="renumbered", on_failure="continue"
    )
    assert method_spec("rag", semantics="released") == RagSpec(chunk_tokens=2000, bm25="okapi")
    assert method_spec("vanilla", semantics="released") == VanillaSpec()
    assert method_spec("vanilla", semantics="official") == VanillaSpec(answer_tokens=128, prompt_tokens=120_000, cut="prompt")
    assert method_spec("rag", semantics="official").order == "text"  # type: ignore[union-attr]
    assert method_spec("pi_mem", {"labels": "original"}, "released").labels == "original"  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="unknown semantics 'relased'; did you mean 'released'"):
        method_spec("pi_mem", semantics="relased")
    with pytest.raises(ConfigError, match="unknown method 'mem_agnt'; did you mean 'mem_agent'"):
        method_spec("mem_agnt")
    assert set(config.METHODS) == {"pi_mem", "mem_agent", "rememr1", "gru_mem", "vanilla", "yarn", "rag"}


@dataclasses.dataclass(frozen=True)
class _Maybe:
    model: ModelSpec | None = None
    sizes: tuple[int, ...] = ()


def test_optional_records_and_tuples() -> None:
    assert build(_Maybe, {"model": {"window": 7}, "sizes": [1, 2]}) == _Maybe(ModelSpec(window=7), (1, 2))
    assert build(_Maybe, {"model": None}) == _Maybe()
    with pytest.raises(ConfigError, match=r"_Maybe\.sizes\[1\]: expected int, got 'x'"):
        build(_Maybe, {"sizes": [1, "x"]})
    with pytest.raises(ConfigError, match=r"_Maybe\.sizes: expected a list, got '12'"):
        build(_Maybe, {"sizes": "12"})


def test_yaml_files(tmp_path: Any) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("method: {method: vanilla}\n")
    assert build(RunSpec, load_yaml(path)).method == VanillaSpec()
    for text, message in [("- 1\n", "expected a mapping"), ("a: [\n", "not valid YAML"), ("", "expected a mapping, got None")]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_yaml(path)
    path.write_bytes(b"a: \xff\xfe\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_yaml(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_yaml(tmp_path / "b.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path)
    for text, key in (("a: 1\nb: 2\na: 1\n", "a"), ("a: {b: 1, b: 2}", "b"), ("- 1\n", None), ("m: [{x: 1, 'x': 2}]", "x")):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"the key '{key}' stands there twice" if key else "expected a mapping"):
            load_yaml(path)
    path.write_text("base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  a: 3\n")
    assert load_yaml(path)["other"] == {"a": 3, "b": 2}


def test_hash_is_pinned() -> None:
    # A change here makes every stored run a stranger: it must be meant.
    assert canonical_hash({"b": [1, 2.5, None, True], "a": "ä"}) == "f11879da5f07"
    assert canonical_hash({"a": "ä", "b": (1, 2.5, None, True)}) == "f11879da5f07"


def test_hash_is_the_same_in_another_process_with_another_hash_seed() -> None:
    code = (
        "from pimem.config import *\n"
        "print(canonical_hash(RunSpec(PiMemSpec(), task=TaskSpec(params={'b': 1, 'a': {'d': 2, 'c': 3}}))))"
    )
    here = canonical_hash(RunSpec(PiMemSpec(), task=TaskSpec(params={"a": {"c": 3, "d": 2}, "b": 1})))
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        assert out.stdout.strip() == here


def test_whole_numbers_hash_alike_however_written() -> None:
    from_yaml = build(SamplingSpec, {"temperature": 0, "top_p": 1})
    in_code = SamplingSpec(temperature=0, top_p=1)
    assert canonical_hash(from_yaml) == canonical_hash(in_code)
    assert canonical_hash({"a": True}) != canonical_hash({"a": 1})
    assert canonical_hash({"a": "1"}) != canonical_hash({"a": 1})


def _other(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case float():
            return value / 2 if value < 1 else value + 1
        case None:
            return "other"
        case dict():
            return {**value, "other": 1}
        case _:
            return f"{value}x"


@pytest.mark.parametrize("cls", [c for c in SPECS if c is not RunSpec])
def test_hash_changes_with_each_field(cls: type) -> None:
    base = cls()
    seen = {canonical_hash(base)}
    for field in dataclasses.fields(cls):
        seen.add(canonical_hash(dataclasses.replace(base, **{field.name: _other(getattr(base, field.name))})))
    assert len(seen) == 1 + len(dataclasses.fields(cls))


def test_run_hash_changes_with_each_part() -> None:
    base = RunSpec(PiMemSpec())
    others = [
        dataclasses.replace(base, method=VanillaSpec()),
        dataclasses.replace(base, model=ModelSpec(window=1)),
        dataclasses.replace(base, task=TaskSpec(seed=1)),
        dataclasses.replace(base, sampling=SamplingSpec(seed=1)),
        dataclasses.replace(base, prompts="small"),
    ]
    assert len({canonical_hash(spec) for spec in (base, *others)}) == 6


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_hash_ignores_key_order(params: dict[str, Any]) -> None:
    backwards = dict(reversed(params.items()))
    assert canonical_hash(TaskSpec(params=params)) == canonical_hash(TaskSpec(params=backwards))


@given(json_values)
def test_build_gives_a_specification_or_a_config_error(data: Any) -> None:
    for cls in (RunSpec, ModelSpec, SamplingSpec):
        with contextlib.suppress(ConfigError):
            assert isinstance(build(cls, data), cls)


@given(st.sampled_from(SPECS), st.data())
def test_any_value_in_any_field_is_taken_or_refused(cls: type, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([f.name for f in dataclasses.fields(cls)]))
    try:
        spec = build(cls, {name: data.draw(json_values)})
    except ConfigError:
        return
    assert len(canonical_hash(spec)) == 12
