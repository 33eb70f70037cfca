"""PI-Mem: parallel reads against one memory, selection by a check signal, one merge, at most K turns (Algorithm 1)."""

from __future__ import annotations

import asyncio
import functools
import re
from typing import NamedTuple

import numpy as np

from pimem.config import PiMemSpec
from pimem.errors import ConfigError
from pimem.records import Call, Check, Turn
from pimem.tokens import digest
from pimem.workflows.base import GivenUp, Session, Workflow

NO_TAG = "<check>no</check>"
_CHECK = re.compile(r"<check>\s*(yes|no)\s*</check>", re.IGNORECASE | re.ASCII)


class Observation(NamedTuple):
    """What goes into a merge: a read's response, or a partial merge of several."""

    first: int
    """Label of its first section, from 1."""
    last: int
    text: str
    """As the merge shows it, label included."""
    ids: np.ndarray


class PiMem(Workflow):
    """The paper's workflow; its ablations and the released code's choices are fields of the specification."""

    name = "pi_mem"
    version = 1
    spec: PiMemSpec

    def check_spec(self) -> None:
        spec = self.spec
        if spec.max_turns < 1:
            raise ConfigError(f"pi_mem: max_turns={spec.max_turns}; at least one turn is needed")
        self.check_chunks(self.read_phase)
        self.check_question(np.zeros(0, np.uint32))

    def check_question(self, question_ids: np.ndarray) -> None:
        spec, question = self.spec, len(question_ids)
        memory = max(spec.memory_tokens, len(self.empty_memory)) if spec.merge else len(self.empty_memory)
        sizes = {"question": question, "memory": memory}
        self.need(self.read_phase, spec.read_tokens, {**sizes, "chunk": spec.chunk_tokens})
        self.need("final", spec.answer_tokens, sizes)
        if spec.merge:
            self.need("merge", spec.memory_tokens, sizes)

    @property
    def read_phase(self) -> str:
        """The read template: with or without the check signal, in the paper's order or the cacheable one."""
        return ("read" if self.spec.select else "read_all") + ("_cached" if self.spec.prompt_order == "cached" else "")

    async def _run(self, session: Session, context_ids: np.ndarray) -> None:
        spec, trace = self.spec, session.trace
        chunks = self.chunks(context_ids)
        hashes = [digest(chunk) for chunk in chunks]
        trace.chunks = len(chunks)
        for number in range(1, spec.max_turns + 1):
            turn = Turn(number, memory_in=trace.memory, memory_out=trace.memory)
            trace.turns.append(turn)
            trace.turns_used = number
            turn.reads = await self._read(session, turn, chunks, hashes)
            lost = [call for call in turn.reads if call.error]
            if lost and (spec.on_failure == "fail" or len(lost) == len(chunks)):
                session.give_up(lost[0])
            trace.damaged += len(lost)
            turn.selected = [i for i, call in enumerate(turn.reads) if not call.error and self._keep(call)]
            if not turn.selected:
                trace.converged = not lost
                break
            observations = []
            for place, index in enumerate(turn.selected):
                label = (index if spec.labels == "original" else place) + 1
                observations.append(self._observation(label, label, turn.reads[index].text.strip()))
            turn.memory_out = trace.memory = await self._merge(session, turn, observations)
        parts = {"question": session.question_ids, "memory": session.memory(self._memory_limit)}
        await session.last("final", trace.turns_used, "final", spec.answer_tokens, parts)

    async def _read(self, session: Session, turn: Turn, chunks: list[np.ndarray], hashes: list[str]) -> list[Call]:
        memory = session.memory(self._memory_limit)
        stop = (NO_TAG,) if self.spec.select and self.spec.stop_at_no else ()

        async def read(index: int) -> Call:
            call = await session.call(
                "read",
                turn.number,
                index,
                self.read_phase,
                self.spec.read_tokens,
                {"question": session.question_ids, "memory": memory, "chunk": chunks[index]},
                stop=stop,
                chunk_hash=hashes[index],
            )
            if self.spec.select:
                call.check = "failed" if call.error else parse_check(call.text)
            return call

        return await _together([read(i) for i in range(len(chunks))])

    def _keep(self, call: Call) -> bool:
        if not self.spec.select:
            return bool(call.text.strip())
        if self.spec.check_rule == "lenient":
            return NO_TAG not in call.text.lower()
        return call.check == "yes"

    async def _merge(self, session: Session, turn: Turn, observations: list[Observation]) -> str:
        if not self.spec.merge:
            kept = [turn.memory_in] if turn.memory_in else []
            return "\n\n".join(kept + [o.text for o in observations])
        room = self.window - self.spec.memory_tokens - self.template("merge").asking(len(session.question_ids))
        memory = session.memory(self._memory_limit)
        while len(memory) + self._size(observations) > room:
            groups = self._groups(observations, room - len(self.empty_memory))
            # Every level leaves fewer observations than it found, so there is an end.
            if len(groups) == len(observations):
                raise GivenUp(
                    f"merge: {self._size(observations):,} tokens of observations and {len(memory):,} of memory do not fit the "
                    f"{room:,} that a merge has room for, and no two neighbours do; lower read_tokens or memory_tokens"
                )
            turn.merge_levels += 1
            observations = await self._merge_groups(session, turn, groups)
        call = await self._merge_call(session, turn, memory, observations, len(turn.merges))
        turn.merges.append(call)
        return self._merged(session, call, turn.memory_in)

    async def _merge_groups(self, session: Session, turn: Turn, groups: list[list[Observation]]) -> list[Observation]:
        """One level of a hierarchical merge: every group of several becomes one observation."""
        several = [group for group in groups if len(group) > 1]
        base = len(turn.merges)
        calls = await _together(
            [self._merge_call(session, turn, self.empty_memory, group, base + i) for i, group in enumerate(several)]
        )
        turn.merges += calls
        merged = iter(calls)
        out = []
        for group in groups:
            if len(group) == 1:
                out.append(group[0])
                continue
            text = self._merged(session, next(merged), "")
            if text:
                out.append(self._observation(group[0].first, group[-1].last, text))
        if not out:
            raise GivenUp("merge: every partial merge came back empty or failed")
        return out

    async def _merge_call(
        self, session: Session, turn: Turn, memory: np.ndarray, observations: list[Observation], index: int
    ) -> Call:
        parts = {"question": session.question_ids, "memory": memory, "observations": self._joined(observations)}
        return await session.call("merge", turn.number, index, "merge", self.spec.memory_tokens, parts)

    def _merged(self, session: Session, call: Call, otherwise: str) -> str:
        """The text of a merge; where it failed for good the sample fails, or goes on with what there was."""
        if not call.error:
            return call.text.strip()
        if self.spec.on_failure == "fail":
            session.give_up(call)
        session.trace.damaged += 1
        return otherwise

    def _groups(self, observations: list[Observation], room: int) -> list[list[Observation]]:
        """Neighbours packed greedily into groups that each fit `room` tokens. Raises `GivenUp` where one alone does not."""
        groups: list[list[Observation]] = []
        used = 0
        for observation in observations:
            size = len(observation.ids)
            if size > room:
                raise GivenUp(
                    f"merge: one observation of {size:,} tokens does not fit the {room:,} tokens a merge has room for; "
                    "lower read_tokens or memory_tokens"
                )
            if groups and used + len(self._between) + size <= room:
                groups[-1].append(observation)
                used += len(self._between) + size
            else:
                groups.append([observation])
                used = size
        return groups

    def _observation(self, first: int, last: int, text: str) -> Observation:
        shown = self.prompts.labelled(str(first) if first == last else f"{first}-{last}", text)
        return Observation(first, last, shown, self.tokenizer.encode(shown))

    @functools.cached_property
    def _between(self) -> np.ndarray:
        return self.tokenizer.encode("\n\n")

    def _size(self, observations: list[Observation]) -> int:
        return sum(len(o.ids) for o in observations) + len(self._between) * (len(observations) - 1)

    def _joined(self, observations: list[Observation]) -> np.ndarray:
        parts = [ids for o in observations for ids in (self._between, o.ids)]
        return np.concatenate(parts[1:])

    @property
    def _memory_limit(self) -> int | None:
        return self.spec.memory_tokens if self.spec.merge else None


async def _together(calls: list) -> list[Call]:
    """Awaits all; if one raises, the rest are cancelled and the error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as raised:
        raise raised.exceptions[0] from None
    return [task.result() for task in tasks]


def parse_check(text: str) -> Check:
    """The value of the first check tag, in any case of letters; `malformed` where there is none (equation 2)."""
    found = _CHECK.search(text)
    if not found:
        return "malformed"
    return "yes" if found[1].lower() == "yes" else "no"
