"""LongBench v2: multiple-choice questions over real documents, from the hub's data set or a file in its fields.

The samples are its items in a seeded order, the same for every length. A length is the most tokens of a context: of longer
ones head and tail are kept, and the sample says how much is gone. Four million keeps all of them, as the released evaluation
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pimem import data, paths
from pimem.config import TaskSpec, canonical_hash
from pimem.config import build as build_spec
from pimem.multiple_choice import Items
from pimem.prompts.official import question
from pimem.records import Sample
from pimem.tasks.base import Draw, check_range
from pimem.tokens import Tokenizer

FORMAT = 1
"""Goes up when samples are made differently."""
ASK = "Answer with the letter of the right choice: A, B, C or D."
"""Behind the choices, for prompt sets that do not know of any."""


@dataclass(frozen=True)
class LongBenchParams:
    """Parameters of the longbench_v2 task."""

    file: str = ""
    """A JSON or JSONL file in the official fields, relative to the repository; empty takes the set that was fetched."""
    ask: Literal["letter", "nothing"] = "letter"
    """Whether the question itself says that a letter is wanted; nothing is for prompt sets that say so, as the official one."""


def build(task: TaskSpec, tokenizer: Tokenizer) -> LongBench:
    """The task over the fetched data set or the file in `task.params`. Raises as `pimem.tasks.base.build`."""
    params = build_spec(LongBenchParams, task.params, "task longbench_v2: params")
    if not params.file:
        return LongBench(task, params, tokenizer, data.items("longbench_v2"))
    file = Path(params.file).expanduser()
    return LongBench(task, params, tokenizer, data.items_of(file if file.is_absolute() else paths.root() / file))


class LongBench:
    """See `pimem.tasks.base.Task`. There are as many samples as the set has items."""

    name = "longbench_v2"
    metric = "accuracy"
    unit = "tokens"

    def __init__(self, task: TaskSpec, params: LongBenchParams, tokenizer: Tokenizer, items: Items):
        self._task, self._params, self._tokenizer, self._items = task, params, tokenizer, items
        self._order = Draw("longbench_v2", task.seed).order(len(items))
        self.data_hash = canonical_hash([items.hash, FORMAT], 64)

    def samples(self, n: int, start: int = 0) -> Iterator[Sample]:
        check_range(n, start, len(self._items), self.name)
        return (self._sample(i) for i in range(start, start + n))

    def _sample(self, index: int) -> Sample:
        item = self._items[int(self._order[index])]
        whole = self._tokenizer.encode_long(item.context.strip()).ids
        kept = whole
        if len(whole) > self._task.length:
            tail = self._task.length // 2
            kept = np.concatenate([whole[: self._task.length - tail], whole[len(whole) - tail :]])
        asked = question(item.question, item.choices)
        return Sample(
            id=f"longbench_v2-{self._task.length}-{item.id}",
            cluster=item.id,
            question=asked if self._params.ask == "nothing" else f"{asked}\n\n{ASK}",
            answers=(item.answer,),
            context_ids=kept,
            meta={
                "tokens": len(kept),
                "cut_tokens": len(whole) - len(kept),
                "difficulty": item.difficulty,
                "length": item.length,
                "domain": item.domain,
                "sub_domain": item.sub_domain,
            },
        )
