"""The workflows of evaluation run inside verl: every model call becomes a row of its own, the final answer last.

Nothing of a workflow is written again here. It gets an engine over verl's inference server and a recorder that keeps the ids
and log-probabilities the server gave. verl is imported where its output type is needed; everything else works without it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from pimem.config import SamplingSpec
from pimem.engines.base import EngineInfo, refuse
from pimem.errors import EngineError, PimemError
from pimem.prompts import PromptSet
from pimem.records import Call, CallKey, Completion, Sampling, Trace
from pimem.tokens import Tokenizer
from pimem.training import questions, rewards
from pimem.training.questions import Questions
from pimem.training.rewards import Reward
from pimem.training.spec import Run, TrainSpec
from pimem.workflows.base import Workflow, build

if TYPE_CHECKING:
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

logger = logging.getLogger(__name__)


class Server(Protocol):
    """verl's client of its inference servers, as far as it is used."""

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any: ...


class ServerEngine:
    """An engine over verl's inference server.

    `sampling` holds verl's temperature, top-p, top-k and whether log-probabilities are wanted; they count instead of a call's
    own, since verl changes them for validation. Only a call's budget, stop strings and, if `seeded`, seed are its own.
    """

    def __init__(
        self,
        server: Server,
        tokenizer: Tokenizer,
        sampling: Mapping[str, Any],
        window: int,
        timeout: float,
        seeded: bool = False,
        routing: str = "",
    ):
        self.server = server
        self.tokenizer = tokenizer
        self.sampling = dict(sampling)
        self.timeout = timeout
        self.seeded = seeded
        self.routing = routing
        self.info = EngineInfo("verl", "policy", window)

    async def generate(self, prompt_ids: np.ndarray, sampling: Sampling, key: CallKey) -> Completion:
        refuse(prompt_ids, sampling, self.info.window)
        wanted = {**self.sampling, "max_tokens": sampling.max_tokens, "stop_token_ids": list(self.tokenizer.stop_ids)}
        if sampling.stop:
            wanted |= {"stop": list(sampling.stop), "include_stop_str_in_output": True}
        if self.seeded and sampling.seed is not None:
            wanted["seed"] = sampling.seed
        # All rollouts of a prompt ask the same server for a chunk, whose prefix it has then computed once.
        route = f"{self.routing}/{key.index}" if self.routing and key.phase == "read" else uuid.uuid4().hex
        started = time.time()
        try:
            async with asyncio.timeout(self.timeout):
                out = await self.server.generate(route, prompt_ids=prompt_ids.tolist(), sampling_params=wanted)
        except TimeoutError:
            raise EngineError(f"no answer within {self.timeout:g} s") from None
        except Exception as error:
            # The server refuses a request with a ValueError, which the transport wraps.
            cause = getattr(error, "cause", error)
            raise EngineError(
                f"{type(cause).__name__}: {cause}", retryable=not isinstance(cause, ValueError | TypeError)
            ) from error
        ids = tuple(map(int, out.token_ids))
        if not ids or out.stop_reason == "aborted":
            raise EngineError(f"the server ended the request without an answer ({out.stop_reason})")
        text, finish = self._read(ids, sampling)
        logprobs = tuple(map(float, out.log_probs[: len(ids)])) if out.log_probs is not None else None
        fields = dict(out.extra_fields or {})
        cached = fields.get("num_cached_tokens")
        return Completion(text, finish, len(prompt_ids), len(ids), cached, ids, logprobs, started, time.time(), fields)

    def _read(self, ids: tuple[int, ...], sampling: Sampling) -> tuple[str, Literal["stop", "length"]]:
        """Text as every other engine shows it, and why it ended: verl says "completed" for a cut one as well."""
        ended = ids[-1] in self.tokenizer.stop_ids
        text = self.tokenizer.response(ids[:-1] if ended else ids)
        ends = [text.index(s) + len(s) for s in sampling.stop if s in text]
        if ends:
            return text[: min(ends)], "stop"
        return text, "stop" if ended or len(ids) < sampling.max_tokens else "length"

    async def close(self) -> None:
        """The server is verl's."""


