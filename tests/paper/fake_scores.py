"""Made-up scores for testing tables and figures. They never leave the tests."""

from __future__ import annotations

import functools
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd

from pimem.paper.cells import OOD
from pimem.paper.scores import COLUMNS, COUNTS, SCORES, combine, validate

SKILL = {"pi_mem": (0.85, 0.02), "mem_agent": (0.8, 0.05), "rag": (0.62, 0.06), "vanilla": (0.75, 0.16)}
"""Success at the shortest length, and what each doubling costs."""


def make_scores(*args: Any, **kwargs: Any) -> pd.DataFrame:
    """A copy of its own of what `_make` makes."""
    return _make(*args, **kwargs).copy()


def ood_frame(lengths: tuple[int, ...], n: int = 6) -> pd.DataFrame:
    """Scores of every task that the paper's Table 2 is over; questions of all tasks have the same ids."""
    metric = {"squad": "sub_em"}
    made = [make_scores(lengths, n=n, task=t, metric=metric.get(t, "multi_recall"), seed=i) for i, t in enumerate(OOD)]
    return combine(made)


def with_hits(scores: pd.DataFrame, method: str, hits: int) -> pd.DataFrame:
    """The first `hits` samples of every run of a method right, the others wrong."""
    rows = scores["method"] == method
    scores.loc[rows, "sub_em"] = (scores.loc[rows].groupby("run").cumcount() < hits).astype(float)
    return scores.assign(status="answered")


def longbench_frame(n: int = 40, length: int = 4_000_000) -> pd.DataFrame:
    """Accuracy on n questions, four of ten hard, in three groups of length."""
    frame = make_scores((length,), n=n, task="longbench_v2").rename(columns={"sub_em": "x"})
    frame["run"] += f"{length}"
    number = frame["sample"].str[1:].astype(int)
    sizes = number.map(lambda i: "length=" + ("short", "medium", "long")[i % 3])
    groups = number.map(lambda i: "difficulty=" + ("hard" if i % 10 < 4 else "easy")) + ";" + sizes + ";domain=Easy Ones"
    scores = dict.fromkeys(("sub_em", "sub_em_strict", "em", "f1", "coverage"), float("nan"))
    return validate(frame.assign(accuracy=frame["x"], metric="accuracy", groups=groups, **scores), "fixture")


@functools.cache
def _make(
    lengths: tuple[int, ...] = (50, 100, 200, 400),
    n: int = 32,
    models: tuple[str, ...] = ("smollm2-135m",),
    task: str = "hotpotqa",
    metric: str = "sub_em",
    profile: str = "fixture",
    seed: int = 0,
) -> pd.DataFrame:
    """Scores of four methods on the same questions at every length, correlated within a question."""
    rng = np.random.default_rng(seed)
    ease = rng.normal(0, 0.15, n)
    rows = []
    for m, model in enumerate(models):
        for method, (start, slope) in SKILL.items():
            for step, length in enumerate(lengths):
                chance = np.clip(start - slope * step - 0.1 * m + ease, 0, 1)
                for i in range(n):
                    hit = float(rng.random() < chance[i]) if metric == "sub_em" else rng.binomial(4, chance[i]) / 4
                    failed = method == "vanilla" and i == 0 and step == 0
                    row: dict[str, object] = dict.fromkeys(COUNTS, 0)
                    row |= dict.fromkeys(SCORES, float("nan")) | {"variant": "", "groups": ""}
                    row |= {
                        "profile": profile,
                        "groups": "",
                        "task": task,
                        "unit": "documents" if task == "hotpotqa" else "tokens",
                    }
                    row |= {"model": model, "prompts": "default", "method": method, "length": length, "seed": 42}
                    row |= {
                        "run": f"{m}{method[:2]}{step}{crc32(task.encode()):08x}",
                        "sample": f"q{i:03}",
                        "cluster": f"c{i:03}",
                    }
                    row |= {"status": "failed" if failed else "answered", "metric": metric, "extracted": float(not failed)}
                    row[metric] = 0.0 if failed else hit
                    if metric == "sub_em":
                        row |= {"sub_em_strict": row[metric], "em": row[metric], "f1": row[metric]}
                    if method in ("pi_mem", "mem_agent"):
                        row["coverage"] = min(1.0, (rng.binomial(4, min(1, chance[i] + 0.1)) / 4))
                    row |= {
                        "context_tokens": length * 140 if task == "hotpotqa" else length,
                        "calls": 1 + length // 10,
                        "turns": 2 if method == "pi_mem" else 0,
                    }
                    row |= {"prompt_tokens": length * 150, "generated_tokens": 30 + length}
                    rows.append(row)
    return validate(pd.DataFrame(rows, columns=list(COLUMNS)), "fixture")
