"""Advantages on ragged trajectories, against loops written from the equations, and against verl's own where it is installed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.errors import ConfigError
from pimem.training import advantages

REWARDS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(-2, 2), st.lists(st.sampled_from([-1.0, 1.0, 0.25]), max_size=5)),
    min_size=1,
    max_size=16,
)
"""Trajectories as group, reward and turn rewards."""


@given(REWARDS)
def test_equation_5(made: list[tuple[int, float, list[float]]]) -> None:
    groups, rewards = [g for g, _, _ in made], [r for _, r, _ in made]
    got = advantages.trajectory(rewards, groups)
    for i, (group, reward) in enumerate(zip(groups, rewards, strict=True)):
        size, total = 0, 0.0
        for other, r in zip(groups, rewards, strict=True):
            if other == group:
                size, total = size + 1, total + r
        assert got[i] == pytest.approx(reward - total / size, abs=1e-12)
    assert got.dtype == np.float64


@given(REWARDS, st.floats(0, 1))
def test_mixed_advantages(made: list[tuple[int, float, list[float]]], alpha: float) -> None:
    groups, rewards, steps = ([m[k] for m in made] for k in range(3))
    owner = [i for i, s in enumerate(steps) for _ in range(len(s) + 1)]
    step = [t for s in steps for t in [*range(len(s)), -1]]
    got = advantages.mixed(rewards, groups, steps, alpha, owner, step)
    row = 0
    for i in range(len(made)):
        siblings = [j for j in range(len(made)) if groups[j] == groups[i]]
        whole = rewards[i] - sum(rewards[j] for j in siblings) / len(siblings)
        for t, reward in enumerate(steps[i]):
            alive = [j for j in siblings if len(steps[j]) > t]
            single = reward - sum(steps[j][t] for j in alive) / len(alive)
            assert got[row] == pytest.approx(alpha * whole + (1 - alpha) * single, abs=1e-12)
            row += 1
        assert got[row] == pytest.approx(alpha * whole, abs=1e-12)
        row += 1
    assert row == len(got)


def test_a_turn_that_one_trajectory_alone_reaches_has_no_turn_advantage() -> None:
    got = advantages.turn([[1.0, -1.0], [-1.0], [1.0]])
    assert [list(a) for a in got] == [pytest.approx([2 / 3, 0]), pytest.approx([-4 / 3]), pytest.approx([2 / 3])]


def test_rows_share_their_trajectorys_advantage_and_keep_their_own_mask() -> None:
    whole = advantages.trajectory([1.0, 0.0, 0.0], ["a", "a", "a"])
    rows = advantages.broadcast(whole, [0, 0, 0, 1, 2, 2], [[1, 1], [1, 0, 1], [1], [1, 1], [0], [1, 1, 1]])
    wanted = [[2, 2], [2, 0, 2], [2], [-1, -1], [0], [-1, -1, -1]]
    assert [list(r) for r in rows] == [pytest.approx(np.array(w) / 3) for w in wanted]


def test_what_is_trained_on() -> None:
    groups = ["right", "right", "wrong", "wrong", "lone", "mixed", "mixed"]
    accuracy = [1, 1, 0, 0, 1, 0, 1]
    assert list(advantages.keep(accuracy, groups)) == [True] * 4 + [False] + [True] * 2
    assert list(advantages.keep(accuracy, groups, drop_equal=True)) == [False] * 5 + [True] * 2
    # By rewards with a bonus on every trajectory, wrong groups that differ in turns would stay.
    bonus = [1.1, 1.1, 0.1, 0.0, 1.1, 0.1, 1.0]
    assert list(advantages.keep(bonus, groups, drop_equal=True))[2:4] == [True, True]


def test_a_lone_survivor_has_no_advantage() -> None:
    assert list(advantages.trajectory([1.2, 1.0, 0.0], ["lone", "pair", "pair"])) == [0, 0.5, -0.5]


@pytest.mark.parametrize("size", [0, 1])
def test_a_group_of_one_is_refused_up_front(size: int) -> None:
    with pytest.raises(ConfigError, match="no baseline"):
        advantages.check_group(size)
    advantages.check_group(2)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="trajectory 1: its reward is not a finite number"):
        advantages.trajectory([1.0, float("nan")], ["a", "a"])
    with pytest.raises(ValueError, match="give one each"):
        advantages.trajectory([1.0], ["a", "a"])
    with pytest.raises(ConfigError, match=r"alpha: 1\.5"):
        advantages.mixed([1, 0], "aa", [[], []], 1.5, [0], [-1])
    for owner, step in ((2, 0), (0, 1), (0, -2), (-1, 0)):
        with pytest.raises(ValueError, match="does not exist"):
            advantages.mixed([1, 0], "aa", [[1], [1]], 0.9, [owner], [step])


@pytest.mark.engine
def test_verl_gives_complete_trajectories_the_same() -> None:
    """Ragged trajectories of three groups, rows in mixed order; verl knows a trajectory by its key and takes its last row."""
    pytest.importorskip("verl")
    torch = pytest.importorskip("torch")
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    rng = np.random.default_rng(0)
    groups, rewards, owner, keys = [], [], [], []
    for group in range(3):
        for session in range(4):
            groups.append(group)
            rewards.append(float(rng.integers(0, 2)) + 0.1 * float(rng.integers(0, 3)))
            for index in range(int(rng.integers(1, 6))):
                owner.append(len(groups) - 1)
                keys.append(f"g{group}_{session}_{index}")
    lengths = rng.integers(1, 7, size=len(keys))
    mask = np.arange(6) < lengths[:, None]
    scores = np.zeros(mask.shape)
    for row, of in enumerate(owner):
        # Only the last row's score may count.
        scores[row, lengths[row] - 1] = rewards[of] if row + 1 == len(owner) or owner[row + 1] != of else 9.0
    order = rng.permutation(len(keys))
    data = DataProto.from_dict(
        tensors={
            "response_mask": torch.tensor(mask[order].astype(int)),
            "token_level_rewards": torch.tensor(scores[order], dtype=torch.float32),
        },
        non_tensors={"uid": np.array([keys[i].split("_")[0] for i in order], dtype=object)},
    )
    made = compute_advantage_for_multi_trajectories(
        data, [keys[i] for i in order], adv_estimator="grpo", norm_adv_by_std_in_grpo=False
    )
    ours = advantages.broadcast(advantages.trajectory(rewards, groups), owner, [mask[i].astype(int) for i in range(len(keys))])
    for place, row in enumerate(order):
        np.testing.assert_allclose(made.batch["advantages"][place].numpy(), ours[row], atol=1e-6)