@dataclass
class Row:
    """One answered call as training needs it: the ids that were sent and those that came back."""

    key: CallKey
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float] | None
    fields: dict[str, Any] = field(default_factory=dict)
    """The server's own, such as the version of the weights that answered."""


class RowRecorder:
    """Keeps every answered call as a row."""

    def __init__(self, sample: str):
        self.sample = sample
        self._rows: dict[CallKey, Row] = {}

    def record(self, call: Call, prompt_ids: np.ndarray) -> None:
        done = call.completion
        if done is not None and done.token_ids:
            logprobs = list(done.logprobs) if done.logprobs is not None else None
            self._rows[call.key] = Row(call.key, prompt_ids.tolist(), list(done.token_ids), logprobs, dict(done.extra))

    def rows(self, trace: Trace) -> list[Row]:
        """All rows in the order of the algorithm, the final answer last; calls that a failure kept out of the trace first."""
        known = [call.key for call in trace.calls() if call.key in self._rows]
        lost = sorted(self._rows.keys() - set(known))
        return [self._rows[key] for key in [*lost, *known]]


def facts(trace: Trace, reward: Reward, rows: list[Row], tokenizer: Tokenizer) -> dict[str, Any]:
    """What is logged of one trajectory, JSON types only; tokens are counted as the server did."""
    calls = trace.calls()
    done = [call.completion for call in calls if call.completion]
    gated = [call for call in calls if call.check is not None]
    return {
        "method": trace.method,
        "failed": trace.status == "failed",
        "failure": trace.failure,
        "reward": reward.trajectory,
        "accuracy": reward.accuracy,
        "bonus": reward.bonus,
        "parts": reward.parts,
        "steps": reward.steps,
        "turns": trace.turns_used,
        "converged": trace.converged,
        "rows": len(rows),
        "prompt_tokens": sum(len(row.prompt_ids) for row in rows),
        "cached_tokens": sum(c.cached_tokens or 0 for c in done),
        "response_tokens": sum(len(row.response_ids) for row in rows),
        "truncated": sum(c.finish == "length" for c in done),
        "checks": len(gated),
        "positive": sum(call.check == "yes" for call in gated),
        "malformed": sum(call.check == "malformed" or call.well_formed is False for call in calls),
        "damaged": trace.damaged,
        "retries": sum(call.attempts - 1 for call in calls),
        "memory_tokens": len(tokenizer.encode(trace.memory)) if trace.memory else 0,
        "chunks": trace.chunks,
        "context_tokens": trace.context_tokens,
        "response": trace.response[-300:],
    }


@dataclass(frozen=True)
class Setup:
    """What all rollouts of a process share."""

    spec: TrainSpec
    workflow: Workflow
    questions: Questions


def setup(path: str, evaluation: bool) -> Setup:
    """What the run folder `path` says is trained, or what it is evaluated on; built once a process, whoever asks first."""
    with _LOCK:
        return _setup(path, evaluation)


_LOCK = threading.Lock()


@functools.cache
def _setup(path: str, evaluation: bool) -> Setup:
    run = Run.read(Path(path))
    train = run.spec
    tokenizer = Tokenizer.load(run.model)
    workflow = build(
        train.method,
        PromptSet.load(train.prompts),
        tokenizer,
        train.model.window,
        SamplingSpec(train.temperature, train.top_p, train.seed),
        train.machines.retries,
        train.model.template_args,
    )
    folder = run.evaluation if evaluation else run.questions
    assert folder is not None
    return Setup(train, workflow, questions.load(folder, tokenizer))


class WorkflowLoop:
    """verl's agent loop (it asks for `run` and nothing else); one object a rollout.

    Built by hydra from an entry of the agent-loop file; `folder` is the run's, `evaluation` says which of its question sets.
    What else verl passes is not needed: prompts are compiled from their own templates, and contexts come by id.
    """

    def __init__(self, server_manager: Server, folder: str, evaluation: bool = False, **_: Any):
        self.server = server_manager
        self.folder = folder
        self.evaluation = evaluation

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """All calls of one rollout as verl's rows. A rollout that fails is scored 0 and kept; this raises nothing."""
        known = await asyncio.to_thread(setup, self.folder, self.evaluation)
        started = time.time()
        trace, reward, rows = await rollout(known, self.server, sampling_params, row)
        made = facts(trace, reward, rows, known.workflow.tokenizer)
        info = row["extra_info"]
        named = {"sample": info["id"], "session": int(row.get("session_id", 0)), "uid": str(row.get("uid", ""))}
        return outputs(rows, reward, {**named, **made, "seconds": time.time() - started}, row, known.workflow.tokenizer)


