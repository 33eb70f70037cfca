"""From the rows of a rollout step to what is trained on: which trajectories stay, what each row's advantage is, which rows
form a mini-batch. Plain Python; the trainer moves the data accordingly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pimem.errors import EngineError
from pimem.training import advantages


@dataclass
class Plan:
    """A rollout step sorted out."""

    trajectories: list[dict[str, Any]]
    """What the agent loop says of each, with `advantage` and `kept` added; order of first appearance."""
    advantages: dict[str, float] = field(default_factory=dict)
    """By key of a kept row."""
    prompts: dict[str, int] = field(default_factory=dict)
    """Running number of its prompt among those kept, by key of a kept row."""
    learns: bool = True
    """False where no group has anything to learn from; then all rows are kept with an advantage of zero."""


def plan(keys: Sequence[str], fields: Sequence[Mapping[str, Any]], alpha: float, drop_equal: bool) -> Plan:
    """Advantages over whole trajectories, spread over their rows.

    `keys`: verl's `<prompt>_<session>_<index>` of each row; `fields`: what the agent loop put into it, the last row of each
    session with `trajectory`. `alpha`: share of the trajectory's advantage beside those of turns (`advantages.mixed`).
    Raises `EngineError` where every trajectory failed, which is never something to learn from.
    """
    sessions: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for place, key in enumerate(keys):
        prompt, session, index = key.rsplit("_", 2)
        sessions.setdefault((prompt, session), []).append((int(index), place))
    groups = [prompt for prompt, _ in sessions]
    rows = [[place for _, place in sorted(members)] for members in sessions.values()]
    said = [dict(fields[members[-1]]["trajectory"]) for members in rows]
    if all(one["failed"] for one in said):
        reasons = "; ".join(sorted({str(one["failure"]) for one in said})[:3])
        raise EngineError(
            f"all {len(said)} rollouts of this step failed, so there is nothing to learn from. Reasons: {reasons}. "
            "The weights are as they were; mend that and run the same command again",
            retryable=False,
        )
    steps = [one["steps"] or [] for one in said]
    owner = [number for number, members in enumerate(rows) for _ in members]
    step = [fields[place]["step"] if steps[number] else -1 for number, members in enumerate(rows) for place in members]
    scores = [one["reward"] for one in said]
    whole = advantages.trajectory(scores, groups)
    each = advantages.mixed(scores, groups, steps, alpha, owner, step) if alpha < 1 else whole[owner]
    kept = advantages.keep([one["accuracy"] for one in said], groups, drop_equal)
    for one, value, keep in zip(said, whole, kept, strict=True):
        one |= {"advantage": float(value), "kept": bool(keep)}
    out = Plan(said, learns=bool(kept.any()))
    numbers: dict[str, int] = {}
    flat = [place for members in rows for place in members]
    for place, of, value in zip(flat, owner, each, strict=True):
        if kept[of] or not out.learns:
            out.advantages[keys[place]] = float(value) if out.learns else 0.0
            out.prompts[keys[place]] = numbers.setdefault(groups[of], len(numbers))
    return out


def arrange(prompts: Sequence[int], work: Sequence[float], updates: int, copies: int) -> tuple[int, int, list[int]]:
    """An order of rows in which each mini-batch holds all rows of its share of the prompts.

    `prompts`: running number of each row's prompt, from 0; `work`: what each row costs; `updates`: mini-batches; `copies`:
    data-parallel copies of the model. Each copy gets one stretch of the order and cuts it into equal mini-batches, so pads fill
    them up. Returns the number of mini-batches (fewer where there are fewer prompts), of pads, and the order: indices of rows,
    those from `len(prompts)` on being pads. Within a mini-batch the copies get like amounts of work.
    """
    total = max(prompts) + 1
    updates = min(updates, total)
    shares: list[list[list[int]]] = []
    for number in range(updates):
        rows = [i for i, prompt in enumerate(prompts) if prompt * updates // total == number]
        most = -(-len(rows) // copies)
        loads = np.zeros(copies)
        share: list[list[int]] = [[] for _ in range(copies)]
        for row in sorted(rows, key=lambda i: -work[i]):
            open_to = [c for c in range(copies) if len(share[c]) < most]
            least = min(open_to, key=lambda c: loads[c])
            share[least].append(row)
            loads[least] += work[row]
        shares.append(share)
    size = max(len(one) for share in shares for one in share)
    pads = updates * copies * size - len(prompts)
    spare = iter(range(len(prompts), len(prompts) + pads))
    order = [
        row
        for copy in range(copies)
        for share in shares
        for row in (*sorted(share[copy]), *(next(spare) for _ in range(size - len(share[copy]))))
    ]
    return updates, pads, order


def summary(trajectories: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over trajectories, each counting once however many rows it has; sums of what is counted."""

    def mean(name: str) -> float:
        return float(np.mean([one[name] for one in trajectories]))

    def total(name: str) -> float:
        return float(sum(one[name] for one in trajectories))

    checks, prompt = total("checks"), total("prompt_tokens")
    out = {
        f"pimem/{name}": mean(name)
        for name in (
            "reward",
            "accuracy",
            "bonus",
            "turns",
            "rows",
            "prompt_tokens",
            "response_tokens",
            "memory_tokens",
            "kept",
        )
    }
    out |= {f"pimem/{name}": total(name) for name in ("failed", "truncated", "malformed", "damaged", "retries")}
    out["pimem/trajectories"] = float(len(trajectories))
    out["pimem/positive_rate"] = total("positive") / checks if checks else 0.0
    out["pimem/cached_share"] = total("cached_tokens") / prompt if prompt else 0.0
    for name in sorted({part for one in trajectories for part in one["parts"]}):
        out[f"pimem/part/{name}"] = float(np.mean([one["parts"].get(name, 0.0) for one in trajectories]))
    return out
