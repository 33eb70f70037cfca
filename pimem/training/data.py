"""The training and evaluation sets of the cold start, and how they lie on disk.

`python -m pimem.training.data CONFIG --model FOLDER --out FOLDER` writes both sets.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from pimem import data
from pimem.errors import DataError
from pimem.prompts import PromptSet
from pimem.tokens import Tokenizer
from pimem.training.documents import Part
from pimem.training.drafts import Example
from pimem.training.examples import Builder
from pimem.training.mix import evaluation, examples, section_length
from pimem.training.recipe import ColdStart, load_config
from pimem.training.scenes import Source

NEEDED = ("hotpotqa", "squad", "essays")
"""Data sets that the examples are made from; essays are a haystack of the evaluation set alone."""


@dataclass
class Table:
    """Examples as flat arrays."""

    ids: np.ndarray
    """Prompt and response of each example behind one another."""
    starts: np.ndarray
    """int64, shape (examples + 1,)."""
    prompts: np.ndarray
    """int32: tokens of each prompt."""
    cases: list[str]
    meta: list[dict[str, Any]] = field(default_factory=list)
    """Facts, answers, source; only of evaluation sets."""

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    @classmethod
    def of(cls, made: Sequence[Example], meta: bool) -> Table:
        parts = [ids for e in made for ids in (e.prompt, e.response)]
        flat = np.concatenate(parts)
        sizes = [len(e.prompt) + len(e.response) for e in made]
        about = [
            {
                "facts": list(e.facts),
                "answers": list(e.answers),
                "source": e.source,
                "question": e.question,
                "sections": [s.tolist() for s in e.sections],
            }
            for e in made
            if meta
        ]
        narrow = flat.astype(np.uint16) if flat.max() < 1 << 16 else flat
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(narrow, starts, np.array([len(e.prompt) for e in made], dtype=np.int32), [e.case for e in made], about)

    def save(self, path: Path) -> None:
        """Writes a compressed file; repeated stretches far apart are found."""
        raw = io.BytesIO()
        facts = np.frombuffer(json.dumps({"cases": self.cases, "meta": self.meta}).encode(), dtype=np.uint8)
        np.savez(raw, ids=self.ids, starts=self.starts, prompts=self.prompts, facts=facts)
        filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 128 << 20}]
        path.write_bytes(lzma.compress(raw.getbuffer(), lzma.FORMAT_XZ, filters=filters))

    @classmethod
    def load(cls, path: Path) -> Table:
        """Raises `DataError` where the file is missing or damaged."""
        try:
            with np.load(io.BytesIO(lzma.decompress(path.read_bytes()))) as held:
                facts = json.loads(held["facts"].tobytes())
                return cls(held["ids"], held["starts"], held["prompts"], facts["cases"], facts["meta"])
        except (OSError, ValueError, KeyError, lzma.LZMAError) as error:
            raise DataError(f"{path}: no readable training set ({error}); make it again with pimem.training.data") from error


def build(tokenizer: Tokenizer, prompts: PromptSet, part: Part, seed: int) -> Builder:
    """A builder over the fetched HotpotQA and SQuAD."""
    source = Source(tokenizer, data.corpus("hotpotqa"), data.corpus("squad"), part, seed)
    return Builder(source, prompts, section_length)


def check() -> None:
    """Raises `DataError`, with every command to run, where a data set that the examples are made from is not here."""
    faults = []
    for name in NEEDED:
        try:
            data.path(name)
        except DataError as error:
            faults.append(str(error))
    if faults:
        raise DataError("; ".join(faults))


def main(argv: Sequence[str] | None = None) -> None:
    """Writes train.xz and eval.xz. Raises `DataError` before anything is made where a data set is missing."""
    import argparse

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1, help="processes; each takes about 1.5 GB")
    args = parser.parse_args(argv)
    config = load_config(args.config)
    check()
    args.out.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        later = pool.submit(held_out, args.model, config)
        made = [example for part in pool.map(partial(shard, args.model, config), range(SHARDS)) for example in part]
        Table.of(made, meta=False).save(args.out / "train.xz")
        Table.of(later.result(), meta=True).save(args.out / "eval.xz")
    print(described(made))


def described(made: Sequence[Example]) -> str:
    """A table of the cases: how many, their share of the method's tokens, mean tokens of prompt and response."""
    lines = []
    for method in dict.fromkeys(example.method for example in made):
        cases: dict[str, list[tuple[int, int]]] = {}
        for example in made:
            if example.method == method:
                cases.setdefault(example.case, []).append((len(example.prompt), len(example.response)))
        total = sum(p + r for sizes in cases.values() for p, r in sizes)
        lines.append(f"{method}: {sum(map(len, cases.values())):,} examples, {total:,} tokens")
        for case, sizes in sorted(cases.items(), key=lambda item: -len(item[1])):
            prompt, response = np.mean(sizes, axis=0)
            share = sum(p + r for p, r in sizes) / total
            lines.append(f"  {case:44} {len(sizes):6,} {share:6.1%} of tokens, prompt {prompt:6.0f}, response {response:5.1f}")
    return "\n".join(lines)


SHARDS = 4
"""Parts of the training set, each with a seed of its own. Each tokenises what it draws on anew, some nine seconds of a core."""


def held_out(model: Path, config: ColdStart) -> list[Example]:
    """The evaluation set."""
    builder = build(Tokenizer.load(model), PromptSet.load(config.prompts), "eval", config.seed)
    return list(evaluation(builder, config))


def shard(model: Path, config: ColdStart, number: int) -> list[Example]:
    """Part `number` of the training set."""
    builder = build(Tokenizer.load(model), PromptSet.load(config.prompts), "train", config.seed * 1000 + 1 + number)
    return list(examples(builder, config.examples // SHARDS, config.methods))


if __name__ == "__main__":
    main()
