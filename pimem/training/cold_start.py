"""The supervised cold start: a small model learns from the teacher what each call should say.

`python -m pimem.training.cold_start CONFIG --model FOLDER --data FOLDER --out FOLDER [--deadline SECONDS]` trains on train.xz,
keeps the adapter, and judges the merged model on eval.xz (both made by `pimem.training.data`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from pimem import models
from pimem.errors import DataError
from pimem.prompts import PromptSet
from pimem.tokens import Tokenizer
from pimem.training import lora
from pimem.training.data import Table
from pimem.training.recipe import ColdStart, load_config
from pimem.training.teacher import NO, YES

KEEP_SECONDS = 60.0
"""Time between two copies of the adapter on disk."""
_SORTED = 8192


def load(folder: Path, device: str, dtype: torch.dtype) -> Any:
    """The model in `folder` on `device`. Raises `DataError` where it does not load."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, attn_implementation="sdpa").to(
            device
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: the model does not load ({error})") from error


def decision(tokenizer: Tokenizer) -> tuple[np.ndarray, int, int]:
    """Ids before a check tag's value, the id of yes, and the id of no. Raises `DataError` where the tags differ in more."""
    yes, no = tokenizer.encode(YES), tokenizer.encode(NO)
    at = next((i for i, (a, b) in enumerate(zip(yes, no, strict=False)) if a != b), None)
    if at is None or len(yes) != len(no):
        raise DataError(
            "this tokenizer does not write the two check tags alike but for one token, which could carry the weight"
        )
    return yes[:at], int(yes[at]), int(no[at])


