"""The training and evaluation sets of the cold start: which examples, in which proportion, and how they lie on disk.

`python -m pimem.training.data CONFIG --model FOLDER --out FOLDER` writes both sets.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pimem.errors import DataError
from pimem.prompts import PromptSet
from pimem.tokens import Tokenizer
from pimem.training.examples import Builder, Example
from pimem.training.recipe import ColdStart, load_config
from pimem.training.scenes import Part, Source

MIX: tuple[tuple[float, str, tuple[Any, ...]], ...] = (
    (13, "read", ("hotpotqa", "none")),
    (7, "read", ("hotpotqa", "partial")),
    (5, "read", ("hotpotqa", "known")),
    (13, "nothing", ("hotpotqa",)),
    (11, "nothing", ("random",)),
    (6, "read", ("needles", "none")),
    (3, "read", ("needles", "partial")),
    (2, "read", ("needles", "known")),
    (4, "nothing", ("needles",)),
    (5, "read", ("planted", "none")),
    (1.5, "read", ("planted", "known")),
    (4, "nothing", ("planted",)),
    (5, "merge", ("hotpotqa",)),
    (3, "merge", ("needles",)),
    (1.5, "merge", ("planted",)),
    (4, "update", ("hotpotqa",)),
    (2.5, "update", ("needles",)),
    (1, "update", ("planted",)),
    (7, "final", ("hotpotqa",)),
    (2.5, "final", ("needles",)),
    (1.5, "final", ("planted",)),
    (3.5, "direct", ("hotpotqa",)),
    (1.5, "direct", ("needles",)),
    (1, "direct", ("planted",)),
    (1, "read_all", ("hotpotqa",)),
    (0.5, "read_all", ("needles",)),
)
"""Weight, method of `Builder`, and its arguments."""


def section_length(rng: np.random.Generator) -> int:
    """Tokens of a section: mostly 250 to 1,400, some to 2,000, a few of 4,000."""
    draw = rng.random()
    low, high = (250, 800) if draw < 0.62 else (800, 1400) if draw < 0.89 else (1400, 2100) if draw < 0.975 else (3800, 4100)
    return int(rng.integers(low, high))


def examples(builder: Builder, n: int) -> Iterator[Example]:
    """`n` examples of the mix."""
    weights = np.array([w for w, _, _ in MIX])
    for which in builder.rng.choice(len(MIX), size=n, p=weights / weights.sum()):
        _, method, arguments = MIX[which]
        yield getattr(builder, method)(*arguments)


def evaluation(builder: Builder, n: int, negatives: int, section: int = 500) -> Iterator[Example]:
    """The cases the trained model is judged on, `n` each, and `negatives` random sections of `section` tokens.

    Sections are in the paper's order unless the case says cached.
    """
    half = max(1, n // 2)
    plan: tuple[tuple[int, str, tuple[str, ...]], ...] = (
        (2 * n, "read", ("hotpotqa", "none")),
        (n, "read", ("hotpotqa", "partial")),
        (n, "read", ("hotpotqa", "known")),
        (2 * n, "nothing", ("hotpotqa",)),
        (n, "read", ("needles", "none")),
        (n, "read", ("needles", "partial")),
        (n, "read", ("needles", "known")),
        (n, "nothing", ("needles",)),
        (n, "read", ("planted", "none")),
        (n, "read", ("planted", "known")),
        (n, "nothing", ("planted",)),
    )
    for order, tag in (("read", ""), ("read_cached", " (cached order)")):
        for count, method, arguments in plan:
            for _ in range(count if not tag else max(1, count // 2)):
                made = getattr(builder, method)(*arguments, order=order)
                made.case += tag
                yield made
    for kind in ("hotpotqa", "needles", "planted"):
        for _ in range(2 * n if kind == "hotpotqa" else half):
            yield builder.final(kind)
        for _ in range(n if kind == "hotpotqa" else half):
            yield builder.merge(kind)
        for _ in range(half):
            yield builder.direct(kind)
    for kind in ("hotpotqa", "needles"):
        for _ in range(half):
            yield builder.retention(kind, section)
    for _ in range(negatives):
        yield builder.nothing("random", size=section, empty=True, order="read")


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
    """A builder over the fetched HotpotQA."""
    from pimem import data

    return Builder(Source(tokenizer, data.corpus("hotpotqa"), part, seed), prompts, section_length)


def main(argv: Sequence[str] | None = None) -> None:
    """Writes train.xz and eval.xz."""
    import argparse

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    config = load_config(args.config)
    args.out.mkdir(parents=True, exist_ok=True)
    Table.of(held_out(args.model, config), meta=True).save(args.out / "eval.xz")
    made = [example for number in range(SHARDS) for example in shard(args.model, config, number)]
    Table.of(made, meta=False).save(args.out / "train.xz")


SHARDS = 8
"""Parts of the training set, each with a seed of its own."""


def held_out(model: Path, config: ColdStart) -> list[Example]:
    """The evaluation set."""
    builder = build(Tokenizer.load(model), PromptSet.load(config.prompts), "eval", config.seed)
    return list(evaluation(builder, config.eval_cases, config.eval_negatives))


def shard(model: Path, config: ColdStart, number: int) -> list[Example]:
    """Part `number` of the training set."""
    builder = build(Tokenizer.load(model), PromptSet.load(config.prompts), "train", config.seed * 1000 + 1 + number)
    return list(examples(builder, config.examples // SHARDS))


if __name__ == "__main__":
    main()
