"""What a training run is, as one frozen specification, and the folder it lives in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pimem import config
from pimem.config import GruMemSpec, MemAgentSpec, ModelSpec, PiMemSpec, ReMemR1Spec, at_least, check_share
from pimem.errors import ConfigError, DataError, StoreError
from pimem.prompts import PromptSet
from pimem.training import advantages, rewards
from pimem.training.question_sets import QuestionSet
from pimem.training.rewards import RewardSpec

RUN = "run.json"
"""Of a run's folder: what is trained, from which weights, on which questions."""


@dataclass(frozen=True)
class Optimiser:
    """AdamW under a constant rate after a linear rise."""

    learning_rate: float = 1e-6
    """Rate after the rise."""
    warmup_steps: int = 20
    """Rollout steps of the rise."""
    beta1: float = 0.9
    """Decay of the first moment."""
    beta2: float = 0.999
    """Decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled decay of the weights."""
    clip_norm: float = 1.0
    """Largest norm of a gradient."""

    def __post_init__(self) -> None:
        at_least(self, 0, "warmup_steps", "weight_decay")
        for name in ("learning_rate", "epsilon", "clip_norm"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is too little; give more than 0")


@dataclass(frozen=True)
class Objective:
    """Equations 6 to 8, and what the released code does beside them."""

    clip: float = 0.2
    """Epsilon of equation 7, on both sides."""
    dual_clip: float | None = None
    """Bound of the ratio where the advantage is negative, times the advantage; None leaves it out, as the paper does. The
    released trainer has 3."""
    kl: float = 1e-3
    """Beta of equation 6, with the k3 estimator against the weights the run starts from."""
    drop_equal: bool = False
    """Leave out groups whose trajectories are all equally accurate, as the released trainer does."""

    def __post_init__(self) -> None:
        at_least(self, 0, "kl")
        check_share(self, "clip")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(f"dual_clip: {self.dual_clip} must lie above 1; leave it out to switch it off")


@dataclass(frozen=True)
class Machines:
    """How a run is carried out. No part of what it is."""

    nodes: int = 1
    """Machines."""
    gpus: int = 1
    """GPUs of each."""
    device: Literal["cuda", "cpu"] = "cuda"
    """cpu runs the whole loop without a GPU: for tests, minutes a step."""
    backend: Literal["fsdp2", "megatron"] = "fsdp2"
    """What trains: sharded data parallelism, or tensor and expert parallelism."""
    tensor_parallel: int = 1
    """GPUs a layer is split over in training (megatron)."""
    expert_parallel: int = 1
    """GPUs the experts are spread over in training (megatron)."""
    offload: bool = False
    """Keep weights and optimiser in main memory while they are not needed."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    attention: str = "sdpa"
    """Attention of the training pass (fsdp2): sdpa, whose cost grows with the square of a pack; packed, which costs only the
    squares of its rows and needs nothing but torch; flash_attention_2 where flash-attn is installed."""
    output: Literal["all", "responses"] = "all"
    """Where the training passes compute the output layer (fsdp2): at all tokens, as verl does, or only where a response token
    is predicted. The numbers that are used are the same."""
    pack_tokens: int = 16_384
    """Most tokens of rows packed together in one pass of a GPU; a row never exceeds the window."""
    log_prob_tokens: int | None = None
    """The same for passes without gradients, which keep no activations (fsdp2); None takes `pack_tokens`. Large packs save a
    small model the time between kernels; with `sdpa` they cost more than they save."""
    rollout_parallel: int = 1
    """GPUs each inference engine is split over."""
    gpu_memory: float = 0.5
    """Share of a GPU's memory for inference, which sleeps while training."""
    eager: bool = False
    """Leave CUDA graphs out: starts sooner, decodes slower."""
    max_batch_tokens: int = 16_384
    """Most tokens in one inference step."""
    max_sequences: int = 256
    """Most requests in one inference step."""
    workers: int = 8
    """Processes that run workflows."""
    call_timeout: float = 600.0
    """Seconds one model call may take."""
    retries: int = 2
    """Times a failed call is sent again."""
    questions: str | None = None
    """Folder of the training questions; None keeps them in the cache and builds them where they are missing."""
    evaluation: str | None = None
    """Folder of the evaluation's questions, likewise."""

    def __post_init__(self) -> None:
        positive = ("nodes", "gpus", "tensor_parallel", "expert_parallel", "rollout_parallel", "pack_tokens", "workers")
        at_least(self, 1, *positive, "max_batch_tokens", "max_sequences")
        at_least(self, 0, "retries")
        check_share(self, "gpu_memory")
        if not self.call_timeout > 0:
            raise ConfigError(f"call_timeout: {self.call_timeout} seconds is no time; give more than 0")
        world = self.nodes * self.gpus
        if self.backend == "fsdp2" and (self.tensor_parallel, self.expert_parallel) != (1, 1):
            raise ConfigError(
                "backend: fsdp2 splits neither layers nor experts; use megatron, or leave both parallel sizes at 1"
            )
        for name in ("tensor_parallel", "expert_parallel", "rollout_parallel"):
            if world % getattr(self, name):
                raise ConfigError(f"{name}: {getattr(self, name)} does not divide the {world} GPUs of {self.nodes} node(s)")

    @property
    def data_parallel(self) -> int:
        """Copies of the model that share a batch."""
        return self.nodes * self.gpus // (self.tensor_parallel if self.backend == "megatron" else 1)


@dataclass(frozen=True)
class TrainSpec:
    """A run of reinforcement learning: everything that decides what is learned, and under `machines` how it is carried out."""

    questions: QuestionSet
    """What is asked in training."""
    method: PiMemSpec | MemAgentSpec | ReMemR1Spec | GruMemSpec
    """The workflow that is trained, and its budgets."""
    reward: RewardSpec
    """What a trajectory is worth."""
    model: ModelSpec = field(default_factory=lambda: ModelSpec(dtype="bfloat16"))
    """The weights a run starts from."""
    prompts: str = "default"
    """Prompt set."""
    semantics: Literal["paper", "released"] = "paper"
    """Preset under the fields of `method` and `reward`."""
    batch: int = 128
    """Prompts of a rollout step."""
    mini_batch: int = 8
    """Prompts of an optimiser step, all rows of all their trajectories."""
    group: int = 16
    """G, rollouts of a prompt."""
    steps: int = 240
    """Rollout steps."""
    temperature: float = 1.0
    """Of rollouts."""
    top_p: float = 1.0
    """Of rollouts."""
    optimiser: Optimiser = field(default_factory=Optimiser)
    """Of the weights."""
    objective: Objective = field(default_factory=Objective)
    """What is maximised."""
    seed: int = 0
    """Of the order of questions and of inference."""
    seeded: bool = False
    """Give every call a seed of its own and vLLM kernels whose numbers do not depend on the batch, so that two runs draw alike;
    costs time on a GPU."""
    evaluation: QuestionSet | None = None
    """What is asked every `eval_every` steps, before the first and after the last one; None leaves it out."""
    eval_every: int = 0
    """Steps between evaluations; 0 leaves them out."""
    eval_temperature: float = 0.7
    """Of evaluations."""
    eval_top_p: float = 0.95
    """Of evaluations."""
    save_every: int = 10
    """Steps between checkpoints; the last step has one always."""
    keep: int = 2
    """Checkpoints kept. The one before goes only after a new one is whole, so 2 is the least."""
    adapter_rank: int = 0
    """Rank of the low-rank difference to the first weights that is written at the end beside them; 0 writes none."""
    machines: Machines = field(default_factory=Machines)
    """How it is carried out."""
    verl: dict[str, Any] = field(default_factory=dict)
    """Settings of verl by their dotted names, on top of all others."""

    def __post_init__(self) -> None:
        at_least(self, 1, "batch", "mini_batch", "steps", "save_every")
        at_least(self, 0, "eval_every", "adapter_rank", "temperature", "eval_temperature", "seed")
        at_least(self, 2, "keep")
        check_share(self, "top_p")
        check_share(self, "eval_top_p")
        advantages.check_group(self.group)
        if self.batch % self.mini_batch:
            fits = ", ".join(str(n) for n in range(1, self.batch + 1) if self.batch % n == 0)
            raise ConfigError(
                f"mini_batch: {self.mini_batch} prompts do not divide a batch of {self.batch}; one of {fits} does"
            )
        if self.temperature == 0:
            raise ConfigError(
                "temperature: rollouts at 0 are all alike, so no group has anything to learn from; give more than 0"
            )
        if self.reward.kind != self.method.method:
            raise ConfigError(f"reward.kind: {self.reward.kind} contradicts the method {self.method.method}; leave it out")
        least = min(self.machines.pack_tokens, self.machines.log_prob_tokens or self.machines.pack_tokens)
        if least < self.model.window:
            raise ConfigError(
                f"machines.pack_tokens, log_prob_tokens: {least:,} is less than the window of {self.model.window:,}, and "
                "rows are never cut; raise it to the window at least"
            )

    @property
    def updates(self) -> int:
        """Optimiser steps of a rollout step."""
        return self.batch // self.mini_batch

    @property
    def response_tokens(self) -> int:
        """Most tokens any call may generate."""
        return max(
            getattr(self.method, n) for n in ("read_tokens", "memory_tokens", "answer_tokens") if hasattr(self.method, n)
        )

    def identity(self) -> dict[str, Any]:
        """What may not change when a run is resumed."""
        said = config.as_dict(self)
        for name in ("machines", "steps", "save_every", "keep", "eval_every", "adapter_rank", "evaluation"):
            del said[name]
        return said


def load(path: str | Path, changes: Mapping[str, Any] | None = None) -> TrainSpec:
    """The specification in a YAML file, with `changes` by dotted key on top; presets of `semantics` lie under both.

    What the file leaves open of the reward is the method's and the prompt set's.

    Raises `ConfigError`.
    """
    data = config.load_yaml(path)
    for key, value in (changes or {}).items():
        *parents, last = key.split(".")
        place = data
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise ConfigError(f"--set {key}: {parent} has no fields")
        place[last] = value
    where = str(path)
    semantics = data.get("semantics", "paper")
    method = data.get("method")
    if not isinstance(method, Mapping) or "method" not in method:
        raise ConfigError(f"{where}.method: a mapping with the key 'method' must say what is trained")
    fields = {k: v for k, v in method.items() if k != "method"}
    spec = config.method_spec(str(method["method"]), fields, semantics)
    form = PromptSet.load(data.get("prompts", "default")).answer_form
    reward = rewards.reward_spec(spec, {"answer_form": form, **(data.get("reward") or {})}, semantics)
    model = {"dtype": "bfloat16", **(data.get("model") or {})}
    return config.build(TrainSpec, {**data, "method": spec, "reward": reward, "model": model}, where)


@dataclass(frozen=True)
class Run:
    """A run's folder as its processes see it."""

    spec: TrainSpec
    model: Path
    """Folder of the weights it starts from."""
    fingerprint: str
    """Of those weights."""
    questions: Path
    """Folder of the training questions."""
    evaluation: Path | None = None
    """Folder of the evaluation's."""

    @classmethod
    def read(cls, folder: Path) -> Run:
        """Raises `StoreError` where the folder is not a training run's."""
        path = folder / RUN
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            spec = config.build(TrainSpec, data["spec"], str(path))
            asked = data["evaluation"]
            return cls(spec, Path(data["model"]), data["fingerprint"], Path(data["questions"]), Path(asked) if asked else None)
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"{path}: not what a training run writes ({type(error).__name__}: {error})") from error

    def claim(self, folder: Path) -> None:
        """Writes the run into its folder, or checks that the one in it is this one.

        Raises `DataError` for a run that began with another model and `ConfigError` for one with another specification.
        """
        path = folder / RUN
        if path.is_file():
            old = Run.read(folder)
            if old.fingerprint != self.fingerprint:
                raise DataError(
                    f"{folder}: its checkpoints belong to a run that began with {old.model} ({old.fingerprint}), not with "
                    f"{self.model} ({self.fingerprint}); give the same model, or another --out"
                )
            before, now = old.spec.identity(), self.spec.identity()
            changed = [k for k in now if before.get(k) != now[k]]
            if changed:
                raise ConfigError(
                    f"{folder}: holds a run with another {', '.join(changed)}; give the same configuration to go on with it, "
                    "or another --out"
                )
        folder.mkdir(parents=True, exist_ok=True)
        said = {
            "spec": config.as_dict(self.spec),
            "model": str(self.model),
            "fingerprint": self.fingerprint,
            "questions": str(self.questions),
            "evaluation": str(self.evaluation) if self.evaluation else None,
        }
        new = path.with_suffix(".new")
        new.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
        os.replace(new, path)
