"""The leaf types that every other module speaks in.

Tokens are counted in the served model's own tokenizer; times are seconds. Nothing here imports anything of ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

Phase = Literal["read", "merge", "update", "final", "reason", "answer"]
"""read and merge: PI-Mem; update: a step of MemAgent, GRU-Mem or ReMemR1; final: answer from memory; reason: thinking about
the text before an answer; answer: answer from the text itself, from such thinking, or from nothing."""

Check = Literal["yes", "no", "malformed", "failed"]
"""The value of a read's check tag or of an update gate; `malformed` has no readable one, `failed` has no response at all."""

Exit = Literal["continue", "end", "malformed", "failed"]
"""The value of an exit gate, likewise."""


class CallKey(NamedTuple):
    """Names one model request of a run. Order-independent, so it also seeds, routes and journals the request."""

    sample: str
    turn: int
    """1-based turn; the number of turns so far for a final call; 0 for methods without turns."""
    phase: Phase
    index: int  # type: ignore[assignment]  # a field of that name hides the method of tuples, which nobody needs
    """Chunk index for reads and updates; running number within the turn for merges; 0 otherwise."""

    def __str__(self) -> str:
        return f"{self.sample}/{self.turn}/{self.phase}/{self.index}"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one completion is drawn."""

    max_tokens: int
    """Most tokens to generate."""
    temperature: float = 0.0
    """0 means greedy."""
    top_p: float = 1.0
    """Nucleus mass; 1 keeps all."""
    stop: tuple[str, ...] = ()
    """Strings that end the completion; the string itself stays in the text."""
    seed: int | None = None
    """Seed of this one request; None leaves it to the engine."""
    logprobs: bool = False
    """Whether the log-probability of each generated token is wanted."""
    ignore_eos: bool = False
    """Generate `max_tokens` whatever comes (for latency with dummy weights)."""


@dataclass(slots=True)
class Completion:
    """What an engine answered to one request."""

    text: str
    """The generated text, special tokens left out, a stop string kept."""
    finish: Literal["stop", "length"]
    """stop: end token or stop string; length: `max_tokens` reached."""
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens the engine took from its prefix cache; None where it does not say."""
    token_ids: tuple[int, ...] | None = None
    """The generated ids, end token included; None where the server does not say."""
    logprobs: tuple[float, ...] | None = None
    started: float = 0.0
    """Unix time at which the engine took the request."""
    ended: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)
    """An engine's own fields, JSON types only (`prompt_as_text: true` where a server took text instead of ids)."""


@dataclass(slots=True)
class Call:
    """One model request as a trace keeps it: what was asked (by hash), what came back, how it was classified."""

    key: CallKey
    prompt_hash: str
    sampling: Sampling
    completion: Completion | None = None
    check: Check | None = None
    """Only on PI-Mem's reads, and on GRU-Mem's updates, where it is the update gate."""
    well_formed: bool | None = None
    """Whether the response keeps its method's form to the letter (GRU-Mem, ReMemR1); None without a form or a response."""
    chunk_hash: str | None = None
    attempts: int = 1
    error: str | None = None

    @property
    def text(self) -> str:
        return self.completion.text if self.completion else ""


@dataclass(slots=True)
class Turn:
    """One read-select-merge cycle, or one recurrent step."""

    number: int
    memory_in: str
    memory_out: str
    reads: list[Call] = field(default_factory=list)
    selected: list[int] = field(default_factory=list)
    """Indices of the chunks whose observations went into the merge."""
    merges: list[Call] = field(default_factory=list)
    """In the order made; more than one means the merge was hierarchical."""
    merge_levels: int = 0
    exit: Exit | None = None
    """GRU-Mem: what the exit gate said, whether or not it is obeyed."""
    query: str | None = None
    """ReMemR1: what this turn asked to recall."""
    recalled: int | None = None
    """ReMemR1: number of the turn whose `memory_out` this turn's prompt showed as recalled."""


