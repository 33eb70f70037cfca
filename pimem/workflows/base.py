"""What every workflow shares: one way to make a call, budgets checked before it, failures kept apart from answers.

A workflow is pure: given the engine's answers it is deterministic, and it runs unchanged under evaluation and in training. It
imports no engine.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np

from pimem.config import MethodSpec, SamplingSpec
from pimem.engines.base import Engine
from pimem.errors import BudgetError, ConfigError, EngineError
from pimem.prompts import PromptSet, Template
from pimem.records import Call, CallKey, Phase, Sampling, Trace
from pimem.tokens import Tokenizer, digest, windows

RETRY_SECONDS = 0.5
"""Wait before the first retry; doubles with each further one."""


class Recorder(Protocol):
    """Is told of every call as it ends. Training keeps its token ids, evaluation needs nothing of it."""

    sample: str
    """Id of the sample, part of each call's key."""

    def record(self, call: Call, prompt_ids: np.ndarray) -> None: ...


class SampleRecorder:
    """A recorder that only names the sample."""

    def __init__(self, sample: str):
        self.sample = sample

    def record(self, call: Call, prompt_ids: np.ndarray) -> None:
        """Keeps nothing: the trace has the call."""


class Workflow(ABC):
    """One method, ready to run: its specification, compiled prompts and budgets."""

    version: ClassVar[int]
    """Part of a run's identity; raised when the same answers would lead to another trace."""
    name: ClassVar[str]

    def __init__(
        self,
        spec: Any,
        prompts: PromptSet,
        tokenizer: Tokenizer,
        window: int,
        sampling: SamplingSpec,
        retries: int = 2,
        template_args: Mapping[str, Any] | None = None,
    ):
        self.spec = spec
        self.prompts = prompts
        self.tokenizer = tokenizer
        self.window = window
        self.sampling = sampling
        self.retries = retries
        self.template_args = dict(template_args or {})
        self.check_spec()

    def template(self, phase: str) -> Template:
        """The phase compiled for this tokenizer, once."""
        return self._templates(phase)

    @functools.cached_property
    def _templates(self) -> Any:
        return functools.cache(lambda phase: self.prompts.template(phase, self.tokenizer, self.template_args))

    @functools.cached_property
    def empty_memory(self) -> np.ndarray:
        return self.tokenizer.encode(self.prompts.empty_memory)

    @abstractmethod
    def check_spec(self) -> None:
        """Raises `ConfigError` or `BudgetError` for a specification that can never work with this window and these prompts."""

    @abstractmethod
    def check_question(self, question_ids: np.ndarray) -> None:
        """Raises `BudgetError` where the question leaves no room in some phase."""

    @abstractmethod
    async def _run(self, session: Session, context_ids: np.ndarray) -> None:
        """The algorithm: fills `session.trace`. Raises `GivenUp` where the sample cannot go on."""

    async def run(self, question: str, context_ids: np.ndarray, engine: Engine, recorder: Recorder) -> Trace:
        """Answers a question over a context.

        `context_ids`: uint32, shape (tokens,). A model call that fails for good makes the trace `failed` with the reason;
        it raises nothing. Raises `ConfigError` for an empty question or context and `BudgetError` for a question that
        leaves no room, before any call.
        """
        if not question.strip():
            raise ConfigError("the question is empty")
        if len(context_ids) == 0:
            raise ConfigError("the context is empty: there is nothing to read")
        question_ids = self.tokenizer.encode(question.strip())
        self.check_question(question_ids)
        session = Session(self, question, question_ids, engine, recorder)
        session.trace.context_tokens = len(context_ids)
        try:
            await self._run(session, np.asarray(context_ids, dtype=np.uint32))
            session.trace.status = "answered"
        except GivenUp as stop:
            session.trace.failure = str(stop)
        return session.trace

    def need(self, phase: str, room: int, parts: Mapping[str, int]) -> None:
        """Raises `BudgetError` where the phase's own text, its parts and `room` tokens to generate exceed the window."""
        template = self.template(phase)
        own = template.tokens
        parts = {**parts, "question": template.asking(parts["question"]) - own}
        total = own + sum(parts.values()) + room
        if total > self.window:
            said = ", ".join(f"{name} {n}" for name, n in {"prompt text": own, **parts, "to generate": room}.items())
            raise BudgetError(
                f"{self.name}: a {phase} call needs {total:,} tokens ({said}), {total - self.window:,} more than the window "
                f"of {self.window:,}. Lower chunk_tokens or the output budgets, shorten the question, or use a model with a "
                "larger window"
            )

    def chunks(self, context_ids: np.ndarray) -> list[np.ndarray]:
        """The context in equal windows (views, no copies)."""
        return [context_ids[a:b] for a, b in windows(len(context_ids), self.spec.chunk_tokens)]

    def check_chunks(self, phase: str) -> None:
        """Raises `ConfigError` for chunks shorter than the instructions that would surround each of them."""
        windows(0, self.spec.chunk_tokens)
        own = self.template(phase).tokens
        if self.spec.chunk_tokens < own:
            raise ConfigError(
                f"{self.name}: chunk_tokens={self.spec.chunk_tokens} is less than the {own} tokens of the {phase} prompt "
                f"itself, so calls would read more instructions than text; give at least {own}"
            )


