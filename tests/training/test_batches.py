"""Which trajectories are trained on, with which advantage, in which mini-batch; against references written as loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.errors import EngineError
from pimem.training import batches


def trajectory(
    reward: float, accuracy: float | None = None, steps: list[float] | None = None, failed: bool = False
) -> dict[str, Any]:
    return {
        "reward": reward,
        "accuracy": reward if accuracy is None else accuracy,
        "steps": steps,
        "failed": failed,
        "failure": "no answer within 3 s" if failed else None,
    }


def rows(*sessions: tuple[str, int, int, dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """Keys and fields of (prompt, session, rows, trajectory) in verl's form, the last row with the trajectory."""
    keys, fields = [], []
    for prompt, session, count, said in sessions:
        for index in range(count):
            keys.append(f"{prompt}_{session}_{index}")
            step = index if said["steps"] and index < len(said["steps"]) else -1
            fields.append({"step": step, **({"trajectory": said} if index == count - 1 else {})})
    return keys, fields


RAGGED = rows(
    ("a", 0, 3, trajectory(1.0)),
    ("a", 1, 1, trajectory(0.0)),
    ("a", 2, 5, trajectory(0.5)),
    ("b", 0, 2, trajectory(1.0)),
    ("b", 1, 2, trajectory(1.0)),
    ("b", 2, 4, trajectory(1.0)),
)


def test_advantages_are_over_trajectories_not_rows() -> None:
    made = batches.plan(*RAGGED, alpha=1.0, drop_equal=False)
    expected = {"a_0": 0.5, "a_1": -0.5, "a_2": 0.0, "b_0": 0.0, "b_1": 0.0, "b_2": 0.0}
    assert made.advantages == pytest.approx({key: expected[key[:3]] for key in RAGGED[0]})
    assert [one["advantage"] for one in made.trajectories] == pytest.approx([0.5, -0.5, 0.0, 0.0, 0.0, 0.0])
    assert made.prompts == {key: "ab".index(key[0]) for key in RAGGED[0]}


def test_rows_in_any_order_give_the_same() -> None:
    keys, fields = RAGGED
    order = np.random.default_rng(0).permutation(len(keys))
    mixed = batches.plan([keys[i] for i in order], [fields[i] for i in order], alpha=1.0, drop_equal=False)
    assert mixed.advantages == batches.plan(keys, fields, alpha=1.0, drop_equal=False).advantages


def test_groups_without_a_difference_in_accuracy_are_left_out_if_asked_for() -> None:
    made = batches.plan(*RAGGED, alpha=1.0, drop_equal=True)
    assert {key[0] for key in made.advantages} == {"a"}
    assert [one["kept"] for one in made.trajectories] == [True, True, True, False, False, False]
    assert set(made.prompts.values()) == {0}


def test_a_lone_survivor_is_left_out() -> None:
    keys, fields = rows(("a", 0, 2, trajectory(1.0)), ("a", 1, 1, trajectory(0.0)), ("b", 3, 4, trajectory(1.0)))
    assert {key[0] for key in batches.plan(keys, fields, 1.0, drop_equal=False).advantages} == {"a"}


def test_nothing_to_learn_keeps_the_rows_and_says_so() -> None:
    keys, fields = rows(("a", 0, 2, trajectory(1.0)), ("a", 1, 1, trajectory(1.0)))
    made = batches.plan(keys, fields, 1.0, drop_equal=True)
    assert not made.learns
    assert made.advantages == {"a_0_0": 0.0, "a_0_1": 0.0, "a_1_0": 0.0}


def test_a_failed_trajectory_counts_with_zero() -> None:
    keys, fields = rows(("a", 0, 2, trajectory(1.0)), ("a", 1, 1, trajectory(0.0, failed=True)))
    assert batches.plan(keys, fields, 1.0, drop_equal=False).advantages == {"a_0_0": 0.5, "a_0_1": 0.5, "a_1_0": -0.5}


