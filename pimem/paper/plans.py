"""What the paper's tables have, whether or not it was run: their rows, columns, scores and samples."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pandas as pd

from pimem.paper import published
from pimem.paper.cells import GROUPS, OOD, RULER, by_group, by_task, cells, over_tasks

NOT_RUN = "not run"
"""The state of a cell of which there is no sample."""

EVERY = tuple(published.METHOD_NAMES)
WITH_MEMORY = ("gru_mem", "rememr1", "mem_agent", "pi_mem")
TRAINED = ("mem_agent", "pi_mem")
"""Methods that the supplement's tables have a row without reinforcement learning of."""


@dataclass(frozen=True)
class Plan:
    """What a table of the paper has, whether or not it was run."""

    title: str
    tasks: tuple[str, ...]
    columns: Mapping[str, str]
    """Our columns, in order, by the paper's names of them."""
    counts: Mapping[str, int]
    """Samples behind a printed cell, by the paper's name of its column."""
    measure: Callable[..., pd.DataFrame]
    """Makes the cells: a function of `pimem.paper.cells`."""
    metric: str | None = None
    """The score; None takes each task's own."""
    methods: tuple[str, ...] = EVERY
    printed: str = ""
    """The paper's name of the table."""
    source: str = ""
    """The transcript of the paper's numbers; empty where it prints none."""
    without_rl: tuple[str, ...] = ()
    """Methods that also have a row for a model without reinforcement learning."""
    turns: bool = False
    """Whether rows of PI-Mem's turns belong to it."""


_HQA = {str(documents): name for name, documents in published.HQA_DOCUMENTS.items()}
_OOD = {str(8192 << i): name for i, name in enumerate(("8K", "16K", "32K", "64K", "128K", "256K", "512K", "1M"))}
_LONGBENCH = {name: name for name in GROUPS}
_SAMPLES = 64
"""Samples of a RULER task at a length, by the supplement's table 2."""
_QUESTIONS = {"All": 503, "Easy": 192, "Hard": 311, "Short": 180, "Medium": 215, "Long": 108}
"""LongBench v2's questions."""

_hqa = functools.partial(
    Plan,
    tasks=("hotpotqa",),
    columns=_HQA | {"Avg": "Avg"},
    counts=dict.fromkeys([*_HQA.values(), "Avg"], _SAMPLES),
    measure=cells,
    metric="sub_em",
)
_ood = functools.partial(
    Plan,
    tasks=OOD,
    columns=_OOD | {"Avg": "Avg"},
    counts=dict.fromkeys([*_OOD.values(), "Avg"], _SAMPLES * len(OOD)),
    measure=over_tasks,
)
_longbench = functools.partial(Plan, tasks=("longbench_v2",), columns=_LONGBENCH, counts=_QUESTIONS, measure=by_group)

PLANS = {
    "table1_hqa": _hqa("HotpotQA by context length", printed="Table 1", source="table1_hqa"),
    "table2_ood": _ood("RULER's eleven tasks out of distribution, by context length", printed="Table 2", source="table2_ood"),
    "table3_longbench_v2": _longbench("LongBench v2", printed="Table 3", source="table3_longbench_v2"),
    "table4_coverage": Plan(
        "Evidence in the final memory, multi-value NIAH",
        tasks=("niah_multivalue",),
        columns={key: name for key, name in _OOD.items() if name in ("256K", "512K", "1M")},
        counts=dict.fromkeys(_OOD.values(), _SAMPLES),
        measure=cells,
        metric="coverage",
        methods=WITH_MEMORY,
        printed="Table 4",
        source="table4_coverage",
    ),
    "s3_hqa": _hqa(
        "HotpotQA by context length, with turns", printed="supplement, Table 3", source="s3_hqa", without_rl=TRAINED, turns=True
    ),
    "s4_ood": _ood(
        "RULER's eleven tasks out of distribution, by context length, with turns",
        printed="supplement, Table 4",
        source="s4_ood",
        without_rl=TRAINED,
        turns=True,
    ),
    "s5_longbench_v2": _longbench(
        "LongBench v2, with models before reinforcement learning",
        printed="supplement, Table 5",
        source="s5_longbench_v2",
        without_rl=TRAINED,
    ),
    "ruler_by_task": Plan("RULER task by task", tuple(RULER), RULER, {}, by_task),
}
"""Every table by the name of its files."""
