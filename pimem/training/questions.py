"""Question sets of reinforcement learning as they lie on disk, read by id.

A folder holds `questions.jsonl`, a row a question; `contexts.u32`, the token ids of all contexts behind one another, which is
mapped into memory and never copied into rows; and `manifest.json`, written last. `pimem.training.question_sets` builds them.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pimem import scoring
from pimem.config import canonical_hash
from pimem.engines.base import Engine
from pimem.errors import DataError
from pimem.prompts import PromptSet
from pimem.records import CallKey, Evidence, Sampling
from pimem.tokens import Tokenizer, holding, windows
from pimem.workflows.base import request_seed


@dataclass(frozen=True)
class Question:
    """A row: everything about a question but its context."""

    id: str
    """Begins with the part it belongs to."""
    question: str
    answers: tuple[str, ...]
    task: str
    metric: str
    """How its answer is scored: sub_em, or multi_recall where all answers are asked for."""
    seed: int
    """Of the task that made it."""
    source: str
    """The question it is, whatever its length."""
    first: int
    """Where its context begins in the file, in tokens."""
    tokens: int
    evidence: tuple[tuple[int, int], ...]
    """Gold positions: context tokens [start, end)."""


class Questions:
    """A set in its folder. `rows` are in the order of training."""

    def __init__(self, folder: Path, manifest: dict[str, Any], rows: Sequence[Question]):
        self.folder, self.manifest, self.rows = folder, manifest, tuple(rows)
        self._at = {row.id: row for row in self.rows}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Question]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Question:
        """The question with this id. Raises `DataError` where there is none."""
        if name not in self._at:
            raise DataError(f"{self.folder}: no question {name!r} among its {len(self)}; the rows come from another set")
        return self._at[name]

    @functools.cached_property
    def _ids(self) -> np.ndarray:
        return np.memmap(self.folder / "contexts.u32", dtype="<u4", mode="r")

    def context(self, name: str) -> np.ndarray:
        """Token ids of a question's context: uint32, shape (tokens,), read from disk as they are used."""
        row = self[name]
        return self._ids[row.first : row.first + row.tokens]

    def evidence_chunks(self, name: str, chunk_tokens: int) -> tuple[int, ...]:
        """Indices of the chunks of `chunk_tokens` in which gold evidence lies, at least in part, ascending."""
        row = self[name]
        gold = [Evidence(start, end, "") for start, end in row.evidence]
        return tuple(sorted(holding(windows(row.tokens, chunk_tokens), gold)))

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises `DataError` where the contexts are ids of another tokenizer."""
        if self.manifest["tokenizer"] != tokenizer.hash:
            raise DataError(
                f"{self.folder}: its contexts are ids of tokenizer {self.manifest['tokenizer']}, not the model's "
                f"{tokenizer.hash}; build the set again for this model"
            )


def load(folder: str | Path, tokenizer: Tokenizer | None = None) -> Questions:
    """The set in a folder. Raises `DataError` where it is missing, empty, incomplete, or in ids of another tokenizer."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        rows = [_row(json.loads(line)) for line in (folder / "questions.jsonl").read_text(encoding="utf-8").splitlines()]
        size = (folder / "contexts.u32").stat().st_size
        expected, questions = 4 * manifest["tokens"], manifest["questions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: not a set of questions ({type(error).__name__}: {error}); build it again") from error
    if not rows:
        raise DataError(f"{folder}: the set is empty; build it again")
    if len(rows) != questions or size != expected:
        raise DataError(
            f"{folder}: {len(rows)} questions and {size:,} bytes of contexts where its manifest says {questions} and "
            f"{expected:,}: incomplete; build or copy it again"
        )
    found = Questions(folder, manifest, rows)
    if tokenizer is not None:
        found.check_tokenizer(tokenizer)
    return found


def _row(raw: Mapping[str, Any]) -> Question:
    spans = tuple((int(a), int(b)) for a, b in raw["evidence"])
    return Question(**{**raw, "answers": tuple(raw["answers"]), "evidence": spans})


