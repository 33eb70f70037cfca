"""Which examples a cold start is trained and judged on, and in which proportion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pimem.training.drafts import Example
from pimem.training.examples import Builder
from pimem.training.recipe import ColdStart, Method

Cases = tuple[tuple[float, str, tuple[Any, ...]], ...]
"""Weight by number of examples, method of `Builder`, its arguments."""

_FINALS: Cases = (
    (26, "final", ("hotpotqa",)),
    (5.5, "final", ("squad",)),
    (0.5, "final", ("unanswerable",)),
    (2.5, "final", ("needles",)),
    (2, "final", ("planted",)),
    (4, "final", ("chain",)),
)
_ANSWERS: Cases = (
    (2, "direct", ("hotpotqa",)),
    (0.35, "direct", ("squad",)),
    (0.15, "direct", ("unanswerable",)),
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
        (20, "read", ("squad", "none")),
        (4, "read", ("squad", "known")),
        (12, "nothing", ("squad",)),
        (14, "nothing", ("unanswerable",)),
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
        (2, "merge", ("squad",)),
        (4, "merge", ("needles",)),
        (1, "merge", ("planted",)),
        (2, "merge", ("chain",)),
        (1, "read_all", ("hotpotqa",)),
        (0.5, "read_all", ("needles",)),
        *_FINALS,
        *_ANSWERS,
    ),
    "mem_agent": (
        (40, "update", ("hotpotqa",)),
        (8, "update", ("squad",)),
        (2, "update", ("unanswerable",)),
        (18, "update", ("needles",)),
        (8, "update", ("planted",)),
        (9, "update", ("chain",)),
        *_FINALS,
        *_ANSWERS,
    ),
    "gru_mem": (
        (40, "gated", ("hotpotqa",)),
        (8, "gated", ("squad",)),
        (2, "gated", ("unanswerable",)),
        (18, "gated", ("needles",)),
        (8, "gated", ("planted",)),
        (9, "gated", ("chain",)),
        *_FINALS,
        *_ANSWERS,
    ),
    "rememr1": (
        (40, "recall", ("hotpotqa",)),
        (8, "recall", ("squad",)),
        (2, "recall", ("unanswerable",)),
        (18, "recall", ("needles",)),
        (8, "recall", ("planted",)),
        (9, "recall", ("chain",)),
        *((weight, name, (*arguments, True)) for weight, name, arguments in _FINALS),
        *_ANSWERS,
    ),
}
"""The calls of each method."""


STEPS: dict[Method, str] = {"mem_agent": "update", "gru_mem": "gated", "rememr1": "recall"}
"""The recurrent methods' calls over a section, as methods of `Builder`."""

_KINDS = ("hotpotqa", "squad", "needles", "planted", "chain")
_JUDGED: Cases = (
    (2, "read", ("hotpotqa", "none")),
    (1, "read", ("hotpotqa", "partial")),
    (1, "read", ("hotpotqa", "known")),
    (2, "nothing", ("hotpotqa",)),
    (1, "read", ("squad", "none")),
    (1, "read", ("squad", "known")),
    (1, "nothing", ("squad",)),
    (1, "nothing", ("unanswerable",)),
    (1, "read", ("needles", "none")),
    (1, "read", ("needles", "partial")),
    (1, "read", ("needles", "known")),
    (1, "nothing", ("needles",)),
    (1, "read", ("planted", "none")),
    (1, "read", ("planted", "known")),
    (1, "nothing", ("planted",)),
    (1, "read", ("chain", "none")),
    (1, "read", ("chain", "partial")),
    (1, "nothing", ("chain",)),
)
"""Held-out reads, most important first; the weight is a multiple of `eval_cases`."""


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

    Sections are in the paper's order unless the case says cached. Recurrent steps are those of the trained methods. What
    matters most comes first: judging writes case by case, and time may run out.
    """
    n, section = config.eval_cases, config.eval_section
    half = max(1, n // 2)
    parallel = "pi_mem" in config.methods
    # ReMemR1 ends with a call of its own, all others with the same one.
    finals = sorted({method == "rememr1" for method in config.methods})
    steps = [call for method, call in STEPS.items() if method in config.methods]

    def made(count: int, call: str, *arguments: Any, **options: Any) -> Iterator[Example]:
        return (getattr(builder, call)(*arguments, **options) for _ in range(count))

    if parallel:
        for share, call, arguments in _JUDGED:
            yield from made(int(share * n), call, *arguments, size=section, order="read")
        yield from made(config.eval_negatives, "nothing", "random", size=section, empty=True, order="read")
    for kind, count in (("hotpotqa", 2 * n), ("squad", n)):
        for recall in finals:
            yield from made(count, "final", kind, recall=recall)
    if parallel:
        for kind in _KINDS:
            yield from made(n if kind == "hotpotqa" else half, "merge", kind)
    if "mem_agent" in config.methods:
        for kind in ("hotpotqa", "needles"):
            yield from made(half, "retention", kind, section)
    if parallel:
        for share, call, arguments in _JUDGED:
            for example in made(max(1, int(share * n) // 2), call, *arguments, size=section, order="read_cached"):
                example.case += " (cached order)"
                yield example
    for kind in ("hotpotqa", "squad"):
        for call in steps:
            yield from made(n if call == "update" or kind == "squad" else 2 * n, call, kind, size=section)
    for kind in (*_KINDS, "unanswerable"):
        yield from made(half, "direct", kind)
    for recall in finals:
        for kind in _KINDS[2:]:
            yield from made(half, "final", kind, recall=recall)
    for call in steps:
        yield from made(n if call == "update" else 2 * n, call, "needles", size=section)