@dataclass(slots=True)
class Trace:
    """All calls of one sample under one method, and what became of it."""

    sample: str
    method: str
    question: str
    status: Literal["answered", "failed"]
    response: str = ""
    """Text of the last call, from which scoring extracts the answer."""
    memory: str = ""
    """Final memory; empty for methods without one, and where nothing was ever found."""
    turns: list[Turn] = field(default_factory=list)
    last: Call | None = None
    """The final or answer call."""
    turns_used: int = 0
    """Turns as the paper counts them: the closing all-no turn included."""
    converged: bool = False
    """The loop ended because no chunk had anything new (PI-Mem), or because the exit gate said so (GRU-Mem)."""
    context_tokens: int = 0
    chunks: int = 0
    dropped_tokens: int = 0
    """Context tokens cut out to fit the window."""
    retrieved: list[int] = field(default_factory=list)
    """RAG: window indices in descending score."""
    recalled: int | None = None
    """ReMemR1: number of the turn whose `memory_out` the final prompt showed as recalled."""
    damaged: int = 0
    """Calls given up on while the sample went on."""
    failure: str | None = None
    notes: dict[str, Any] = field(default_factory=dict)
    reasoning: Call | None = None
    """The call that thought step by step before the answer, where one was asked for."""

    def calls(self) -> list[Call]:
        """Every call in the order of the algorithm."""
        out = [call for turn in self.turns for call in (*turn.reads, *turn.merges)]
        return [*out, *(call for call in (self.reasoning, self.last) if call)]


class Evidence(NamedTuple):
    """A gold position: context tokens [start, end) that hold `text`."""

    start: int
    end: int
    text: str


@dataclass(slots=True)
class Sample:
    """One question over one context."""

    id: str
    """Unique within a task and length; reproducible from the seed."""
    cluster: str
    """What resampling treats as one unit: the same question at another length has the same cluster."""
    question: str
    answers: tuple[str, ...]
    context_ids: np.ndarray
    """uint32, shape (tokens,)."""
    evidence: tuple[Evidence, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)


def to_json(record: Any) -> Any:
    """A record as JSON types; `Call.key` becomes a list."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {f.name: to_json(getattr(record, f.name)) for f in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {str(k): to_json(v) for k, v in record.items()}
    if isinstance(record, list | tuple):
        return [to_json(v) for v in record]
    return record


def sampling_from_json(data: Mapping[str, Any]) -> Sampling:
    return Sampling(**{**data, "stop": tuple(data["stop"])})


def completion_from_json(data: Mapping[str, Any]) -> Completion:
    tuples = {k: tuple(data[k]) for k in ("token_ids", "logprobs") if data.get(k) is not None}
    return Completion(**{**data, **tuples})


def call_from_json(data: Mapping[str, Any]) -> Call:
    return Call(
        **{
            **data,
            "key": CallKey(*data["key"]),
            "sampling": sampling_from_json(data["sampling"]),
            "completion": completion_from_json(data["completion"]) if data["completion"] else None,
        }
    )


def trace_from_json(data: Mapping[str, Any]) -> Trace:
    """The inverse of `to_json` on a trace."""
    turns = [
        Turn(
            **{
                **turn,
                "reads": [call_from_json(c) for c in turn["reads"]],
                "merges": [call_from_json(c) for c in turn["merges"]],
            }
        )
        for turn in data["turns"]
    ]
    single = {name: call_from_json(data[name]) if data.get(name) else None for name in ("reasoning", "last")}
    return Trace(**{**data, "turns": turns, **single})


def sample_from_json(data: Mapping[str, Any]) -> Sample:
    """The inverse of `without_context`: the sample with an empty context."""
    return Sample(
        **{
            **data,
            "answers": tuple(data["answers"]),
            "evidence": tuple(Evidence(*e) for e in data["evidence"]),
            "context_ids": np.zeros(0, np.uint32),
        }
    )


def without_context(sample: Sample) -> dict[str, Any]:
    """A sample's fields by name but for its context."""
    return {f.name: getattr(sample, f.name) for f in dataclasses.fields(sample) if f.name != "context_ids"}
