"""Frozen specifications, and the one function that turns mappings into them.

A specification is the single source for the command line, papermill parameters, YAML profiles and a run's identity.
Every field has a docstring under it; `field_docs` reads them for help texts. `build` refuses unknown keys and wrong
types and names the nearest right key.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import json
import textwrap
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from pimem.errors import ConfigError, nearest

T = TypeVar("T")


@dataclass(frozen=True)
class ModelSpec:
    """Which weights answer, and how their chat template is rendered. Part of a run's identity."""

    path: str = "smollm2-135m-pimem"
    """A name from `pimem models`, a local folder, or a hub id."""
    revision: str | None = None
    """Hub revision (a commit); None takes the cached or newest one, and the manifest records which."""
    window: int = 2048
    """Most prompt plus generated tokens of one call. May be smaller than the model's own window, never larger."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Arithmetic of the weights."""
    template_args: dict[str, Any] = field(default_factory=lambda: {"enable_thinking": False})
    """Arguments of the chat template; thinking is off as in the paper."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "window")


@dataclass(frozen=True)
class EngineSpec:
    """How requests are executed. No part of a run's identity, except of a latency run's."""

    kind: str = "transformers"
    """transformers, vllm, openai_api or scripted."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the weights live; auto takes a GPU if there is one."""
    tensor_parallel: int = 1
    """GPUs an engine is split over (vllm)."""
    max_batch_tokens: int = 8192
    """Most tokens in one forward pass: the batch of the transformers engine, vLLM's max_num_batched_tokens."""
    eager: bool = False
    """Leave CUDA graphs and compilation out: starts sooner, decodes slower (vllm)."""
    prefix_caching: bool = True
    """Reuse the KV of a shared prompt prefix (vllm)."""
    gpu_memory: float = 0.9
    """Share of GPU memory, or of RAM on a CPU, that the engine may take (vllm)."""
    url: str | None = None
    """Base URL of an OpenAI-compatible server, up to and including /v1 (openai_api)."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the server's key; the key itself is never stored (openai_api)."""
    served_model: str | None = None
    """Name under which the server knows the model; None asks it (openai_api)."""
    timeout: float = 600.0
    """Seconds one request may take."""
    seed: int = 0
    """Seed of the scripted engine."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "tensor_parallel", "max_batch_tokens")
        _share(self, "gpu_memory")
        if not self.timeout > 0:
            raise ConfigError(f"timeout: {self.timeout} seconds is no time; give more than 0")


@dataclass(frozen=True)
class Execution:
    """How a run is carried out. No part of its identity."""

    concurrency: int = 256
    """Most requests in flight."""
    inflight_tokens: int = 4_000_000
    """Context tokens of samples admitted at a time; a sample's turns end before more are admitted."""
    retries: int = 2
    """Times a failed request is sent again."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "concurrency", "inflight_tokens")
        _at_least(self, 0, "retries")


@dataclass(frozen=True)
class PiMemSpec:
    """PI-Mem: Algorithm 1 and equations 1 and 2."""

    method: Literal["pi_mem"] = "pi_mem"
    """Discriminates the method."""
    chunk_tokens: int = 5000
    """Tokens of one window."""
    memory_tokens: int = 1024
    """Most tokens of a merge, hence of the memory."""
    read_tokens: int = 1024
    """Most tokens of an observation."""
    answer_tokens: int = 1024
    """Most tokens of the final answer."""
    max_turns: int = 3
    """K, the most read-select-merge turns."""
    select: bool = True
    """False: no check signal is asked for and every observation is merged (the paper's ablation)."""
    merge: bool = True
    """False: the memory is the labelled concatenation of the old memory and the observations (the ablation)."""
    prompt_order: Literal["paper", "cached"] = "paper"
    """cached puts the chunk before the memory, so that from turn 2 on an engine's prefix cache serves the chunk."""
    check_rule: Literal["strict", "lenient"] = "strict"
    """strict keeps an observation whose first check tag says yes; lenient drops only one that contains a no tag."""
    labels: Literal["original", "renumbered"] = "original"
    """Number observations in the merge by their chunk, or 1 to m."""
    stop_at_no: bool = True
    """End a read at its closing no tag: the same decision, fewer tokens."""
    on_failure: Literal["fail", "continue"] = "fail"
    """What becomes of a sample when a read failed for good: it fails, or goes on and is counted as damaged."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "chunk_tokens", "memory_tokens", "read_tokens", "answer_tokens", "max_turns")


@dataclass(frozen=True)
class MemAgentSpec:
    """MemAgent: one memory rewritten chunk after chunk, then an answer from it."""

    method: Literal["mem_agent"] = "mem_agent"
    """Discriminates the method."""
    chunk_tokens: int = 5000
    """Tokens of one window."""
    memory_tokens: int = 1024
    """Most tokens of an update."""
    answer_tokens: int = 1024
    """Most tokens of the final answer."""
    on_failure: Literal["fail", "continue"] = "fail"
    """What becomes of a sample when an update failed for good: it fails, or keeps the old memory and is counted as damaged."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "chunk_tokens", "memory_tokens", "answer_tokens")


@dataclass(frozen=True)
class VanillaSpec:
    """The model alone, over as much of the context as its window holds: head and tail kept, the middle cut."""

    method: Literal["vanilla"] = "vanilla"
    """Discriminates the method."""
    answer_tokens: int = 1024
    """Most tokens of the answer."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "answer_tokens")


@dataclass(frozen=True)
class RagSpec:
    """Okapi BM25 over windows of the context, the best of them in front of the model, best first."""

    method: Literal["rag"] = "rag"
    """Discriminates the method."""
    chunk_tokens: int = 5000
    """Tokens of one window; the released code has 2,000 whatever the other methods use."""
    top: int = 6
    """Windows retrieved."""
    answer_tokens: int = 1024
    """Most tokens of the answer."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "chunk_tokens", "top", "answer_tokens")


MethodSpec = PiMemSpec | MemAgentSpec | VanillaSpec | RagSpec

SEMANTICS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "released": {
        "pi_mem": {"check_rule": "lenient", "labels": "renumbered", "on_failure": "continue"},
        "mem_agent": {"on_failure": "continue"},
        "rag": {"chunk_tokens": 2000},
    },
}
"""Presets over method fields: the paper's text, and what the authors' released code does instead (DEVIATIONS.md)."""


