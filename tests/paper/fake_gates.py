"""Made-up traces of recurrent methods and what tables of gates are made from, for tests. They never leave the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pimem.config import ModelSpec, RunSpec, TaskSpec, method_spec
from pimem.paper import gate_steps
from pimem.paper.scores import collect, combine
from pimem.records import Call, CallKey, Completion, Evidence, Sample, Sampling, Trace, Turn

CHUNK = 10
"""Tokens of a chunk."""

Asked = Mapping[str, tuple[Sequence[str], Sequence[int]]]
"""Sample to what each step said ("yes continue", "" for a method without gates) and the chunks that hold its evidence."""


def _call(name: str, turn: int, phase: Any, index: int, tokens: int, seconds: float) -> Call:
    done = Completion("text", "stop", 100, tokens, started=50.0, ended=50.0 + seconds)
    return Call(CallKey(name, turn, phase, index), "hash", Sampling(9), done)


def trace(name: str, steps: Sequence[str], chunks: int, method: str = "gru_mem", right: bool = True) -> Trace:
    """A trace whose memory grows by ten characters with every yes; without gates with every step."""
    made = Trace(name, method, "Who?", "answered", context_tokens=CHUNK * chunks, chunks=chunks)
    for number, said in enumerate(steps, start=1):
        gate, _, end = said.partition(" ")
        turn = Turn(number, made.memory, made.memory, reads=[_call(name, number, "update", number - 1, 7, 1.0)])
        call = turn.reads[0]
        if gate:
            call.check, turn.exit = gate, end  # type: ignore[assignment]
        if gate == "failed":
            call.completion, call.error = None, "down"
            made.status, made.failure = "failed", "down"
        if gate in ("yes", ""):
            turn.memory_out = made.memory = made.memory + "x" * 10
        made.turns.append(turn)
    made.turns_used = len(steps)
    if steps and made.status == "answered":
        made.last = _call(name, len(steps), "final", 0, 3, 0.5)
        made.response = "\\boxed{Ann}" if right else "\\boxed{Bob}"
    return made


def make(
    asked: Asked,
    chunks: int,
    *,
    method: str = "gru_mem",
    variant: str = "",
    within: float = 0.2,
    task: str = "hotpotqa",
    length: int = 50,
    model: str = "m",
    status: Mapping[str, Any] | None = None,
    run: str = "run000000000",
    profile: str = "t",
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores and steps of one run; every second sample is answered wrongly."""
    samples, traces, steps = [], [], []
    for number, (name, (said, gold)) in enumerate(asked.items()):
        evidence = tuple(Evidence(CHUNK * c + 3, CHUNK * c + 5, "gold") for c in gold)
        samples.append(Sample(name, f"c-{name}", "Who?", ("Ann",), np.zeros(0, np.uint32), evidence))
        traces.append(trace(name, said, chunks, method, right=number % 2 == 0))
        traces[-1].status = (status or {}).get(name, traces[-1].status)
        steps += gate_steps.steps_of(samples[-1], traces[-1], CHUNK, len, run=run, within=within)
    spec = RunSpec(method_spec(method), ModelSpec(model), TaskSpec(task, length), prompts="trained")
    about = {"run": run, "profile": profile, "form": "boxed", "metric": "sub_em", "unit": "documents", "variant": variant}
    return collect(traces, samples, spec, **about), gate_steps.validate(pd.DataFrame(steps), "test")


def joined(asked: Asked, chunks: int, **more: Any) -> pd.DataFrame:
    return gate_steps.join(*make(asked, chunks, **more))


def several() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A small study: MemAgent and GRU-Mem with and without its exit gate, two settings, two lengths, two models."""
    rng = np.random.default_rng(1)
    made = []
    for model in ("untrained", "trained"):
        for within in (1.0, 0.2):
            for length, chunks in ((50, 6), (100, 12)):
                for method, variant in (("mem_agent", ""), ("gru_mem", ""), ("gru_mem", "exit gate off")):
                    asked: dict[str, Any] = {}
                    for number in range(24):
                        last = int(rng.integers(0, max(1, int(chunks * within))))
                        off = variant != "" or rng.random() < 0.2
                        end = (
                            chunks - 1 if off or method == "mem_agent" else min(chunks - 1, last + int(rng.integers(-1, 2) / 1))
                        )
                        said = []
                        for step in range(max(end, 0) + 1):
                            sure = rng.random() < (0.9 if model == "trained" else 0.6)
                            gate = "yes" if (step == last) == sure else "no"
                            stop = "end" if step == (max(end, 0) if not off else last) else "continue"
                            said.append(f"{gate} {stop}" if method == "gru_mem" else "")
                        asked[f"s{number}"] = (said, (last,))
                    run = f"{model[:2]}{within}{length}{method[:2]}{variant[:1]}".ljust(12, "0")[:12]
                    cell = {"method": method, "variant": variant, "within": within, "length": length, "model": model}
                    made.append(make(asked, chunks, run=run, **cell))
    scores = combine(s for s, _ in made)
    return scores, gate_steps.validate(pd.concat([s for _, s in made], ignore_index=True), "several")
