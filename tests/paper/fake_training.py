"""Made-up logs of trainings, for tests. They never leave the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pimem import config
from pimem.training import launch, spec


def rollout(step: int, sample: str, session: int, accuracy: float, turns: int, **other: Any) -> dict[str, Any]:
    """A line of trajectories.jsonl."""
    return {
        "step": step, "time": 1.0, "sample": sample, "session": session, "uid": "u", "method": "pi_mem", "failed": False,
        "failure": None, "reward": accuracy, "accuracy": accuracy, "bonus": 0.0, "parts": {}, "steps": None, "turns": turns,
        "converged": True, "rows": 3 * turns + 1, "prompt_tokens": 900, "cached_tokens": 300, "response_tokens": 40,
        "truncated": 0, "checks": 3 * turns, "positive": 1, "malformed": 0, "damaged": 0, "retries": 0, "memory_tokens": 12,
        "chunks": 3, "context_tokens": 2000, "response": "x", "seconds": 1.23456789, "advantage": 0.1, "kept": True, **other,
    }  # fmt: skip


def step(number: int, **other: float) -> dict[str, Any]:
    """A line of steps.jsonl."""
    return {
        "step": number, "time": 1.0, "timing_s/gen": 4.0, "timing_s/update_actor": 3.0, "timing_s/step": 8.0,
        "pimem/rows": 10.0, "pimem/trajectories": 8.0, "pimem/prompt_tokens": 900.0,
        "pimem/response_tokens": 100.0, "pimem/cached_share": 0.25,
        "actor/kl_loss": 0.01, "actor/grad_norm": 0.5, **other,
    }  # fmt: skip


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def reinforcement(folder: Path, turn_bonus: float, turns: int = 2, seed: int = 0, steps: int = 4) -> Path:
    """A run's folder: four questions a step, two rollouts each; odd sessions need a turn more."""
    rng = np.random.default_rng(seed)
    rows = [
        rollout(s, f"q{4 * s + q}", g, float(rng.random() < 0.5), turns + g)
        for s in range(1, steps + 1)
        for q in range(4)
        for g in range(2)
    ]
    lines(folder / "trajectories.jsonl", rows)
    lines(folder / "steps.jsonl", [step(s) for s in range(1, steps + 1)])
    train = spec.load(launch.find("mini"), {"reward.turn_bonus": turn_bonus, "machines.questions": "/home/someone/questions"})
    (folder / "run.json").write_text(json.dumps({"spec": config.as_dict(train), "model": "/home/someone/model"}))
    return folder


def judged(path: Path, right: Mapping[str, Sequence[float]], score: str = "check") -> Path:
    """The judge's file: by case, the score of each example."""
    rows = [
        {"case": case, "source": f"{case} {i}", "prompt_tokens": 9, "scores": {score: value}, "target": "t", "response": "r"}
        for case, values in right.items()
        for i, value in enumerate(values)
    ]
    lines(path, rows)
    return path


def history(path: Path, losses: Sequence[float]) -> None:
    rows = [{"step": i, "loss": v, "norm": 1.0, "rate": 1e-3, "tokens": 100, "seconds": i * 0.5} for i, v in enumerate(losses)]
    lines(path, rows)