def test_all_failed_is_an_error_that_says_why() -> None:
    keys, fields = rows(*(("a", i, 1, trajectory(0.0, failed=True)) for i in range(2)))
    with pytest.raises(EngineError, match=r"all 2 rollouts .* no answer within 3 s.*same command again"):
        batches.plan(keys, fields, 1.0, drop_equal=False)


def test_mixed_advantages_against_loops() -> None:
    steps = {0: [1.0, -1.0], 1: [-1.0], 2: [1.0, 1.0, -1.0]}
    scores = {0: 1.5, 1: -0.5, 2: 0.2}
    keys, fields = rows(*(("a", s, len(steps[s]) + 1, trajectory(scores[s], steps=steps[s])) for s in steps))
    made = batches.plan(keys, fields, 0.9, drop_equal=False)
    mean = sum(scores.values()) / 3
    for session, own in steps.items():
        for turn in range(len(own) + 1):
            if turn < len(own):
                alive = [other[turn] for other in steps.values() if turn < len(other)]
                single = own[turn] - sum(alive) / len(alive)
            else:
                single = 0.0
            expected = 0.9 * (scores[session] - mean) + 0.1 * single
            assert made.advantages[f"a_{session}_{turn}"] == pytest.approx(expected)


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    updates=st.integers(1, 6),
    copies=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_mini_batches_hold_whole_prompts_and_every_row_once(counts: list[int], updates: int, copies: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prompts = rng.permutation([p for p, n in enumerate(counts) for _ in range(n)]).tolist()
    made, pads, order = batches.arrange(prompts, rng.integers(1, 100, len(prompts)).tolist(), updates, copies)
    assert made == min(updates, len(counts))
    assert sorted(order) == list(range(len(prompts) + pads))
    size, left = divmod(len(order), made * copies)
    assert left == 0
    whose: dict[int, set[int]] = {}
    for copy in range(copies):
        stretch = order[copy * made * size : (copy + 1) * made * size]
        for number in range(made):
            for row in stretch[number * size : (number + 1) * size]:
                if row < len(prompts):
                    whose.setdefault(prompts[row], set()).add(number)
    assert all(len(numbers) == 1 for numbers in whose.values())
    assert {n for numbers in whose.values() for n in numbers} == set(range(made))
    # No more pads than the longest mini-batch asks for.
    longest = max(-(-sum(1 for p in prompts if p * made // len(counts) == n) // copies) for n in range(made))
    assert size == longest


def test_copies_share_the_work() -> None:
    _, _, order = batches.arrange([0] * 8, [8, 7, 6, 5, 4, 3, 2, 1], updates=1, copies=2)
    work = [sum(8 - row for row in half) for half in (order[:4], order[4:])]
    assert work == [18, 18]


def test_means_count_trajectories_and_sums_count_events() -> None:
    base = {
        "reward": 1.0, "accuracy": 1.0, "bonus": 0.1, "turns": 2, "rows": 9, "prompt_tokens": 900, "cached_tokens": 90,
        "response_tokens": 50, "memory_tokens": 30, "kept": True, "failed": False, "truncated": 0, "malformed": 1, "damaged": 0,
        "retries": 0, "checks": 8, "positive": 2, "parts": {"accuracy": 1.0, "bonus": 0.1},
    }  # fmt: skip
    other = base | {
        "reward": 0.0,
        "turns": 3,
        "rows": 1,
        "prompt_tokens": 100,
        "checks": 0,
        "positive": 0,
        "failed": True,
        "parts": {},
    }
    said = batches.summary([base, other])
    assert said["pimem/reward"] == 0.5
    assert said["pimem/turns"] == 2.5
    assert said["pimem/failed"] == 1
    assert said["pimem/malformed"] == 2
    assert said["pimem/positive_rate"] == 0.25
    assert said["pimem/cached_share"] == pytest.approx(0.18)
    assert said["pimem/part/accuracy"] == 0.5
