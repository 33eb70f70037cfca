"""The objective on ragged trajectories, against a loop written from equations 6 to 8, and against verl's own loss."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.training import advantages, objective
from pimem.training.objective import Row


def ragged(seed: int, trajectories: int = 5, spread: float = 0.5) -> list[list[Row]]:
    """Rows of each trajectory of one group; log-probabilities far enough apart that every branch of the clip is met."""
    rng = np.random.default_rng(seed)
    rewards = rng.integers(0, 2, trajectories) + 0.1 * rng.integers(0, 3, trajectories)
    out = []
    for value in advantages.trajectory(rewards, [0] * trajectories):
        rows = []
        for _ in range(int(rng.integers(1, 5))):
            n = int(rng.integers(1, 8))
            old = -rng.exponential(1.0, n)
            mask = (rng.random(n) < 0.9).astype(int)
            mask[0] = 1
            (spread_over,) = advantages.broadcast([value], [0], [mask])
            new, reference = (old + rng.normal(0, spread, n) for _ in range(2))
            rows.append(Row(new, old, reference, spread_over, mask))
        out.append(rows)
    return out


def by_hand(trajectories: list[list[Row]], epsilon: float, beta: float, dual: float | None) -> float:
    total, tokens = 0.0, 0
    for rows in trajectories:
        for row in rows:
            for t in range(len(row.mask)):
                if not row.mask[t]:
                    continue
                rho = math.exp(row.new[t]) / math.exp(row.old[t])
                a = row.advantage[t]
                bounded = min(max(rho, 1 - epsilon), 1 + epsilon)
                term = rho * a if rho * a < bounded * a else bounded * a
                if dual is not None and a < 0 and term < dual * a:
                    term = dual * a
                q = math.exp(row.reference[t]) / math.exp(row.new[t])
                total += term - beta * (q - math.log(q) - 1)
                tokens += 1
    return total / tokens


@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("seed", range(6))
def test_equations_6_to_8(seed: int, dual: float | None) -> None:
    made = ragged(seed, spread=1.0)
    rows = [row for trajectory in made for row in trajectory]
    got = objective.objective(rows, dual_clip=dual)
    assert got.value == pytest.approx(by_hand(made, 0.2, 1e-3, dual), rel=1e-12)
    assert got.tokens == sum(int(r.mask.sum()) for r in rows)
    assert got.value == pytest.approx(got.surrogate - 1e-3 * got.kl)


def test_the_paper_has_no_dual_clip() -> None:
    rho, advantage = np.array([10.0, 10.0, 0.1]), np.array([-1.0, 1.0, -1.0])
    assert list(objective.surrogate(rho, advantage)) == pytest.approx([-10, 1.2, -0.8])
    assert list(objective.surrogate(rho, advantage, dual_clip=objective.RELEASED_DUAL_CLIP)) == pytest.approx([-3, 1.2, -0.8])


@given(st.lists(st.tuples(st.floats(-8, 0), st.floats(-8, 0)), min_size=1))
def test_k3_is_never_negative_and_zero_for_equal_policies(pairs: list[tuple[float, float]]) -> None:
    new, reference = (np.array(v) for v in zip(*pairs, strict=True))
    assert (objective.k3(new, reference) >= 0).all()
    assert not objective.k3(new, new).any()


def test_k3_is_the_kl_in_the_mean_over_the_policys_tokens() -> None:
    p, q = np.array([0.7, 0.2, 0.1]), np.array([0.4, 0.4, 0.2])
    assert p @ objective.k3(np.log(p), np.log(q)) == pytest.approx(p @ np.log(p / q))


def test_on_policy_the_value_is_the_token_mean_of_the_advantages() -> None:
    rows = [row for trajectory in ragged(3, spread=0.0) for row in trajectory]
    got = objective.objective(rows)
    tokens = np.concatenate([r.advantage[r.mask == 1] for r in rows])
    assert got.value == pytest.approx(tokens.mean())
    assert got.kl == got.clipped == 0


@pytest.mark.parametrize("rows", [[], [Row(*(np.zeros(3),) * 4, mask=np.zeros(3))]])
def test_nothing_to_learn_from_is_an_error(rows: list[Row]) -> None:
    with pytest.raises(ValueError, match="no response token counts"):
        objective.objective(rows)


@pytest.mark.engine
@pytest.mark.parametrize(("dual", "constant"), [(None, 1e9), (3.0, 3.0)])
def test_verls_loss_is_minus_the_objective(dual: float | None, constant: float) -> None:
    pytest.importorskip("verl")
    torch = pytest.importorskip("torch")
    from verl.trainer.ppo.core_algos import agg_loss, compute_policy_loss_vanilla, kl_penalty

    rows = [row for trajectory in ragged(11, trajectories=8, spread=1.0) for row in trajectory]
    longest = max(len(r.mask) for r in rows)

    def padded(name: str) -> torch.Tensor:
        return torch.tensor(np.array([np.pad(getattr(r, name).astype(float), (0, longest - len(r.mask))) for r in rows]))

    new, old, reference, advantage, mask = (padded(n) for n in ("new", "old", "reference", "advantage", "mask"))

    class Config(SimpleNamespace):
        def get(self, name: str, default: float) -> float:
            return getattr(self, name, default)

    config = Config(clip_ratio=0.2, clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=constant, global_batch_info={})
    loss, metrics = compute_policy_loss_vanilla(old, new, advantage, mask, "token-mean", config)
    kl = agg_loss(kl_penalty(new, reference, "low_var_kl"), mask, "token-mean")
    ours = objective.objective(rows, dual_clip=dual)
    assert float(loss) == pytest.approx(-ours.surrogate, rel=1e-9)
    assert float(kl) == pytest.approx(ours.kl, rel=1e-9)
    assert float(loss + 1e-3 * kl) == pytest.approx(-ours.value, rel=1e-9)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(ours.clipped)
