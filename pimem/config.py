"""Frozen specifications: what a run is, and how it is carried out.

A specification is the single source for the command line, papermill parameters, YAML profiles and a run's identity.
Every field has a docstring under it, which help texts read. `build` and its companions come from `pimem.schema`.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pimem.errors import ConfigError, nearest
from pimem.schema import as_dict as as_dict
from pimem.schema import at_least, build_any, check_share, tagged
from pimem.schema import build as build
from pimem.schema import canonical_hash as canonical_hash
from pimem.schema import field_docs as field_docs
from pimem.schema import load_yaml as load_yaml


@dataclass(frozen=True)
class ModelSpec:
    """Which weights answer, and how their chat template is rendered. Part of a run's identity."""

    path: str = "smollm2-135m-pimem"
    """A name from `pimem models`, a local folder, or a hub id."""
    revision: str | None = None
    """Hub revision (a commit); None takes the cached or newest one, and the manifest records which."""
    window: int = 2048
    """Most prompt plus generated tokens of one call. May be smaller than the model's own window; larger only with `yarn` or
    `beyond`."""
    yarn: float = 1.0
    """Factor by which YaRN extends the model's own window; 1 leaves the model as it is, the paper has 4."""
    beyond: bool = False
    """Serve `window` although the model was made for less, its positions going on unscaled, as the released Vanilla does."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Arithmetic of the weights."""
    template_args: dict[str, Any] = field(default_factory=lambda: {"enable_thinking": False})
    """Arguments of the chat template; thinking is off as in the paper."""

    def __post_init__(self) -> None:
        at_least(self, 1, "window", "yarn")
        if self.yarn > 1 and self.beyond:
            raise ConfigError("beyond: positions beyond what YaRN scales have no meaning; raise the factor in yarn instead")


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
        at_least(self, 1, "tensor_parallel", "max_batch_tokens")
        check_share(self, "gpu_memory")
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
        at_least(self, 1, "concurrency", "inflight_tokens")
        at_least(self, 0, "retries")


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
        at_least(self, 1, "chunk_tokens", "memory_tokens", "read_tokens", "answer_tokens", "max_turns")


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
        at_least(self, 1, "chunk_tokens", "memory_tokens", "answer_tokens")


@dataclass(frozen=True)
class GruMemSpec:
    """GRU-Mem: MemAgent with an update gate, which may discard a new memory, and an exit gate, which may end the reading."""

    method: Literal["gru_mem"] = "gru_mem"
    """Discriminates the method."""
    chunk_tokens: int = 5000
    """Tokens of one window."""
    memory_tokens: int = 2048
    """Most tokens of a step's response: thinking, both gates and the candidate memory."""
    answer_tokens: int = 1024
    """Most tokens of the final answer."""
    exit_gate: bool = True
    """False reads on to the last chunk whatever the exit gate says, as questions that ask for every value need."""
    on_failure: Literal["fail", "continue"] = "fail"
    """What becomes of a sample when a step failed for good: it fails, or keeps the old memory and is counted as damaged."""

    def __post_init__(self) -> None:
        at_least(self, 1, "chunk_tokens", "memory_tokens", "answer_tokens")


@dataclass(frozen=True)
class ReMemR1Spec:
    """ReMemR1: MemAgent that may ask, with each new memory, for one of its earlier memories back."""

    method: Literal["rememr1"] = "rememr1"
    """Discriminates the method."""
    chunk_tokens: int = 5000
    """Tokens of one window."""
    memory_tokens: int = 2048
    """Most tokens of a step's response, hence of a memory; a recalled one takes as many again in the prompt."""
    answer_tokens: int = 1024
    """Most tokens of the final answer."""
    recall_from: Literal["all", "earlier"] = "all"
    """Memories that a step's recall query is looked up in: those up to the one written with it, as the released evaluation
    does, or those before it, as the released training does."""
    memory: Literal["update", "response"] = "update"
    """What a step's memory is: the text in its update tag, or its whole response without the recall tag."""
    on_failure: Literal["fail", "continue"] = "fail"
    """What becomes of a sample when a step failed for good: it fails, or keeps the old memory and is counted as damaged."""

    def __post_init__(self) -> None:
        at_least(self, 1, "chunk_tokens", "memory_tokens", "answer_tokens")


@dataclass(frozen=True)
class DirectSpec:
    """What the model alone is asked, over as much of the context as its window holds."""

    answer_tokens: int = 1024
    """Most tokens of the answer; LongBench v2 has 128."""
    context: Literal["whole", "none"] = "whole"
    """none asks the bare question, which measures what the model knows by heart (LongBench v2)."""
    prompt_tokens: int = 0
    """Most tokens of the whole prompt, its middle cut; 0 takes what the window leaves. LongBench v2 has 120,000."""
    cut: Literal["context", "prompt"] = "context"
    """What keeps as much of its head as of its tail: the context, or the whole prompt as in LongBench v2."""
    reasoning_tokens: int = 0
    """Tokens of a first call that thinks step by step, after which the answer is asked for without the context; 0 makes
    none. LongBench v2 has 1,024."""

    def __post_init__(self) -> None:
        at_least(self, 1, "answer_tokens")
        at_least(self, 0, "prompt_tokens", "reasoning_tokens")
        if self.context == "none" and self.reasoning_tokens:
            raise ConfigError("reasoning_tokens: there is no prompt for thinking without a context; set it to 0")


