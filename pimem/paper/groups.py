"""Scores by the groups a benchmark has of its own: LongBench v2's difficulties, lengths and domains (Table 3, Table S5)."""

from __future__ import annotations

import pandas as pd

from pimem import stats
from pimem.paper.scores import primary_scores
from pimem.paper.tables import ROW, Absent

PRINTED = {
    "All": ("", ""),
    "Easy": ("difficulty", "easy"),
    "Hard": ("difficulty", "hard"),
    "Short": ("length", "short"),
    "Medium": ("length", "medium"),
    "Long": ("length", "long"),
}
"""The paper's columns, and the group each stands for."""


def by_group(scores: pd.DataFrame, metric: str | None = None, *, version: str, level: float = 0.95) -> pd.DataFrame:
    """Mean and interval of every row and group in percent: the paper's columns, then the benchmark's domains.

    A group that a row has no sample of is left out, never 0. `metric` None takes each row's primary one; "accuracy_released"
    gives the released reading of the same answers. Raises `Absent` where no sample is in a group or has the metric.
    """
    part = scores[scores["groups"] != ""]
    part = part.assign(score=primary_scores(part) if metric is None else part[metric])
    part = part[part["score"].notna()]
    if part.empty:
        raise Absent(f"no sample with groups has a score {metric or 'of its own'}, so there is no table by group")
    domains = sorted({pair[7:] for said in part["groups"] for pair in said.split(";") if pair.startswith("domain=")})
    columns = PRINTED | {domain: ("domain", domain) for domain in domains}
    out = []
    for key, row in part.groupby(["task", "length", *ROW], sort=False):
        for column, (name, value) in columns.items():
            within = row[[not name or f"{name}={value}" in said.split(";") for said in row["groups"]]]
            if within.empty:
                continue
            estimate = stats.mean(within["score"].tolist(), within["cluster"].tolist(), level)
            out.append(
                {
                    "profile": row["profile"].iloc[0],
                    "version": version,
                    **dict(zip(("task", "length", *ROW), key, strict=True)),
                    "column": column,
                    "metric": metric or row["metric"].iloc[0],
                    "value": 100 * estimate.value,
                    "low": 100 * estimate.low,
                    "high": 100 * estimate.high,
                    "level": estimate.level,
                    "how": estimate.how,
                    "n": estimate.n,
                    "clusters": estimate.clusters,
                    "failed": int((within["status"] == "failed").sum()),
                    "runs": " ".join(sorted(within["run"].unique())),
                }
            )
    return pd.DataFrame(out)
