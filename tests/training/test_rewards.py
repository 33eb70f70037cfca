"""Rewards of hand-made traces, each against what its method's equations give."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimem.config import GruMemSpec, MemAgentSpec, PiMemSpec, ReMemR1Spec, VanillaSpec
from pimem.errors import ConfigError, DataError
from pimem.records import Call, CallKey, Completion, Sampling, Trace, Turn
from pimem.training import rewards
from pimem.training.rewards import RewardSpec, reward_spec, score


def trace(method: str = "pi_mem", response: str = r"\boxed{Paris}", turns: int = 2, **fields: Any) -> Trace:
    return Trace("s", method, "q", **{"status": "answered", "response": response, "turns_used": turns} | fields)


def step(index: int, memory_in: str = "", memory_out: str = "", *, check: Any = None, formed: bool = True, **turn: Any) -> Turn:
    """A turn of a recurrent method over chunk `index`."""
    key = CallKey("s", index + 1, "update", index)
    call = Call(key, "", Sampling(8), Completion("", "stop", 1, 1), check=check, well_formed=formed)
    return Turn(index + 1, memory_in, memory_out, reads=[call], **turn)


# Equation 4


@pytest.mark.parametrize("most", [2, 3, 5])
@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_equation_4(most: int, right: bool, weight: float) -> None:
    response = r"so \boxed{Paris}" if right else r"\boxed{Rome}"
    for used in range(1, most + 1):
        got = score(trace(response=response, turns=used), ["paris"], (), RewardSpec(turn_bonus=weight, max_turns=most))
        assert got.trajectory == pytest.approx(right + weight * (most - used) / (most - 1))
        assert got.accuracy == right
        assert got.turns == used
        assert got.steps is None


def test_released_semantics_give_the_bonus_to_right_answers_only() -> None:
    paper, released = (reward_spec(PiMemSpec(), semantics=name) for name in ("paper", "released"))
    right, wrong = trace(turns=2), trace(response=r"\boxed{Rome}", turns=1)
    assert [score(t, ["Paris"], (), paper).trajectory for t in (right, wrong)] == pytest.approx([1.1, 0.2])
    assert [score(t, ["Paris"], (), released).trajectory for t in (right, wrong)] == pytest.approx([1.1, 0.0])
    assert reward_spec(PiMemSpec(), {"bonus_on": "all"}, "released").bonus_on == "all"


def test_one_turn_with_a_bonus_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="max_turns 1 divides by zero"):
        RewardSpec(max_turns=1)
    with pytest.raises(ConfigError, match="divides by zero"):
        reward_spec(PiMemSpec(max_turns=1))
    without = reward_spec(PiMemSpec(max_turns=1), {"turn_bonus": 0.0})
    assert score(trace(turns=1), ["Paris"], (), without).trajectory == 1


def test_a_turn_count_outside_of_k_is_an_error_and_no_negative_bonus() -> None:
    with pytest.raises(DataError, match=r"5 turns do not lie in 1\.\.3"):
        score(trace(turns=5), ["Paris"], (), RewardSpec())


@pytest.mark.parametrize("method", ["pi_mem", "mem_agent", "gru_mem", "rememr1"])
def test_a_failed_trajectory_scores_nothing_and_says_so(method: Any) -> None:
    turns = [step(0, check="yes", exit="end", memory_out="Paris")] if method != "pi_mem" else []
    made = trace(method, turns=1, status="failed")
    made.turns = turns
    got = score(made, ["Paris"], [0], RewardSpec(kind=method))
    assert got.failed
    assert (got.trajectory, got.accuracy, got.bonus) == (0, 0, 0)
    assert not any(got.parts.values())
    assert not any(got.steps or [])


# Accuracy


@pytest.mark.parametrize(
    ("response", "answers", "strict", "exact", "sub_em"),
    [
        (r"\boxed{Eiffel  Tower}", ["eiffel tower"], 1, 1, 1),
        (r"\boxed{the Eiffel Tower}", ["Eiffel Tower"], 0, 1, 1),
        (r"\boxed{Tower}", ["Eiffel Tower"], 0, 0, 1),
        (r"\boxed{Rome} no, \boxed{Paris}", ["Lyon", "Paris"], 1, 1, 1),
        (r"\boxed{40\%}", ["40"], 1, 1, 1),
        ("Paris", ["Paris"], 0, 0, 0),
        (r"\boxed{Paris", ["Paris"], 0, 0, 0),
        (r"\boxed{}", ["Paris"], 0, 0, 0),
        (r"\boxed{Paris} " + 300 * "x", ["Paris"], 0, 1, 1),
        ("", ["Paris"], 0, 0, 0),
    ],
)
def test_accuracy_by_rule(response: str, answers: list[str], strict: float, exact: float, sub_em: float) -> None:
    got = [rewards.accuracy(response, answers, RewardSpec(accuracy=name)) for name in ("strict", "exact", "sub_em")]  # type: ignore[arg-type]
    assert got == [strict, exact, sub_em]


def test_questions_with_several_answers_count_their_share() -> None:
    got = score(trace(response=r"\boxed{12, 34, 99}"), ["12", "34", "56", "78"], (), RewardSpec(), metric="multi_recall")
    assert got.accuracy == 0.5
    assert got.trajectory == pytest.approx(0.6)


@given(st.text(), st.lists(st.text(min_size=1).filter(str.strip), min_size=1), st.integers(1, 3))
def test_no_text_makes_a_reward_leave_its_range(response: str, answers: list[str], turns: int) -> None:
    got = score(trace(response=response, turns=turns), answers, (), RewardSpec())
    assert 0 <= got.accuracy <= 1
    assert 0 <= got.trajectory <= 1.2


# GRU-Mem

EVIDENCE = {1, 3}


def gru(gates: str, end: int | None, malformed: int | None = None) -> Trace:
    """A trace whose update gates are `gates` (y, n or ?), that ends at chunk `end`."""
    said = {"y": "yes", "n": "no", "?": "malformed"}
    turns = [
        step(i, check=said[g], formed=i != malformed and g != "?", exit="end" if i == end else "continue")
        for i, g in enumerate(gates)
    ]
    return Trace("s", "gru_mem", "q", "answered", r"\boxed{Paris}", turns=turns, turns_used=len(turns))


@pytest.mark.parametrize(
    ("gates", "end", "malformed", "steps", "total"),
    [
        ("nyny", 3, None, [1, 1, 1, 1], 1 + 0 + 1),
        ("yyny", 3, None, [-1, 1, 1, 1], 1 + 0 + 1),
        ("ny", 1, None, [1, 1], 1 - 0.75 + 1),
        ("nynnn", 4, None, [1, 1, 1, -1, 1], 1 - 0.5 + 1),
        ("nynyn", None, None, [1, 1, 1, 1, 1], 1 - 0.5 + 1),
        ("nyny", None, None, [1, 1, 1, 1], 1 - 0.5 + 1),
        ("nyn?", 3, None, [1, 1, 1, -1], 1 + 0 + 0),
        ("nyny", 3, 0, [1, 1, 1, 1], 1 + 0 + 0),
    ],
)
def test_gru_mem(gates: str, end: int | None, malformed: int | None, steps: list[float], total: float) -> None:
    got = score(gru(gates, end, malformed), ["Paris"], EVIDENCE, RewardSpec(kind="gru_mem"))
    assert got.steps == steps
    assert got.trajectory == pytest.approx(total)
    assert got.parts["step"] == pytest.approx(sum(steps) / len(steps))


def test_gru_mem_needs_evidence_labels_and_its_exit_gate() -> None:
    with pytest.raises(DataError, match="which chunks hold evidence"):
        score(gru("ny", 1), ["Paris"], (), RewardSpec(kind="gru_mem"))
    with pytest.raises(ConfigError, match="exit_gate is off"):
        reward_spec(GruMemSpec(exit_gate=False))


# ReMemR1


def test_rememr1_states() -> None:
    """Two of the answer's three words are found, lost, recalled and the last added."""
    turns = [
        step(0, "", "it was Jean Claude"),
        step(1, "it was Jean Claude", "something else"),
        step(2, "something else", "Jean Claude Martin", recalled=1),
        step(3, "Jean Claude Martin", "Jean Claude Martin", recalled=1, formed=False),
    ]
    made = Trace("s", "rememr1", "q", "answered", r"\boxed{Jean Claude Martin}", turns=turns, turns_used=4)
    got = score(made, ["Jean-Paul", "Jean Claude Martin"], (), RewardSpec(kind="rememr1"))
    # "something else" holds no word; the recalled memory two of three.
    assert got.steps == pytest.approx([2 / 3 + 1, -2 / 3 + 1, 1 + 2 / 3 + 1, 0 + 0 + 0, 1])
    assert got.trajectory == got.accuracy == 1