@dataclass(frozen=True)
class TaskSpec:
    """What is asked over which text. How many samples are drawn is no part of it: sample i is the same whatever n is."""

    name: str = "hotpotqa"
    """A task from `pimem data tasks`."""
    length: int = 50
    """Documents for hotpotqa, tokens for the other tasks."""
    seed: int = 42
    """Seed of the samples."""
    params: dict[str, Any] = field(default_factory=dict)
    """Fields of the task's own parameters that differ from its defaults."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "length")


@dataclass(frozen=True)
class SamplingSpec:
    """How every call of a run is sampled; the paper evaluates at 0.7 and 0.95."""

    temperature: float = 0.7
    """0 means greedy."""
    top_p: float = 0.95
    """Nucleus mass."""
    seed: int = 0
    """Run seed; each request's own seed is derived from it and the request's key."""

    def __post_init__(self) -> None:
        _at_least(self, 0, "temperature")
        _share(self, "top_p")


@dataclass(frozen=True)
class RunSpec:
    """One method with one model over one task: everything that decides what the answers are."""

    method: MethodSpec
    """The algorithm and its budgets."""
    model: ModelSpec = field(default_factory=ModelSpec)
    """The weights."""
    task: TaskSpec = field(default_factory=TaskSpec)
    """The questions."""
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    """The sampling."""
    prompts: str = "default"
    """A prompt set that ships with the package, or a folder that holds one."""


def build(cls: type[T], data: Any, where: str = "") -> T:
    """A frozen specification of type `cls` from a mapping, strictly.

    Nested dataclasses are built from nested mappings; a union of dataclasses is told apart by the field they share whose
    type is a one-value Literal. Integers pass as floats; nothing else is converted. Raises `ConfigError` that names
    the place and the nearest right key, and for numbers outside their range.
    """
    return typing.cast(T, _build(cls, data, where or cls.__name__))


def _build(kind: Any, data: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return _json(data, where)
    if dataclasses.is_dataclass(kind):
        return _build_dataclass(kind, data, where)
    if origin in (typing.Union, types.UnionType):
        return _build_union(args, data, where)
    if origin is Literal:
        if any(data == a and type(data) is type(a) for a in args):
            return data
        names = [str(a) for a in args]
        raise ConfigError(f"{where}: {data!r} is not allowed; {nearest(str(data), names)}")
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise ConfigError(f"{where}: expected a list, got {_said(data)}")
        return tuple(_build(args[0], v, f"{where}[{i}]") for i, v in enumerate(data))
    if origin is dict:
        if not isinstance(data, Mapping):
            raise ConfigError(f"{where}: expected a mapping, got {_said(data)}")
        return {str(k): _build(args[1], v, f"{where}.{k}") for k, v in data.items()}
    if kind is type(None) and data is None:
        return None
    if kind is float and isinstance(data, int | float) and not isinstance(data, bool):
        if not abs(data) < float("inf"):
            raise ConfigError(f"{where}: expected a finite number, got {_said(data)}")
        return float(data)
    if isinstance(kind, type) and isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise ConfigError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {_said(data)}")


def _build_dataclass(cls: Any, data: Any, where: str) -> Any:
    if isinstance(data, cls):
        return data
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected a mapping with the keys of {cls.__name__}, got {_said(data)}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in data:
        if key not in fields:
            raise ConfigError(f"{where}: unknown key {key!r}; {nearest(str(key), fields)}")
    required = [
        n
        for n, f in fields.items()
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING and n not in data
    ]
    if required:
        raise ConfigError(f"{where}: {', '.join(required)} must be given")
    values = {k: _build(hints[k], v, f"{where}.{k}") for k, v in data.items()}
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}.{error}") from None


def _build_union(args: tuple[Any, ...], data: Any, where: str) -> Any:
    records = [a for a in args if dataclasses.is_dataclass(a)]
    if len(records) == 1 and isinstance(data, Mapping):
        return _build_dataclass(records[0], data, where)
    if records and isinstance(data, Mapping):
        tag, kinds = _tagged(tuple(records))
        if tag not in data:
            raise ConfigError(f"{where}: the key {tag!r} must say which one; {nearest('', kinds)}")
        if not isinstance(data[tag], str) or data[tag] not in kinds:
            raise ConfigError(f"{where}.{tag}: unknown {tag} {data[tag]!r}; {nearest(str(data[tag]), kinds)}")
        return _build_dataclass(kinds[data[tag]], data, where)
    for kind in args:
        try:
            return _build(kind, data, where)
        except ConfigError:
            continue
    wanted = " or ".join(getattr(a, "__name__", str(a)) for a in args)
    raise ConfigError(f"{where}: expected {wanted}, got {_said(data)}")


@functools.cache
def _tagged(records: tuple[Any, ...]) -> tuple[str, dict[str, Any]]:
    hints = {r: typing.get_type_hints(r) for r in records}
    for name in hints[records[0]]:
        values = {r: typing.get_args(h.get(name)) for r, h in hints.items()}
        if all(typing.get_origin(hints[r].get(name)) is Literal and len(v) == 1 for r, v in values.items()):
            return name, {v[0]: r for r, v in values.items()}
    raise TypeError(f"no field tells {records} apart")


def _json(data: Any, where: str) -> Any:
    """A copy of free-form data, refused where it is not JSON: it must have a hash and outlive its file."""
    if isinstance(data, Mapping):
        return {str(k): _json(v, f"{where}.{k}") for k, v in data.items()}
    if isinstance(data, list | tuple):
        return [_json(v, f"{where}[{i}]") for i, v in enumerate(data)]
    if isinstance(data, float) and not abs(data) < float("inf"):
        raise ConfigError(f"{where}: expected a finite number, got {_said(data)}")
    if data is None or isinstance(data, str | int | float):
        return data
    raise ConfigError(f"{where}: expected text, a number, a list or a mapping, got {_said(data)}; quote it if it is text")


def _at_least(spec: Any, low: int, *names: str) -> None:
    for name in names:
        if getattr(spec, name) < low:
            raise ConfigError(f"{name}: {getattr(spec, name)} is too little; give at least {low}")


def _share(spec: Any, name: str) -> None:
    if not 0 < getattr(spec, name) <= 1:
        raise ConfigError(f"{name}: {getattr(spec, name)} is no share; give a number above 0, at most 1")


def _said(data: Any) -> str:
    text = repr(data)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(data).__name__})"


def method_spec(method: str, fields: Mapping[str, Any] | None = None, semantics: str = "paper") -> MethodSpec:
    """The specification of `method` under a preset, with `fields` on top.

    Raises `ConfigError` for an unknown method, preset or field.
    """
    if semantics not in SEMANTICS:
        raise ConfigError(f"unknown semantics {semantics!r}; {nearest(semantics, SEMANTICS)}")
    preset = SEMANTICS[semantics].get(method, {})
    return typing.cast(MethodSpec, _build(MethodSpec, {**preset, **(fields or {}), "method": method}, f"method {method}"))


METHODS: tuple[str, ...] = tuple(_tagged(typing.get_args(MethodSpec))[1])
"""Every method by name, in the order of the paper's tables read bottom up."""


def load_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML mapping from a file. Raises `ConfigError` where it is missing, does not parse or holds something else."""
    path = Path(path)
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping, got {_said(data)}")
    return data


def as_dict(spec: Any) -> dict[str, Any]:
    """A specification as plain JSON types."""
    return json.loads(json.dumps(dataclasses.asdict(spec)))


def canonical_hash(value: Any, length: int = 12) -> str:
    """Hex digest of a specification or of JSON types: the same in every process, Python version and key order.

    A whole number counts the same whether it is written 1 or 1.0.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = as_dict(value)
    text = json.dumps(_whole(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def _whole(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _whole(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_whole(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@functools.cache
def field_docs(cls: type) -> dict[str, str]:
    """The docstring under each field of a dataclass, by field name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs
