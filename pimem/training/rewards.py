"""What a finished trajectory is worth, computed from its trace alone: PI-Mem's, MemAgent's, GRU-Mem's and ReMemR1's rewards."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pimem import scoring
from pimem.config import GruMemSpec, MemAgentSpec, MethodSpec, PiMemSpec, ReMemR1Spec, at_least, build
from pimem.errors import ConfigError, DataError, nearest
from pimem.records import CallKey, Trace, Turn
from pimem.scoring import AnswerForm

ANSWER_TAIL = 300
"""Characters at the end of a response in which the strict rule looks for the box."""
EXIT_EARLY, EXIT_RIGHT, EXIT_LATE = -0.75, 0.0, -0.5
"""GRU-Mem's exit reward: before, at and after the turn that reads the last evidence."""
ALPHA = {"pi_mem": 1.0, "mem_agent": 1.0, "gru_mem": 0.9, "rememr1": 0.8}
"""Weight of the trajectory's advantage beside those of single turns, as each method's authors have it."""
_TRIMMING = re.compile(r"\\[!$%]|\\left|\\right|\^\{?\\circ\}?|\s")
_BOX = re.compile(r"\\boxed\s*\{")

SEMANTICS: dict[str, dict[str, Any]] = {"paper": {}, "released": {"bonus_on": "correct"}}
"""Presets over the fields of `RewardSpec`: the paper's equation 4, and what the authors' released trainer does."""


@dataclass(frozen=True)
class RewardSpec:
    """What is rewarded, and how much. `reward_spec` makes one that fits a method."""

    kind: Literal["pi_mem", "mem_agent", "gru_mem", "rememr1"] = "pi_mem"
    """Whose rewards: accuracy and turn bonus; accuracy; outcome, update, exit and format; outcome and state."""
    accuracy: Literal["strict", "exact", "sub_em"] = "strict"
    """strict: the box near the response's end equals an answer but for case, white space and signs of formulas, as in the
    released training; exact: equal when normalised; sub_em: one stands in the other when normalised, as in evaluation."""
    answer_form: AnswerForm = "boxed"
    """Where the response states its answer; that of the prompt set."""
    turn_bonus: float = 0.2
    """Lambda of equation 4 (pi_mem only); 0 is the paper's ablation."""
    bonus_on: Literal["all", "correct"] = "all"
    """Trajectories that get the bonus: all of them (equation 4), or those whose answer has any accuracy (as released)."""
    max_turns: int = 3
    """K of equation 4: the method's own."""
    alpha: float | None = None
    """Weight of the trajectory's advantage beside those of turns (gru_mem, rememr1); None is 0.9 and 0.8, their authors'."""

    def __post_init__(self) -> None:
        at_least(self, 1, "max_turns")
        at_least(self, 0, "turn_bonus")
        if self.kind == "pi_mem" and self.turn_bonus and self.max_turns == 1:
            raise ConfigError(
                f"turn_bonus: {self.turn_bonus} with max_turns 1 divides by zero, since equation 4 is (K - k)/(K - 1); "
                "set turn_bonus to 0 or max_turns to 2 or more"
            )
        if self.alpha is not None and not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha: {self.alpha} is no share; give a number from 0 to 1")

    @property
    def mixing(self) -> float:
        """Alpha, with None replaced by what the method's authors use."""
        return ALPHA[self.kind] if self.alpha is None else self.alpha


def reward_spec(method: MethodSpec, fields: Mapping[str, Any] | None = None, semantics: str = "paper") -> RewardSpec:
    """The reward of a method under a preset, with `fields` on top; kind and K are the method's.

    Raises `ConfigError` for a method that is not trained, an unknown preset or field, a field that contradicts the method, a
    turn bonus with K = 1, and GRU-Mem without its exit gate, whose exit reward would have no meaning.
    """
    if not isinstance(method, PiMemSpec | MemAgentSpec | GruMemSpec | ReMemR1Spec):
        raise ConfigError(f"method {method.method}: there is no reward for it; {nearest(method.method, ALPHA)}")
    if isinstance(method, GruMemSpec) and not method.exit_gate:
        raise ConfigError("method gru_mem: exit_gate is off, and it is trained with it on; switch it off in evaluation alone")
    if semantics not in SEMANTICS:
        raise ConfigError(f"unknown semantics {semantics!r}; {nearest(semantics, SEMANTICS)}")
    own: dict[str, Any] = {"kind": method.method}
    if isinstance(method, PiMemSpec):
        own["max_turns"] = method.max_turns
    for name, value in own.items():
        if fields and name in fields and fields[name] != value:
            raise ConfigError(f"reward.{name}: {fields[name]!r} contradicts the method's {value!r}; leave it out")
    return build(RewardSpec, {**SEMANTICS[semantics], **(fields or {}), **own}, "reward")


@dataclass(frozen=True)
class Reward:
    """What one trajectory got."""

    trajectory: float
    """The scalar that enters its group's baseline."""
    accuracy: float
    """Raw accuracy of the answer, 0..1."""
    bonus: float
    """What was added for saved turns."""
    turns: int
    """Turns used, the closing one without evidence included."""
    failed: bool
    """The trajectory did not come to an answer; it scores 0 throughout and stays in its group."""
    parts: dict[str, float] = field(default_factory=dict)
    """The components by name: all that `trajectory` is the sum of, and means of per-turn ones."""
    steps: list[float] | None = None
    """Rewards of single calls in the order of turns: gru_mem one a turn, rememr1 also one for the final answer; else None."""


def score(
    trace: Trace, answers: Sequence[str], evidence_chunks: Collection[int], reward: RewardSpec, metric: str = "sub_em"
) -> Reward:
    """The reward of a finished trajectory.

    `answers`: alternatives, or under `metric="multi_recall"` all asked for, when the accuracy is the share of them that the
    answer names. `evidence_chunks`: indices of the chunks that hold gold evidence (gru_mem only). A failed trace scores 0.
    Raises `DataError` for answers that are missing or blank, a trace of another method or with more turns than K, and
    gru_mem without evidence.
    """
    if trace.method != reward.kind:
        raise DataError(f"sample {trace.sample}: a trace of {trace.method} cannot be scored by the reward of {reward.kind}")
    if isinstance(answers, str) or not answers or not all(isinstance(a, str) and a.strip() for a in answers):
        raise DataError(f"sample {trace.sample}: gold answers must be a list of texts that are not blank, got {answers!r}")
    if metric not in scoring.METRICS:
        raise ConfigError(f"unknown metric {metric!r}; {nearest(metric, scoring.METRICS)}")
    if reward.kind == "gru_mem" and not evidence_chunks:
        raise DataError(f"sample {trace.sample}: gru_mem needs to know which chunks hold evidence, and there are none")
    failed = trace.status == "failed"
    right = 0.0 if failed else accuracy(trace.response, answers, reward, metric)
    parts = {"accuracy": right}
    steps: list[float] | None = None
    if reward.kind == "pi_mem":
        parts["bonus"] = 0.0 if failed else _bonus(trace, right, reward)
    elif reward.kind == "gru_mem":
        steps = [0.0 if failed else _update(turn, evidence_chunks) for turn in trace.turns]
        parts["exit"] = 0.0 if failed else _exit(trace.turns, evidence_chunks)
        parts["format"] = float(not failed and all(_well_formed(turn) for turn in trace.turns))
    elif reward.kind == "rememr1":
        steps = [0.0] * len(trace.turns) if failed else [*_states(trace, answers, metric), _one_box(trace, reward.answer_form)]
    total = sum(parts.values())
    if steps:
        parts["step"] = sum(steps) / len(steps)
    return Reward(total, right, parts.get("bonus", 0.0), trace.turns_used, failed, parts, steps)


def step_of(key: CallKey, steps: Sequence[float]) -> int:
    """Which of its trajectory's `Reward.steps` a call is, -1 where it has none (see `advantages.mixed`)."""
    at = key.turn - 1 if key.phase == "update" else key.turn
    return at if at < len(steps) else -1


def accuracy(response: str, answers: Sequence[str], reward: RewardSpec, metric: str = "sub_em") -> float:
    """Accuracy of a final response, 0..1; 0 where it states no answer in the form asked for."""
    if metric == "multi_recall":
        return scoring.multi_recall(scoring.extract(response, reward.answer_form), answers)
    if reward.accuracy == "strict":
        said = scoring.extract(response[-ANSWER_TAIL:], reward.answer_form)
        return float(said is not None and _trimmed(said) in {_trimmed(a) for a in answers})
    match = scoring.exact_match if reward.accuracy == "exact" else scoring.sub_em
    return match(scoring.extract(response, reward.answer_form), answers)


def _trimmed(text: str) -> str:
    return _TRIMMING.sub("", text.lower())


def _bonus(trace: Trace, right: float, reward: RewardSpec) -> float:
    """Lambda times equation 4's turn reward."""
    turns, most = trace.turns_used, reward.max_turns
    if not 1 <= turns <= most:
        raise DataError(
            f"sample {trace.sample}: {turns} turns do not lie in 1..{most}; give the reward the method's own max_turns"
        )
    if not reward.turn_bonus or (reward.bonus_on == "correct" and not right):
        return 0.0
    return reward.turn_bonus * (most - turns) / (most - 1)


def _update(turn: Turn, evidence_chunks: Collection[int]) -> float:
    """GRU-Mem's update reward: 1 where the gate opens for evidence and only for it, else -1; a gate that cannot be read is
    wrong either way, and a call that failed for good counts neither way."""
    call = turn.reads[0]
    if call.error:
        return 0.0
    right = "yes" if call.key.index in evidence_chunks else "no"
    return 1.0 if call.check == right else -1.0


def _exit(turns: Sequence[Turn], evidence_chunks: Collection[int]) -> float:
    """GRU-Mem's exit reward. A trajectory that never says end is late, even where the last chunk holds evidence."""
    ended = next((turn.reads[0].key.index for turn in turns if turn.exit == "end"), None)
    last = max(evidence_chunks)
    if ended is None or ended > last:
        return EXIT_LATE
    return EXIT_RIGHT if ended == last else EXIT_EARLY


def _well_formed(turn: Turn) -> bool:
    return turn.reads[0].well_formed is True


def _states(trace: Trace, answers: Sequence[str], metric: str) -> list[float]:
    """ReMemR1's state rewards of the memory turns: words of the answers gained by the new memory over the old one, those that
    a recalled memory adds to it, and 1 for a response in the form asked for."""
    written = {turn.number: turn.memory_out for turn in trace.turns}
    out = []
    for turn in trace.turns:
        before = word_recall(turn.memory_in, answers, metric)
        recalled = written[turn.recalled] if turn.recalled is not None else ""
        gained = word_recall(turn.memory_out, answers, metric) - before
        out.append(gained + max(0.0, word_recall(recalled, answers, metric) - before) + float(_well_formed(turn)))
    return out


def _one_box(trace: Trace, form: AnswerForm) -> float:
    """Format reward of the final answer: it states one, and no more than one where it is to stand in a box."""
    stated = scoring.extract(trace.response, form) is not None
    return float(stated and (form != "boxed" or len(_BOX.findall(trace.response)) == 1))


def word_recall(text: str, answers: Sequence[str], metric: str = "sub_em") -> float:
    """Share of an answer's words that stand in `text`, normalised: the best answer's, or the mean over all of multi_recall."""
    held = set(scoring.normalise(text).split())
    shares = []
    for answer in answers:
        words = set(scoring.normalise(answer).split())
        shares.append(len(words & held) / len(words) if words else 0.0)
    return sum(shares) / len(shares) if metric == "multi_recall" else max(shares)