async def rollout(
    known: Setup, server: Server, sampling: Mapping[str, Any], row: Mapping[str, Any]
) -> tuple[Trace, Reward, list[Row]]:
    """One trajectory and what it is worth. `row`: a row of the training file with verl's own fields."""
    train, workflow = known.spec, known.workflow
    name = str(row["extra_info"]["id"])
    recorder = RowRecorder(f"{name}/{row.get('global_steps', 0)}/{row.get('session_id', 0)}")
    engine = ServerEngine(
        server,
        workflow.tokenizer,
        sampling,
        train.model.window,
        train.machines.call_timeout,
        train.seeded,
        str(row.get("uid", name)),
    )
    try:
        asked = known.questions[name]
        context = await asyncio.to_thread(np.array, known.questions.context(name))
        trace = await workflow.run(asked.question, context, engine, recorder)
        chunks = known.questions.evidence_chunks(name, train.method.chunk_tokens)
        reward = rewards.score(trace, asked.answers, chunks, train.reward, asked.metric)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        # One question that cannot be used must not take the batch with it; the trainer counts and reports it.
        log = logger.warning if isinstance(error, PimemError) else logger.exception
        log("rollout of %s failed: %s", name, error)
        trace = Trace(name, train.method.method, "", "failed", failure=f"{type(error).__name__}: {error}")
        reward = Reward(0.0, 0.0, 0.0, 0, True, {}, None)
    return trace, reward, recorder.rows(trace)


def outputs(
    rows: list[Row], reward: Reward, made: dict[str, Any], row: Mapping[str, Any], tokenizer: Tokenizer
) -> list[AgentLoopOutput]:
    """Rows in the type verl takes, the last one with the reward and everything that is logged of the trajectory."""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    version = int(row.get("global_steps", 1)) - 1
    steps = reward.steps or []
    logprobs = all(r.logprobs is not None for r in rows)
    made_of = [
        AgentLoopOutput(
            prompt_ids=r.prompt_ids,
            response_ids=r.response_ids,
            response_mask=[1] * len(r.response_ids),
            response_logprobs=r.logprobs if logprobs else None,
            extra_fields={
                "min_global_steps": version,
                "max_global_steps": version,
                **r.fields,
                "step": rewards.step_of(r.key, steps),
            },
            num_turns=made["turns"],
            metrics=_metrics(AgentLoopMetrics, made["seconds"]),
        )
        for r in rows
    ]
    if not made_of:
        # A trajectory without any answered call: a row that trains nothing keeps its reward in the group's baseline.
        end = tokenizer.stop_ids[0]
        made_of = [
            AgentLoopOutput(
                prompt_ids=[end],
                response_ids=[end],
                response_mask=[0],
                response_logprobs=[0.0],
                extra_fields={"min_global_steps": version, "max_global_steps": version, "step": -1},
                num_turns=made["turns"],
                metrics=_metrics(AgentLoopMetrics, made["seconds"]),
            )
        ]
    last = made_of[-1]
    last.reward_score = reward.trajectory
    # verl wants it of whoever sets the reward here, and averages what stands in it over validation.
    last.extra_fields["reward_extra_info"] = {
        "acc": reward.accuracy,
        "bonus": reward.bonus,
        "turns": float(made["turns"]),
        "failed": float(reward.failed),
    }
    last.extra_fields["trajectory"] = made
    return made_of


def _metrics(kind: Any, seconds: float) -> Any:
    """All fields given: verl drops those that are not."""
    return kind(generate_sequences=seconds, tool_calls=0.0, compute_score=0.0, num_preempted=-1)
