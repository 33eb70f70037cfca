"""The workflows inside the agent loop: rows, rewards and failures, over a server that answers by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pimem.config import GruMemSpec, MemAgentSpec, PiMemSpec, ReMemR1Spec, SamplingSpec
from pimem.engines.scripted import Scripted
from pimem.errors import EngineError
from pimem.prompts import PromptSet
from pimem.records import CallKey, Sampling
from pimem.tokens import Tokenizer
from pimem.training import agent_loop, rewards
from pimem.training.agent_loop import RowRecorder, ServerEngine, Setup
from pimem.training.questions import Question, Questions
from pimem.training.spec import Machines, TrainSpec
from pimem.workflows.base import SampleRecorder, build

PROMPTS = """\
name: terse
version: "1"
answer_form: boxed
phases:
  read: "read Q={question} M={memory} C={chunk}"
  merge: "merge Q={question} M={memory} O={observations}"
  update: "update Q={question} M={memory} C={chunk}"
  gated_update: "update Q={question} M={memory} C={chunk}"
  recall_update: "update Q={question} R={recalled} M={memory} C={chunk}"
  final: "final Q={question} M={memory}"
  recall_final: "final Q={question} R={recalled} M={memory}"
"""
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
CHUNK = 64


@dataclass
class Server:
    """Answers as verl's client does, by a script that sees the prompt's text; `asked` keeps what it was sent."""

    tokenizer: Tokenizer
    script: Callable[[str], str]
    asked: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        self.asked.append({"route": request_id, "prompt": prompt_ids, **sampling_params})
        if self.seconds:
            await asyncio.sleep(self.seconds)
        text = self.script(self.tokenizer.decode(prompt_ids))
        ids = [*self.tokenizer.encode(text).tolist(), self.tokenizer.stop_ids[-1]][: sampling_params["max_tokens"]]
        fields = {"global_steps": 4, "min_global_steps": 4, "max_global_steps": 4, "num_cached_tokens": 7}
        return SimpleNamespace(
            token_ids=ids, log_probs=[-0.5 - i for i in range(len(ids))], stop_reason="completed", extra_fields=fields
        )


def pi_mem_script(prompt: str) -> str:
    """The second section speaks up as long as the notes lack it."""
    if "read Q" in prompt:
        return "<check>yes</check> code 77" if "code is 77" in prompt and "noted" not in prompt else "<check>no</check>"
    return "noted 77" if "merge Q" in prompt else r"so \boxed{77}"


class Kept(Questions):
    """A question set that lies in memory."""

    def __init__(self, row: Question, ids: np.ndarray):
        super().__init__(Path("nowhere"), {}, [row])
        self.held = ids

    def context(self, name: str) -> np.ndarray:
        return self.held[: self[name].tokens]


@pytest.fixture(scope="module")
def tokenizer(tiny_tokenizer: Path) -> Tokenizer:
    return Tokenizer.load(tiny_tokenizer)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prompts")
    (folder / "prompts.yaml").write_text(PROMPTS)
    return folder


@pytest.fixture
def known(tokenizer: Tokenizer, prompts: Path) -> Callable[..., Setup]:
    """A set-up around one question over three sections, the second of which holds its answer."""

    def make(method: Any, **fields: Any) -> Setup:
        parts = []
        for text in ("nothing here", "the code is 77", "nor here"):
            ids = tokenizer.encode(text)
            parts += [ids, np.resize(tokenizer.encode(" "), CHUNK - len(ids))]
        ids = np.concatenate(parts)
        row = Question("q1", "which code?", ("77",), "niah", "sub_em", 0, "q1", 0, len(ids), ((CHUNK + 2, CHUNK + 9),))
        machines = Machines(call_timeout=fields.pop("call_timeout", 5.0), retries=fields.pop("retries", 0))
        spec = TrainSpec(
            questions=SimpleNamespace(),  # type: ignore[arg-type]
            method=method,
            reward=rewards.reward_spec(method, fields.pop("reward", None)),
            machines=machines,
        )
        set_of_prompts = PromptSet.load(prompts)
        workflow = build(method, set_of_prompts, tokenizer, 2048, SamplingSpec(1.0, 1.0), machines.retries)
        return Setup(spec, workflow, Kept(row, ids))

    return make


def row(session: int = 0) -> dict[str, Any]:
    return {"extra_info": {"id": "q1"}, "session_id": session, "global_steps": 5, "uid": "u"}


def run(known: Setup, server: Any) -> Any:
    return asyncio.run(agent_loop.rollout(known, server, SAMPLING, row()))


PI_MEM = PiMemSpec(chunk_tokens=CHUNK, read_tokens=48, memory_tokens=48, answer_tokens=32)


def test_every_call_is_a_row_with_the_servers_ids(known: Any, tokenizer: Tokenizer) -> None:
    setup = known(PI_MEM)
    server = Server(tokenizer, pi_mem_script)
    trace, _, rows = run(setup, server)
    assert [r.key[1:] for r in rows] == [
        (1, "read", 0), (1, "read", 1), (1, "read", 2), (1, "merge", 0),
        (2, "read", 0), (2, "read", 1), (2, "read", 2), (2, "final", 0),
    ]  # fmt: skip
    sent = {tuple(a["prompt"]) for a in server.asked}
    assert {tuple(r.prompt_ids) for r in rows} == sent
    end = tokenizer.stop_ids[-1]
    assert rows[-1].response_ids == [*tokenizer.encode(r"so \boxed{77}").tolist(), end]
    assert rows[-1].logprobs == [-0.5 - i for i in range(len(rows[-1].response_ids))]
    assert trace.response == r"so \boxed{77}"
    assert trace.turns_used == 2


def test_the_same_calls_as_in_evaluation(known: Any, tokenizer: Tokenizer) -> None:
    """Prompts, answers and memory equal those of the workflow over an engine of evaluation."""
    setup = known(PI_MEM)
    trace, _, _ = run(setup, Server(tokenizer, pi_mem_script))
    engine = Scripted(lambda key, ids: pi_mem_script(tokenizer.decode(ids)), 2048, tokenizer)
    context = setup.questions.context("q1")
    same = asyncio.run(setup.workflow.run("which code?", context, engine, SampleRecorder("q1/5/0")))
    assert [(c.key, c.prompt_hash, c.text, c.check) for c in trace.calls()] == [
        (c.key, c.prompt_hash, c.text, c.check) for c in same.calls()
    ]
    assert (trace.memory, trace.turns_used, trace.converged) == (same.memory, same.turns_used, True)


def test_reward_is_that_of_the_trace(known: Any, tokenizer: Tokenizer) -> None:
    setup = known(PI_MEM)
    trace, reward, rows = run(setup, Server(tokenizer, pi_mem_script))
    assert reward.accuracy == 1
    assert reward.trajectory == pytest.approx(1 + 0.2 * (3 - 2) / (3 - 1))
    said = agent_loop.facts(trace, reward, rows, tokenizer)
    assert (said["rows"], said["positive"], said["checks"], said["turns"]) == (8, 1, 6, 2)
    assert said["cached_tokens"] == 8 * 7
    assert said["response_tokens"] == sum(len(r.response_ids) for r in rows)
    assert said["memory_tokens"] == len(tokenizer.encode("noted 77"))


@pytest.mark.parametrize(
    ("method", "script", "phases", "steps"),
    [
        (
            MemAgentSpec(chunk_tokens=CHUNK, memory_tokens=48, answer_tokens=32),
            lambda prompt: "code 77" if "update Q" in prompt else r"\boxed{77}",
            ["update", "update", "update", "final"],
            None,
        ),
        (
            GruMemSpec(chunk_tokens=CHUNK, memory_tokens=64, answer_tokens=32),
            lambda prompt: (
                r"\boxed{77}"
                if "final Q" in prompt
                else "<check>yes</check><update>77</update><next>end</next>"
                if "is 77" in prompt
                else "<check>no</check><update>x</update><next>continue</next>"
            ),
            ["update", "update", "final"],
            [1.0, 1.0],
        ),
        (
            ReMemR1Spec(chunk_tokens=CHUNK, memory_tokens=64, answer_tokens=32),
            lambda prompt: r"\boxed{77}" if "final Q" in prompt else "<update>77</update>",
            ["update", "update", "update", "final"],
            [2.0, 1.0, 1.0, 1.0],
        ),
    ],
)
def test_every_method_that_is_trained(
    known: Any, tokenizer: Tokenizer, method: Any, script: Any, phases: list[str], steps: list[float] | None
) -> None:
    trace, reward, rows = run(known(method), Server(tokenizer, script))
    assert trace.status == "answered", trace.failure
    assert [r.key.phase for r in rows] == phases
    assert reward.accuracy == 1
    assert reward.steps == steps


def test_rollouts_of_a_prompt_share_a_route_and_differ_in_seeds(known: Any, tokenizer: Tokenizer) -> None:
    setup = known(PI_MEM)
    server = Server(tokenizer, pi_mem_script)
    for session in (0, 1):
        asyncio.run(agent_loop.rollout(setup, server, SAMPLING, row(session)))
    reads = [a for a in server.asked if "read Q" in tokenizer.decode(a["prompt"])]
    assert {a["route"] for a in reads} == {"u/0", "u/1", "u/2"}
    assert len({a["route"] for a in server.asked}) == 3 + 4
    assert all("seed" not in a for a in server.asked)
    engine = ServerEngine(server, tokenizer, SAMPLING, 2048, 5.0, seeded=True)
    seeds = []
    for name in ("q1/5/0", "q1/5/1"):
        context = setup.questions.context("q1")
        asyncio.run(setup.workflow.run("which code?", context, engine, RowRecorder(name)))
        seeds.append({a["seed"] for a in server.asked[-8:]})
    assert len(seeds[0]) == len(seeds[1]) == 8
    assert not seeds[0] & seeds[1]


def test_verls_sampling_counts_and_budgets_are_the_calls(known: Any, tokenizer: Tokenizer) -> None:
    server = Server(tokenizer, pi_mem_script)
    asyncio.run(agent_loop.rollout(known(PI_MEM), server, {**SAMPLING, "temperature": 0.7}, row()))
    assert {a["temperature"] for a in server.asked} == {0.7}
    assert {a["max_tokens"] for a in server.asked} == {48, 32}
    assert all(a["stop"] == ["<check>no</check>"] and a["include_stop_str_in_output"] for a in server.asked if a["max_tokens"] == 48 and "read Q" in tokenizer.decode(a["prompt"]))  # fmt: skip  # noqa: E501


def answer(engine: ServerEngine, prompt: np.ndarray, sampling: Sampling) -> Any:
    return asyncio.run(engine.generate(prompt, sampling, CallKey("s", 1, "read", 0)))


def test_text_ends_at_the_stop_string_and_ids_stay_whole(tokenizer: Tokenizer) -> None:
    engine = ServerEngine(Server(tokenizer, lambda _: "<check>no</check> and more"), tokenizer, SAMPLING, 2048, 5.0)
    done = answer(engine, tokenizer.encode("x"), Sampling(64, stop=("<check>no</check>",)))
    assert (done.text, done.finish) == ("<check>no</check>", "stop")
    assert tokenizer.decode(done.token_ids[:-1]) == "<check>no</check> and more"


def test_a_cut_answer_says_so_though_the_server_does_not(tokenizer: Tokenizer) -> None:
    engine = ServerEngine(Server(tokenizer, lambda _: "a long way to go"), tokenizer, SAMPLING, 2048, 5.0)
    assert answer(engine, tokenizer.encode("x"), Sampling(3)).finish == "length"
    assert answer(engine, tokenizer.encode("x"), Sampling(60)).finish == "stop"


def test_a_server_that_hangs_costs_its_time_and_no_more(known: Any, tokenizer: Tokenizer) -> None:
    setup = known(PI_MEM, call_timeout=0.02, retries=0)
    trace, reward, rows = run(setup, Server(tokenizer, pi_mem_script, seconds=5))
    assert trace.status == "failed"
    assert "no answer within 0.02 s" in (trace.failure or "")
    assert (reward.trajectory, reward.failed, rows) == (0.0, True, [])


def test_a_failure_after_some_calls_keeps_their_rows(known: Any, tokenizer: Tokenizer) -> None:
    def script(prompt: str) -> str:
        if "merge Q" in prompt:
            raise ValueError("refused")
        return pi_mem_script(prompt)

    trace, reward, rows = run(known(PI_MEM), Server(tokenizer, script))
    assert "ValueError: refused" in (trace.failure or "")
    assert (reward.trajectory, reward.failed) == (0.0, True)
    assert [r.key.phase for r in rows] == ["read"] * 3


def test_an_answer_without_tokens_is_an_error(tokenizer: Tokenizer) -> None:
    class Aborting:
        async def generate(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(token_ids=[], log_probs=None, stop_reason="aborted", extra_fields={})

    engine = ServerEngine(Aborting(), tokenizer, SAMPLING, 2048, 5.0)
    with pytest.raises(EngineError, match="without an answer") as caught:
        answer(engine, tokenizer.encode("x"), Sampling(8))
    assert caught.value.retryable


def test_an_unknown_question_fails_the_rollout_alone(known: Any, tokenizer: Tokenizer) -> None:
    setup = known(PI_MEM)
    lost = {**row(), "extra_info": {"id": "q2"}}
    trace, reward, rows = asyncio.run(agent_loop.rollout(setup, Server(tokenizer, pi_mem_script), SAMPLING, lost))
    assert "no question 'q2'" in (trace.failure or "")
    assert (reward.trajectory, reward.failed, rows) == (0.0, True, [])


@pytest.mark.engine
def test_rows_in_verls_own_type(known: Any, tokenizer: Tokenizer) -> None:
    """The last row carries the reward and what is logged; all rows have the fields verl looks for; none is dropped as unset."""
    pytest.importorskip("verl")
    trace, reward, rows = run(known(PI_MEM), Server(tokenizer, pi_mem_script))
    said = {**agent_loop.facts(trace, reward, rows, tokenizer), "seconds": 0.1}
    made = agent_loop.outputs(rows, reward, said, row(), tokenizer)
    assert [o.reward_score for o in made] == [None] * 7 + [reward.trajectory]
    assert made[-1].extra_fields["reward_extra_info"]["acc"] == 1.0
    assert made[-1].extra_fields["trajectory"]["turns"] == 2
    for output, kept in zip(made, rows, strict=True):
        fields = output.as_dict()
        assert fields["prompts"].tolist() == kept.prompt_ids
        assert fields["responses"].tolist() == kept.response_ids
        assert fields["response_mask"].tolist() == [1] * len(kept.response_ids)
        assert fields["rollout_log_probs"].tolist() == kept.logprobs
        assert (fields["num_turns"], fields["extra_fields"]["max_global_steps"]) == (2, 4)


@pytest.mark.engine
def test_a_trajectory_without_calls_is_a_row_that_trains_nothing(known: Any, tokenizer: Tokenizer) -> None:
    pytest.importorskip("verl")
    trace, reward, rows = run(known(PI_MEM, call_timeout=0.02), Server(tokenizer, pi_mem_script, seconds=5))
    said = {**agent_loop.facts(trace, reward, rows, tokenizer), "seconds": 0.1}
    (only,) = agent_loop.outputs(rows, reward, said, row(), tokenizer)
    assert (only.response_mask, only.reward_score) == ([0], 0.0)
    assert only.extra_fields["max_global_steps"] == 4
    assert only.extra_fields["trajectory"]["failed"]
