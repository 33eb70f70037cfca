"""What decides a cold start, as one frozen specification."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pimem import config
from pimem.errors import ConfigError

Method = Literal["pi_mem", "mem_agent", "gru_mem", "rememr1"]


@dataclass(frozen=True)
class ColdStart:
    """A supervised cold start."""

    base: str = "smollm2-135m"
    """Name of the base model, as the adapter's manifest says it."""
    prompts: str = "trained"
    """Prompt set whose exact ids are trained on."""
    methods: tuple[Method, ...] = ("pi_mem", "mem_agent")
    """Methods whose calls are trained, each with the same number of tokens."""
    examples: int = 36_000
    """Training examples."""
    eval_cases: int = 256
    """Held-out examples of a case; some cases have twice or half as many."""
    eval_negatives: int = 10_240
    """Held-out random sections."""
    eval_section: int = 1000
    """Tokens of a held-out section."""
    rank: int = 24
    """Rank of the low-rank update of every linear layer; 0 trains all weights instead, for comparison."""
    scale: float = 1.0
    """Factor of the low-rank product."""
    learning_rate: float = 2e-3
    """Peak rate of AdamW."""
    warmup: float = 0.03
    """Share of the run over which the rate rises; it falls along a cosine after that."""
    batch_tokens: int = 32_768
    """Most tokens of a step, padding included."""
    batch_examples: int = 160
    """Most examples of a step."""
    epochs: float = 1.0
    """Passes over the examples."""
    decision_weight: float = 6.0
    """Weight of the yes or no of a check tag in the loss; every other response token counts 1."""
    clip: float = 1.0
    """Largest norm of a gradient."""
    seed: int = 0
    """Of the examples, their order and the initial weights."""

    def __post_init__(self) -> None:
        if not self.methods or len(set(self.methods)) < len(self.methods):
            raise ConfigError(f"methods: {list(self.methods)}; name at least one, and each once")
        for name in (
            "examples",
            "eval_cases",
            "eval_section",
            "batch_tokens",
            "batch_examples",
            "epochs",
            "learning_rate",
            "clip",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is too little; give more than 0")
        for name in ("rank", "eval_negatives", "warmup", "decision_weight"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: {getattr(self, name)} is negative; give at least 0")


def load_config(path: Path) -> ColdStart:
    """The recipe in a YAML file. Raises `ConfigError`."""
    return config.build(ColdStart, config.load_yaml(path), str(path))