@dataclass(frozen=True)
class VanillaSpec(DirectSpec):
    """The model alone, in the window it was made for."""

    method: Literal["vanilla"] = "vanilla"
    """Discriminates the method."""


@dataclass(frozen=True)
class YarnSpec(DirectSpec):
    """The model alone, in a window that YaRN extends (`ModelSpec.yarn`)."""

    method: Literal["yarn"] = "yarn"
    """Discriminates the method."""


@dataclass(frozen=True)
class RagSpec:
    """Okapi BM25 over windows of the context, the best of them in front of the model, best first."""

    method: Literal["rag"] = "rag"
    """Discriminates the method."""
    chunk_tokens: int = 5000
    """Tokens of one window; the released code has 2,000 whatever the other methods use."""
    top: int = 6
    """Windows retrieved."""
    order: Literal["score", "text"] = "score"
    """Best first, or in the order of the text as in LongBench v2."""
    bm25: Literal["lucene", "okapi"] = "lucene"
    """Inverse document frequency: lucene is never negative; okapi, as released, lifts what is negative to a quarter of the
    mean, which sets words of most windows above rarer ones."""
    answer_tokens: int = 1024
    """Most tokens of the answer."""

    def __post_init__(self) -> None:
        at_least(self, 1, "chunk_tokens", "top", "answer_tokens")


MethodSpec = PiMemSpec | MemAgentSpec | ReMemR1Spec | GruMemSpec | VanillaSpec | YarnSpec | RagSpec

SEMANTICS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "released": {
        "pi_mem": {"check_rule": "lenient", "labels": "renumbered", "on_failure": "continue"},
        "mem_agent": {"on_failure": "continue"},
        "rememr1": {"memory": "response", "on_failure": "continue"},
        "rag": {"chunk_tokens": 2000, "bm25": "okapi"},
    },
    "official": {
        "vanilla": {"answer_tokens": 128, "prompt_tokens": 120_000, "cut": "prompt"},
        "yarn": {"answer_tokens": 128, "prompt_tokens": 120_000, "cut": "prompt"},
        "rag": {"answer_tokens": 128, "order": "text"},
    },
}
"""Presets over method fields: the paper's text, what the authors' released code does instead (DEVIATIONS.md), and LongBench
v2's own protocol."""

_OF_ESSAYS = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery")

TASK_SEMANTICS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {},
    "released": {
        **{name: {"essays": "once"} for name in _OF_ESSAYS},
        "hotpotqa": {"order": "constant"},
        "squad": {"order": "constant"},
    },
}
"""The same presets over the parameters of tasks: how the released data was made."""


@dataclass(frozen=True)
class TaskSpec:
    """What is asked over which text. How many samples are drawn is no part of it: sample i is the same whatever n is."""

    name: str = "hotpotqa"
    """A task by name (`TASKS` in `pimem.tasks.base`)."""
    length: int = 50
    """Tokens, or documents for hotpotqa unless its parameter `unit` says otherwise."""
    seed: int = 42
    """Seed of the samples."""
    params: dict[str, Any] = field(default_factory=dict)
    """Fields of the task's own parameters that differ from its defaults."""

    def __post_init__(self) -> None:
        at_least(self, 1, "length")


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
        at_least(self, 0, "temperature")
        check_share(self, "top_p")


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

    def __post_init__(self) -> None:
        if self.method.method == "yarn" and self.model.yarn == 1:
            raise ConfigError(
                "method: yarn over a model with yarn=1 is vanilla; give the model's yarn a factor, the paper has 4"
            )
        if self.method.method == "vanilla" and self.model.yarn > 1:
            raise ConfigError(f"method: vanilla over a model with yarn={self.model.yarn:g} is yarn; name that method instead")


def method_spec(method: str, fields: Mapping[str, Any] | None = None, semantics: str = "paper") -> MethodSpec:
    """The specification of `method` under a preset, with `fields` on top.

    Raises `ConfigError` for an unknown method, preset or field.
    """
    if semantics not in SEMANTICS:
        raise ConfigError(f"unknown semantics {semantics!r}; {nearest(semantics, SEMANTICS)}")
    preset = SEMANTICS[semantics].get(method, {})
    return typing.cast(MethodSpec, build_any(MethodSpec, {**preset, **(fields or {}), "method": method}, f"method {method}"))


def task_params(task: str, params: Mapping[str, Any] | None = None, semantics: str = "paper") -> dict[str, Any]:
    """A task's parameters under a preset of `SEMANTICS`, with `params` on top."""
    own = dict(params or {})
    if own.get("haystack", "own") not in ("own", "essays"):
        return own  # What the preset says of essays has no meaning there.
    return {**TASK_SEMANTICS.get(semantics, {}).get(task, {}), **own}


METHODS: tuple[str, ...] = tuple(tagged(typing.get_args(MethodSpec))[1])
"""Every method by name, in the order of the paper's tables read bottom up."""