class GivenUp(Exception):
    """The sample cannot go on; the message says why."""


class Session:
    """One sample under way: makes its calls and holds its trace."""

    def __init__(self, workflow: Workflow, question: str, question_ids: np.ndarray, engine: Engine, recorder: Recorder):
        self.workflow = workflow
        self.question_ids = question_ids
        self.engine = engine
        self.recorder = recorder
        self.trace = Trace(sample=recorder.sample, method=workflow.name, question=question, status="failed")

    async def call(
        self,
        phase: Phase,
        turn: int,
        index: int,
        template: str,
        max_tokens: int,
        parts: Mapping[str, np.ndarray],
        *,
        stop: tuple[str, ...] = (),
        chunk_hash: str | None = None,
    ) -> Call:
        """One request over the template's slots filled with `parts`, retried while the engine says that may help.

        The call of a request that failed for good has an error and no completion. Raises `GivenUp` where the prompt does
        not fit the window.
        """
        workflow = self.workflow
        key = CallKey(self.recorder.sample, turn, phase, index)
        try:
            workflow.need(template, max_tokens, {name: len(ids) for name, ids in parts.items()})
        except BudgetError as error:
            raise GivenUp(str(error)) from None
        prompt = workflow.template(template).fill(**parts)
        asked = workflow.sampling
        sampling = Sampling(
            max_tokens=max_tokens,
            temperature=asked.temperature,
            top_p=asked.top_p,
            stop=stop,
            seed=request_seed(asked.seed, key) if asked.temperature > 0 else None,
        )
        call = Call(key, digest(prompt), sampling, chunk_hash=chunk_hash)
        while True:
            try:
                call.completion = await self.engine.generate(prompt, sampling, key)
                call.error = None
            except EngineError as error:
                call.error = str(error)
                if error.retryable and call.attempts <= workflow.retries:
                    await asyncio.sleep(RETRY_SECONDS * 2 ** (call.attempts - 1))
                    call.attempts += 1
                    continue
            break
        self.recorder.record(call, prompt)
        return call

    def memory(self, limit: int | None) -> np.ndarray:
        """What a prompt shows for the memory; an empty one has a text of its own.

        A memory generated within its budget may tokenise a little longer again: it is cut back to `limit`, and the trace
        notes by how much.
        """
        if not self.trace.memory:
            return self.workflow.empty_memory
        ids = self.workflow.tokenizer.encode(self.trace.memory)
        if limit is not None and len(ids) > limit:
            self.trace.notes["memory_cut"] = max(len(ids) - limit, self.trace.notes.get("memory_cut", 0))
        return ids[:limit]

    def give_up(self, call: Call) -> NoReturn:
        """Raises: the sample fails because this call did."""
        raise GivenUp(f"{call.key.phase} call {call.key} failed after {call.attempts} attempt(s): {call.error}")

    def note_ending(self, call: Call, what: str) -> None:
        """Notes a response that is empty or was cut off at its token limit: what is missing there was never said."""
        if not call.text.strip():
            self.trace.notes[f"{what}_empty"] = True
        if call.completion and call.completion.finish == "length":
            self.trace.notes[f"{what}_cut_off"] = True

    async def last(self, phase: Phase, turn: int, template: str, max_tokens: int, parts: Mapping[str, np.ndarray]) -> None:
        """The call whose text is the response."""
        self.trace.last = await self.call(phase, turn, 0, template, max_tokens, parts)
        if self.trace.last.error:
            self.give_up(self.trace.last)
        self.trace.response = self.trace.last.text


def request_seed(run_seed: int, key: CallKey) -> int:
    """Seed of one request, 31 bits: depends on the run's seed and the request's name, not on any order."""
    return int.from_bytes(hashlib.blake2b(f"{run_seed}/{key}".encode(), digest_size=4).digest(), "big") >> 1


_WORKFLOWS = {
    "pi_mem": ("pimem.workflows.pi_mem", "PiMem"),
    "mem_agent": ("pimem.workflows.mem_agent", "MemAgent"),
    "gru_mem": ("pimem.workflows.gru_mem", "GruMem"),
    "rememr1": ("pimem.workflows.rememr1", "ReMemR1"),
    "vanilla": ("pimem.workflows.direct", "Vanilla"),
    "yarn": ("pimem.workflows.direct", "Yarn"),
    "rag": ("pimem.workflows.rag", "Rag"),
}


def build(
    method: MethodSpec,
    prompts: PromptSet,
    tokenizer: Tokenizer,
    window: int,
    sampling: SamplingSpec,
    retries: int = 2,
    template_args: Mapping[str, Any] | None = None,
) -> Workflow:
    """The workflow of a specification, its prompts compiled for a tokenizer.

    Raises `ConfigError` or `BudgetError` where the specification, the prompts and the window cannot work together.
    """
    module, name = _WORKFLOWS[method.method]
    return getattr(import_module(module), name)(method, prompts, tokenizer, window, sampling, retries, template_args)
