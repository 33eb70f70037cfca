"""Supplement Table 1: what the paper trained with beside what the configurations here say; and the same of runs made here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from pimem import config
from pimem.errors import ConfigError
from pimem.paper import published
from pimem.paper.tables import Absent
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
    sizes = {name: getattr(train.method, name) for name in names if hasattr(train.method, name)}
    each = [f"{name.removesuffix('_tokens')} {size:,}" for name, size in sizes.items()]
    return f"{max(sizes.values()):,}" if len(set(sizes.values())) == 1 else ", ".join(each)


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
    ours = {name: spec.load(launch.find(name)) for name in CONFIGS.values()}
    cells, shown = [], []
    for row, say in {**ROWS, **OURS}.items():
        texts = {"Setting": row}
        for model, name in CONFIGS.items():
            printed = (str(paper[model, row]) or "N/A") if row in ROWS else None
            value = say(ours[name])
            same = None if value is None or printed is None else _same(printed, value)
            cells.append({"setting": row, "model": model, "config": name, "paper": printed, "here": _text(value), "same": same})
            texts |= {
                f"{model}, paper": "not in the table" if printed is None else _shown(printed),
                f"{model}, here": _cell(value) + (" (not the paper's)" if same is False else ""),
            }
        shown.append(texts)
    notes = (
        f"Written from {' and '.join(f'{name}.yaml' for name in CONFIGS.values())} of pimem/training/configs, whose comments "
        "name each value's source. `(not the paper's)` marks a cell that differs from the printed one. A dash: no setting, but "
        "what comes of others.",
        "Training samples are prompts, counted at every step. The paper's come from HotpotQA's training questions; the "
        "configurations here have the 4,049 questions of its development set that share no paragraph with the evaluation's, "
        "and ask them again in turn.",
        f"Version {version}.",
    )
    title = "Training hyperparameters: Supplement Table 1 of the paper, and the configurations here"
    return Sheet("s1_training", title, pd.DataFrame(cells), pd.DataFrame(shown), notes)


def settings(records: Sequence[Record], *, version: str, level: float = 0.95) -> Sheet:
    """The same settings of the one-GPU configuration and of every run made here.

    Raises `Absent` where there is no run, or the specification of one is of another version of this package.
    """
    runs = [r for r in records if r.kind == "rl" and r.spec]
    if not runs:
        raise Absent("no run of reinforcement learning has a record with its specification (run.json)")
    columns = {f"{SMALL}.yaml": spec.load(launch.find(SMALL))}
    for run in runs:
        try:
            columns[run.title] = config.build(TrainSpec, run.spec, str(run.folder))
        except ConfigError as error:
            raise Absent(f"{run.name}: its specification is of another version of this package ({error})") from None
    rows = {row: {title: _cell(say(train)) for title, train in columns.items()} for row, say in {**OURS, **ROWS}.items()}
    frame = pd.DataFrame(rows).T.rename_axis("Setting").reset_index()
    cells = frame.melt("Setting", var_name="run", value_name="value")
    notes = (f"Other experiments than the paper's: another model, data and scale. Version {version}.",)
    return Sheet("training_settings", "What the runs made here were trained with", cells, frame, notes)


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
        return f"{value:e}".replace(".000000", "").replace("e-0", "e-") if 0 < value <= 1e-3 else f"{value}"
    return value if isinstance(value, str) else json.dumps(value)


def _shown(text: str) -> str:
    return f"{int(text):,}" if text.isdigit() else text


def _cell(value: Any) -> str:
    return "—" if value is None else _shown(_text(value))