def write(folder: Path, made_of: dict[str, Any], rows: Iterable[tuple[Question, np.ndarray]]) -> Questions:
    """Writes rows and their contexts as a set; where the same one is there already, loads it and draws no row.

    `made_of`: everything that decides the set, JSON types. Raises `DataError` where nothing comes, the folder holds another
    set, or it cannot be written; then nothing is left of it.
    """
    identity = canonical_hash(made_of)
    if (folder / "manifest.json").is_file():
        there = load(folder)
        if there.manifest.get("identity") != identity:
            raise DataError(f"{folder}: holds another set of questions; give another folder, or delete it first")
        return there
    work = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        work.mkdir(parents=True)
        at = count = 0
        digest = hashlib.sha256()
        with (work / "contexts.u32").open("wb") as contexts, (work / "questions.jsonl").open("w", encoding="utf-8") as lines:
            for row, ids in rows:
                raw = np.ascontiguousarray(ids, dtype="<u4").tobytes()
                contexts.write(raw)
                digest.update(raw)
                lines.write(json.dumps({**asdict(row), "first": at}, ensure_ascii=False) + "\n")
                at, count = at + len(ids), count + 1
        if not count:
            raise DataError(f"{folder}: the set would be empty; nothing is written")
        manifest = {**made_of, "identity": identity, "questions": count, "tokens": at, "contexts": digest.hexdigest()}
        (work / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        work.replace(folder)
    except OSError as error:
        if (folder / "manifest.json").is_file():
            return write(folder, made_of, ())  # another process was first
        raise DataError(f"{folder}: cannot be written ({error}); make room, or give another folder") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return load(folder)


def drop(questions: Questions, names: Collection[str], folder: str | Path, why: str) -> Questions:
    """The set without some of its questions, in a folder of its own. Raises `DataError` where none would be left."""
    gone = sorted(names)
    for name in gone:
        questions[name]
    made_of = {**questions.manifest, "dropped": {"why": why, "from": questions.manifest["identity"], "questions": gone}}
    left = ((row, questions.context(row.id)) for row in questions if row.id not in set(gone))
    return write(Path(folder), made_of, left)


async def known_without_context(
    questions: Questions,
    engine: Engine,
    prompts: PromptSet,
    tokenizer: Tokenizer,
    *,
    tries: int = 2,
    sampling: Sampling | None = None,
    seed: int = 0,
    template_args: Mapping[str, Any] | None = None,
    at_once: int = 64,
) -> set[str]:
    """Ids of the questions that a model answers from an empty memory in any of `tries`; for `drop`.

    The prompt is the set's final call with nothing in memory. An answer counts as known where it holds a gold one, or all of
    them where all are asked for. Default sampling as the released filter: temperature 1, top-p 0.7, 512 tokens. Raises
    `EngineError` where a request fails: a question is never taken for unknown because nobody answered.
    """
    template = prompts.template("final", tokenizer, template_args or {"enable_thinking": False})
    drawn = sampling or Sampling(512, temperature=1.0, top_p=0.7)
    empty, room = tokenizer.encode(prompts.empty_memory), asyncio.Semaphore(at_once)

    async def known(row: Question, number: int) -> bool:
        key = CallKey(row.id, number, "final", 0)
        prompt = template.fill(question=tokenizer.encode(row.question.strip()), memory=empty)
        seeded = Sampling(drawn.max_tokens, drawn.temperature, drawn.top_p, drawn.stop, request_seed(seed, key))
        async with room:
            said = scoring.extract((await engine.generate(prompt, seeded, key)).text, prompts.answer_form)
        found = scoring.multi_recall if row.metric == "multi_recall" else scoring.sub_em_strict
        return found(said, row.answers) == 1

    asked = [(row, number) for row in questions for number in range(tries)]
    answers = await asyncio.gather(*(known(row, number) for row, number in asked))
    return {row.id for (row, _), right in zip(asked, answers, strict=True) if right}


def parquet(questions: Questions, path: str | Path, agent: str) -> None:
    """Writes the file verl reads: data_source, prompt, agent_name, reward_model, extra_info, a row a question in their order.

    The prompt is the question alone; the context is fetched by `extra_info.id`, since verl copies every column into every
    row. Raises `DataError` where it cannot be written.
    """
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "data_source": row.task,
            "prompt": [{"role": "user", "content": row.question}],
            "agent_name": agent,
            "reward_model": {"style": "rule", "ground_truth": list(row.answers)},
            "extra_info": {"index": number, "id": row.id, "question": row.question},
        }
        for number, row in enumerate(questions)
    ]
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), str(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error}); make room, or give another place") from error
