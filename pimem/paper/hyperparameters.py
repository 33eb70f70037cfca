"""Supplement Table 1: what the paper trained with, beside what this package's configurations say, and the runs made here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from pimem.paper import published
from pimem.paper.training_records import Record
from pimem.paper.training_tables import Sheet
from pimem.training import launch, spec
from pimem.training.spec import TrainSpec

CONFIGS = {"Qwen3.5-35B-A3B": "pi_mem_qwen3.5_35b_a3b", "Qwen2.5-7B": "pi_mem_qwen2.5_7b"}
"""The paper's models, and the configurations that are theirs."""
SMALL = "mini"
"""The configuration for one GPU, which is not the paper's."""
MOE = "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_aux_loss_coeff"


def _documents(train: TrainSpec) -> str:
    return ", ".join(f"{p.length:,}" if p.task == "hotpotqa" else f"{p.task} {p.length:,}" for p in train.questions.portions)


def _output(train: TrainSpec) -> str:
    names = ("read_tokens", "memory_tokens", "answer_tokens")
    sizes = [getattr(train.method, name) for name in names if hasattr(train.method, name)]
    return f"{sizes[0]:,}" if len(set(sizes)) == 1 else ", ".join(f"{size:,}" for size in sizes)


def _thinking(train: TrainSpec) -> str:
    said = train.model.template_args.get("enable_thinking")
    return "N/A" if said is None else "Enabled" if said else "Disabled"


ROWS: dict[str, Callable[[TrainSpec], Any]] = {
    "Documents per sample": _documents,
    "Context length": lambda t: None,
    "Chunk size": lambda t: t.method.chunk_tokens,
    "Maximum output length": _output,
    "Maximum turns (K)": lambda t: getattr(t.method, "max_turns", "N/A"),
    "Train batch size": lambda t: t.batch,
    "Mini batch size": lambda t: t.mini_batch,
    "Adam optimizer beta1, beta2": lambda t: f"{t.optimiser.beta1}, {t.optimiser.beta2}",
    "Adam optimizer epsilon": lambda t: t.optimiser.epsilon,
    "Weight decay": lambda t: t.optimiser.weight_decay,
    "Gradient clipping": lambda t: t.optimiser.clip_norm,
    "Warmup steps": lambda t: t.optimiser.warmup_steps,
    "Learning rate": lambda t: t.optimiser.learning_rate,
    "Learning-rate schedule": lambda t: "Constant after linear warmup",
    "KL loss coefficient (beta)": lambda t: t.objective.kl,
    "Clip ratio (epsilon)": lambda t: t.objective.clip,
    "MoE router auxiliary loss coef.": lambda t: t.verl.get(MOE, "N/A"),
    "GRPO group size (G)": lambda t: t.group,
    "Training rollout steps": lambda t: t.steps,
    "Training samples": lambda t: t.batch * t.steps,
    "Temperature": lambda t: t.temperature,
    "Top-p": lambda t: t.top_p,
    "Thinking mode": _thinking,
    "GPU world size (H200)": lambda t: t.machines.nodes * t.machines.gpus,
    "Training Time (hours)": lambda t: None,
}
"""The table's rows in its order, and where a specification says it; None where it is an outcome and not a setting."""
OURS: dict[str, Callable[[TrainSpec], Any]] = {
    "Turn bonus (lambda)": lambda t: getattr(t.reward, "turn_bonus", "N/A") if t.method.method == "pi_mem" else "N/A",
    "Accuracy reward": lambda t: t.reward.accuracy,
    "Dual clip": lambda t: t.objective.dual_clip or "off",
    "Questions": lambda t: sum(p.questions for p in t.questions.portions),
    "Window": lambda t: t.model.window,
    "Seed": lambda t: t.seed,
}
"""Rows that the paper's table does not have."""


def table(records: Sequence[Record], *, version: str, level: float = 0.95) -> Sheet:
    """Supplement Table 1, written from the configurations themselves; `same` says whether each agrees with the printed cell.

    Raises `ConfigError` where a configuration does not load.
    """
    paper = published.load("s1_training").set_index(["model", "column"])["value"]
    ours = {name: spec.load(launch.find(name)) for name in (*CONFIGS.values(), SMALL)}
    cells, shown = [], []
    runs = {r.title: _of(r) for r in records if r.kind == "rl" and r.about.get("spec")}
    for row, say in {**ROWS, **OURS}.items():
        texts = {"Setting": row}
        for model, name in CONFIGS.items():
            printed = (str(paper[model, row]) or "N/A") if row in ROWS else None
            value = say(ours[name])
            same = None if value is None or printed is None else _same(printed, value)
            cells.append({"setting": row, "model": model, "config": name, "paper": printed, "ours": _text(value), "same": same})
            texts |= {
                f"{model}, paper": "not in the table" if printed is None else _shown(printed),
                f"{name}.yaml": _cell(value, same),
            }
        for title, train in {f"{SMALL}.yaml": ours[SMALL], **runs}.items():
            value = say(train)
            cells.append({"setting": row, "model": train.model.path, "config": title, "paper": None, "ours": _text(value)})
            texts[title] = _cell(value, None)
        shown.append(texts)
    notes = (
        "Written from the YAML files of pimem/training/configs, whose comments name each value's source. `(not the paper's)` "
        "marks a cell that differs from the printed one. A dash: no setting, but what comes of others.",
        "Training samples are prompts, counted at every step. The paper's come from HotpotQA's training questions; the "
        "configurations here have the 4,049 questions of its development set that share no paragraph with the evaluation's, "
        "and ask them again in turn.",
        f"Columns of {SMALL}.yaml and of runs made here are other experiments than the paper's. Version {version}.",
    )
    title = "Training hyperparameters: Supplement Table 1 of the paper, and what is configured here"
    return Sheet("s1_training", title, pd.DataFrame(cells), pd.DataFrame(shown), notes)


def _of(record: Record) -> TrainSpec:
    from pimem import config

    return config.build(TrainSpec, record.about["spec"], str(record.folder))


def _same(printed: str, value: Any) -> bool | None:
    """Whether a value is the printed one; None where nothing is printed."""
    if printed == "N/A":
        return None
    text = str(value).replace(",", "") if not isinstance(value, str) or value.replace(",", "").isdigit() else value
    try:
        return float(printed) == float(text)
    except ValueError:
        return printed == text


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-") if value < 1e-3 else f"{value}"
    return value if isinstance(value, str) else json.dumps(value)


def _shown(text: str) -> str:
    return f"{int(text):,}" if text.isdigit() else text


def _cell(value: Any, same: bool | None) -> str:
    return ("—" if value is None else _shown(_text(value))) + (" (not the paper's)" if same is False else "")