def batches(lengths: np.ndarray, config: ColdStart, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Example numbers of every step of one epoch: alike in length within a step, steps in random order.

    Raises `DataError` for an example longer than a step.
    """
    if len(lengths) and lengths.max() > config.batch_tokens:
        raise DataError(f"an example of {lengths.max():,} tokens is longer than batch_tokens={config.batch_tokens:,}; raise it")
    order = rng.permutation(len(lengths))
    steps = []
    for at in range(0, len(order), _SORTED):
        block = order[at : at + _SORTED]
        block = block[np.argsort(lengths[block], kind="stable")]
        first = 0
        for i in range(1, len(block) + 1):
            full = i < len(block) and (i - first + 1) * lengths[block[i]] > config.batch_tokens
            if i == len(block) or full or i - first == config.batch_examples:
                steps.append(block[first:i])
                first = i
    for i in rng.permutation(len(steps)):
        yield steps[i]


class Feed:
    """The examples on the device, cut into padded batches there."""

    def __init__(self, table: Table, tokenizer: Tokenizer, weight: float, device: str):
        prefix, _, _ = decision(tokenizer)
        self.ids = torch.from_numpy(table.ids.astype(np.int32)).to(device)
        self.starts = torch.from_numpy(table.starts[:-1]).to(device)
        self.lengths = torch.from_numpy(table.lengths).to(device)
        self.prompts = torch.from_numpy(table.prompts.astype(np.int64)).to(device)
        self.prefix = torch.from_numpy(prefix.astype(np.int32)).to(device)
        self.weight = weight

    def batch(self, which: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids (examples, tokens), right-padded; which of them predict a response token (bool, same shape); their weights."""
        at = torch.from_numpy(which).to(self.starts.device)
        lengths, prompts = self.lengths[at][:, None], self.prompts[at][:, None]
        places = torch.arange(int(lengths.max()), device=at.device)[None]
        ids = self.ids[(self.starts[at][:, None] + places).clamp(max=len(self.ids) - 1)].long()
        ids = ids.masked_fill(places >= lengths, 0)
        predicting = (places >= prompts - 1) & (places < lengths - 1)
        weights = torch.ones(ids.shape, device=at.device)
        n = len(self.prefix)
        tagged = torch.ones(len(at), dtype=torch.bool, device=at.device)
        for i in range(n):
            tagged &= ids.gather(1, (prompts + i).clamp(max=ids.shape[1] - 1))[:, 0] == self.prefix[i]
        rows = tagged.nonzero()[:, 0]
        weights[rows, prompts[rows, 0] + n - 1] = self.weight
        return ids, predicting, weights[predicting]


def loss_of(model: Any, ids: torch.Tensor, predicting: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted mean cross-entropy of the response tokens, a scalar. Logits are made at those places alone."""
    # Padding stands on the right, where a causal model's real tokens never look: no mask is needed.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[predicting]).float()
    wanted = ids[:, 1:][predicting[:, :-1]]
    each = torch.nn.functional.cross_entropy(logits, wanted, reduction="none")
    return (each * weights).sum() / weights.sum()


def train(
    config: ColdStart,
    model: Any,
    table: Table,
    tokenizer: Tokenizer,
    *,
    deadline: float = math.inf,
    keep: Callable[[list[dict[str, float]]], None] | None = None,
    steps: int | None = None,
) -> list[dict[str, float]]:
    """Trains low-rank updates, which stay attached to `model`, and returns one record a step.

    Ends after `config.epochs`, after `steps`, or `deadline` seconds after the call; by the first the rate has fallen to zero.
    `keep` is called about once a minute. Raises `DataError` where the loss is no number.
    """
    device = str(next(model.parameters()).device)
    torch.manual_seed(config.seed)
    trained = lora.attach(model, config.rank, config.scale)
    optimiser = torch.optim.AdamW(trained, lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused="cuda" in device)
    feed = Feed(table, tokenizer, config.decision_weight, device)
    rng = np.random.default_rng(config.seed)
    plan = [b for _ in range(math.ceil(config.epochs)) for b in batches(table.lengths, config, rng)]
    plan = plan[: steps or max(1, round(len(plan) * config.epochs / math.ceil(config.epochs)))]
    history: list[dict[str, float]] = []
    model.train()
    began = kept = time.monotonic()
    for step, which in enumerate(plan):
        elapsed = time.monotonic() - began
        share = max(step / len(plan), elapsed / deadline)
        if share >= 1:
            break
        rate = (
            config.learning_rate * min(1.0, (share + 1e-3) / max(config.warmup, 1e-9)) * (0.5 + 0.5 * math.cos(math.pi * share))
        )
        for group in optimiser.param_groups:
            group["lr"] = rate
        ids, predicting, weights = feed.batch(which)
        loss = loss_of(model, ids, predicting, weights)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, config.clip)
        optimiser.step()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise DataError(f"cold start: the loss is {value} at step {step}; lower learning_rate ({config.learning_rate})")
        tokens = int(table.lengths[which].sum())
        history.append(
            {
                "step": step,
                "loss": value,
                "norm": float(norm),
                "rate": rate,
                "tokens": tokens,
                "seconds": time.monotonic() - began,
            }
        )
        if keep and time.monotonic() - kept > KEEP_SECONDS:
            keep(history)
            kept = time.monotonic()
    model.eval()
    return history


def main(argv: Sequence[str] | None = None) -> None:
    """Trains, keeps the adapter, evaluates the merged model."""
    from pimem.training import judge

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--data", type=Path, required=True, help="folder with train.xz and eval.xz")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deadline", type=float, default=math.inf, help="seconds of training")
    parser.add_argument("--steps", type=int, help="end after this many steps")
    args = parser.parse_args(argv)
    config, tokenizer = load_config(args.config), Tokenizer.load(args.model)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    table = Table.load(args.data / "train.xz")
    model = load(args.model, device, dtype)

    def keep(history: list[dict[str, float]]) -> None:
        lora.save(model, args.out, {**facts, **spent(history)})
        with (args.out / "history.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in history)
        print(f"step {len(history)} loss {np.mean([h['loss'] for h in history[-20:]]):.4f}", flush=True)

    facts = described(config, args.model, device)
    history = train(config, model, table, tokenizer, deadline=args.deadline, keep=keep, steps=args.steps)
    keep(history)
    adapter = lora.tensors(model)
    lora.detach(model)
    lora.apply(model, adapter, config.scale)
    judge.write(model, tokenizer, Table.load(args.data / "eval.xz"), config, args.out)


def described(config: ColdStart, base: Path, device: str) -> dict[str, Any]:
    """What an adapter's manifest says of how it was made; `base` is the folder of the base model."""
    return {
        "about": f"{config.base} with a supervised cold start of {', '.join(config.methods)}",
        "base": config.base,
        "base_fingerprint": models.fingerprint(base),
        "scale": config.scale,
        "rank": config.rank,
        "licence": entry.licence if (entry := models.CATALOGUE.get(config.base)) else "that of the base",
        "prompts": config.prompts,
        "prompts_hash": PromptSet.load(config.prompts).hash,
        "recipe": dataclasses.asdict(config),
        "machine": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "software": f"torch {torch.__version__}, transformers {transformers.__version__}",
    }


def spent(history: list[dict[str, float]]) -> dict[str, Any]:
    """What a run has taken."""
    return {
        "steps": len(history),
        "tokens": int(sum(h["tokens"] for h in history)),
        "seconds": round(history[-1]["seconds"], 1) if history else 0.0,
        "loss": round(float(np.mean([h["loss"] for h in history[-20:]])), 4) if history else None,
    }


if __name__ == "__main__":
    main()