@pytest.mark.parametrize(("response", "formed"), [(r"\boxed{x}", 1), (r"\boxed{x} \boxed{y}", 0), ("x", 0)])
def test_rememr1_wants_one_box(response: str, formed: float) -> None:
    made = Trace("s", "rememr1", "q", "answered", response, turns=[step(0)], turns_used=1)
    got = score(made, ["y"], (), RewardSpec(kind="rememr1"))
    assert got.steps == [1, formed]


def test_calls_find_their_steps() -> None:
    gru_steps, recall_steps = [1.0, 1.0], [1.0, 1.0, 0.0]
    update, final = CallKey("s", 2, "update", 1), CallKey("s", 2, "final", 0)
    assert [rewards.step_of(k, gru_steps) for k in (update, final)] == [1, -1]
    assert [rewards.step_of(k, recall_steps) for k in (update, final)] == [1, 2]


# The specification


def test_a_reward_is_made_for_its_method() -> None:
    assert reward_spec(PiMemSpec(max_turns=5)) == RewardSpec(max_turns=5)
    assert reward_spec(MemAgentSpec()).kind == "mem_agent"
    assert [reward_spec(m).mixing for m in (GruMemSpec(), ReMemR1Spec(), MemAgentSpec())] == [0.9, 0.8, 1.0]
    assert reward_spec(GruMemSpec(), {"alpha": 0.5}).mixing == 0.5
    with pytest.raises(ConfigError, match=r"reward\.max_turns: 3 contradicts the method's 5"):
        reward_spec(PiMemSpec(max_turns=5), {"max_turns": 3})
    with pytest.raises(ConfigError, match="did you mean 'bonus_on'"):
        reward_spec(PiMemSpec(), {"bonus": "all"})
    with pytest.raises(ConfigError, match="unknown semantics 'papr'"):
        reward_spec(PiMemSpec(), semantics="papr")
    with pytest.raises(ConfigError, match="there is no reward"):
        reward_spec(VanillaSpec())


@pytest.mark.parametrize("answers", [[], ["  "], "Paris"])
def test_bad_answers_never_become_a_number(answers: Any) -> None:
    with pytest.raises(DataError, match="gold answers"):
        score(trace(), answers, (), RewardSpec())


def test_a_trace_of_another_method_is_refused() -> None:
    with pytest.raises(DataError, match="a trace of mem_agent cannot be scored by the reward of pi_mem"):
        score(trace("mem_agent"), ["Paris"], (), RewardSpec())
