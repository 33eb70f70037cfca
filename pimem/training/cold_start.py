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

from pimem import adapters, models
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
_WIDTH = 64
_READ_STEPS = 20
"""Steps between two looks at the loss, each of which waits for the device."""


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
    """Examples as padded batches, put together on the host, so that the device never waits to be asked how long they are."""

    def __init__(self, table: Table, tokenizer: Tokenizer, weight: float, device: str):
        self.table, self.weight, self.device = table, weight, device
        self.prefix, _, _ = decision(tokenizer)

    def batch(self, which: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids (examples, tokens), right-padded; where a response token is predicted, counted along the flat ids; which token
        that is; its weight. The last three have the shape (response tokens,)."""
        starts, prompts = self.table.starts[which], self.table.prompts[which].astype(np.int64)
        lengths = self.table.lengths[which]
        # Few widths are few shapes, and the tokens' products want multiples of a power of two.
        width = -(-int(lengths.max()) // _WIDTH) * _WIDTH
        ids = np.zeros((len(which), width), dtype=np.int64)
        places, weights = [], []
        for row, (start, prompt, length) in enumerate(zip(starts, prompts, lengths, strict=True)):
            ids[row, :length] = self.table.ids[start : start + length]
            places.append(row * width + np.arange(prompt - 1, length - 1))
            weights.append(np.ones(length - prompt, dtype=np.float32))
            response, n = ids[row, prompt:length], len(self.prefix)
            if len(response) > n and np.array_equal(response[:n], self.prefix):
                weights[-1][n] = self.weight
        at = np.concatenate(places)
        made = (ids, at, ids.reshape(-1)[at + 1], np.concatenate(weights))
        if not self.device.startswith("cuda"):
            return tuple(torch.from_numpy(x) for x in made)  # type: ignore[return-value]
        return tuple(torch.from_numpy(x).pin_memory().to(self.device, non_blocking=True) for x in made)  # type: ignore[return-value]


def loss_of(model: Any, ids: torch.Tensor, at: torch.Tensor, wanted: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted mean cross-entropy of the response tokens, a scalar. Logits are made at those places alone."""
    # Padding stands on the right, where a causal model's real tokens never look: no mask is needed.
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    logits = model.lm_head(hidden.flatten(0, 1)[at]).float()
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
    waiting: list[tuple[dict[str, float], torch.Tensor, torch.Tensor]] = []

    def read() -> None:
        for row, loss, norm in waiting:
            row |= {"loss": float(loss), "norm": float(norm)}
            if not math.isfinite(row["loss"]):
                raise DataError(
                    f"cold start: the loss is {row['loss']} at step {row['step']}; lower learning_rate ({config.learning_rate})"
                )
            history.append(row)
        waiting.clear()

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
        loss = loss_of(model, *feed.batch(which))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, config.clip)
        optimiser.step()
        row = {"step": step, "rate": rate, "tokens": int(table.lengths[which].sum()), "seconds": time.monotonic() - began}
        waiting.append((row, loss.detach(), norm))
        if len(waiting) == _READ_STEPS:
            read()
        if keep and time.monotonic() - kept > KEEP_SECONDS:
            read()
            keep(history)
            kept = time.monotonic()
    read()
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
        adapters.save(lora.tensors(model), args.out, {**facts, **spent(history)})
        with (args.out / "history.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in history)
        print(f"step {len(history)} loss {np.mean([h['loss'] for h in history[-20:]]):.4f}", flush=True)

    facts = described(config, args.model, device)
    history = train(config, model, table, tokenizer, deadline=args.deadline, keep=keep, steps=args.steps)
    keep(history)
    adapter = lora.tensors(model)
    lora.detach(model)
    lora.apply(model, adapter, config.scale)
    # Judging takes far less memory than training, and other work may be waiting for the rest.
    torch.cuda.empty_cache()
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
