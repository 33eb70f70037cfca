"""The training and evaluation sets of the cold start: which examples, in which proportion, and how they lie on disk.

`python -m pimem.training.data CONFIG --model FOLDER --out FOLDER` writes both sets.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from pimem.errors import DataError
from pimem.prompts import PromptSet
from pimem.tokens import Tokenizer
from pimem.training.drafts import Example
from pimem.training.examples import Builder
from pimem.training.recipe import ColdStart, Method, load_config
from pimem.training.scenes import Part, Source

Cases = tuple[tuple[float, str, tuple[Any, ...]], ...]
"""Weight by number of examples, method of `Builder`, its arguments."""

_FINALS: Cases = (
    (32, "final", ("hotpotqa",)),
    (2.5, "final", ("needles",)),
    (2, "final", ("planted",)),
    (4, "final", ("chain",)),
)
_ANSWERS: Cases = (
    (2.5, "direct", ("hotpotqa",)),
    (1, "direct", ("needles",)),
    (0.5, "direct", ("planted",)),
    (0.5, "direct", ("chain",)),
)
"""Vanilla's and RAG's only call: what every method is compared with is trained along with each of them."""

MIX: dict[Method, Cases] = {
    "pi_mem": (
        (22, "read", ("hotpotqa", "none")),
        (18, "read", ("hotpotqa", "partial")),
        (5, "read", ("hotpotqa", "known")),
        (26, "nothing", ("hotpotqa",)),
        (17, "nothing", ("random",)),
        (4, "read", ("needles", "none")),
        (2, "read", ("needles", "partial")),
        (1.5, "read", ("needles", "known")),
        (4, "nothing", ("needles",)),
        (3, "read", ("planted", "none")),
        (1, "read", ("planted", "known")),
        (2.5, "nothing", ("planted",)),
        (4, "read", ("chain", "none")),
        (3, "read", ("chain", "partial")),
        (0.5, "read", ("chain", "known")),
        (3, "nothing", ("chain",)),
        (7, "merge", ("hotpotqa",)),
        (4, "merge", ("needles",)),
        (1, "merge", ("planted",)),
        (2, "merge", ("chain",)),
        (1, "read_all", ("hotpotqa",)),
        (0.5, "read_all", ("needles",)),
        *_FINALS,
        *_ANSWERS,
    ),
    "mem_agent": (
        (50, "update", ("hotpotqa",)),
        (18, "update", ("needles",)),
        (8, "update", ("planted",)),
        (9, "update", ("chain",)),
        *_FINALS,
        *_ANSWERS,
    ),
    "gru_mem": (
        (50, "gated", ("hotpotqa",)),
        (18, "gated", ("needles",)),
        (8, "gated", ("planted",)),
        (9, "gated", ("chain",)),
        *_FINALS,
        *_ANSWERS,
    ),
    "rememr1": (
        (50, "recall", ("hotpotqa",)),
        (18, "recall", ("needles",)),
        (8, "recall", ("planted",)),
        (9, "recall", ("chain",)),
        *((weight, name, (*arguments, True)) for weight, name, arguments in _FINALS),
        *_ANSWERS,
    ),
}
"""The calls of each method."""


def section_length(rng: np.random.Generator) -> int:
    """Tokens of a section: half 250 to 800, a quarter to 1,400, most others to 2,100, one in fourteen 3,000 to 4,100."""
    draw = rng.random()
    low, high = (250, 800) if draw < 0.5 else (800, 1400) if draw < 0.75 else (1400, 2100) if draw < 0.93 else (3000, 4100)
    return int(rng.integers(low, high))


def examples(builder: Builder, n: int, methods: Sequence[Method]) -> Iterator[Example]:
    """`n` examples of the calls of `methods`, each with the same number of tokens to within one example."""
    spent = dict.fromkeys(methods, 0)
    shares = {m: np.array([weight for weight, _, _ in MIX[m]]) for m in methods}
    for _ in range(n):
        least = min(methods, key=lambda m: spent[m])
        which = builder.rng.choice(len(shares[least]), p=shares[least] / shares[least].sum())
        _, call, arguments = MIX[least][which]
        made = getattr(builder, call)(*arguments)
        made.method = least
        spent[least] += len(made.prompt) + len(made.response)
        yield made


def evaluation(builder: Builder, config: ColdStart) -> Iterator[Example]:
    """The cases the trained model is judged on, `eval_cases` each, and `eval_negatives` random sections.

    Sections are in the paper's order unless the case says cached. Recurrent steps are those of the trained methods.
    """
    n, section = config.eval_cases, config.eval_section
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
        (n, "read", ("chain", "none")),
        (n, "read", ("chain", "partial")),
        (n, "nothing", ("chain",)),
    )
    kinds = ("hotpotqa", "needles", "planted", "chain")
    parallel = "pi_mem" in config.methods
    # What matters most first: judging writes case by case, and time may run out.
    if parallel:
        for count, method, arguments in plan:
            for _ in range(count):
                yield getattr(builder, method)(*arguments, size=section, order="read")
        for _ in range(config.eval_negatives):
            yield builder.nothing("random", size=section, empty=True, order="read")
    for kind in kinds:
        for _ in range(2 * n if kind == "hotpotqa" else half):
            if set(config.methods) != {"rememr1"}:
                yield builder.final(kind)
            if "rememr1" in config.methods:
                yield builder.final(kind, recall=True)
    for method, call in (("mem_agent", "update"), ("gru_mem", "gated"), ("rememr1", "recall")):
        if method in config.methods:
            for kind in ("hotpotqa", "needles"):
                for _ in range(n if call == "update" else 2 * n):
                    yield getattr(builder, call)(kind, size=section)
    for kind in kinds:
        if parallel:
            for _ in range(n if kind == "hotpotqa" else half):
                yield builder.merge(kind)
        for _ in range(half):
            yield builder.direct(kind)
    if "mem_agent" in config.methods:
        for kind in ("hotpotqa", "needles"):
            for _ in range(half):
                yield builder.retention(kind, section)
    if parallel:
        for count, method, arguments in plan:
            for _ in range(max(1, count // 2)):
                made = getattr(builder, method)(*arguments, size=section, order="read_cached")
                made.case += " (cached order)"
                yield made


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
    parser.add_argument("--workers", type=int, default=1, help="processes; each takes about 1.5 GB")
    args = parser.parse_args(argv)
    config = load_config(args.config)
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


SHARDS = 8
"""Parts of the training set, each with a seed of its own."""


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
