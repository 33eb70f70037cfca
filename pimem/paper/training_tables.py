"""Tables of a training, stage by stage: what the judge saw of each call, and what whole workflows scored."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pimem import stats
from pimem.errors import DataError
from pimem.paper import tables
from pimem.paper.scores import primary_scores
from pimem.paper.tables import Absent, heading, method_name
from pimem.paper.training_records import Record, predecessor

READS = ("gold", "gold, rest known", "gold known", "cut", "none")
"""The second half of the names of the judge's cases that are reads; `random` is one, too."""

HEADLINES = (
    ("Reads that keep the format", None, "format"),
    ("HotpotQA: section with gold, nothing known: yes", "hotpotqa: gold", "check"),
    ("HotpotQA: gold with the rest known: yes", "hotpotqa: gold, rest known", "check"),
    ("HotpotQA: gold already in the memory: no", "hotpotqa: gold known", "check"),
    ("HotpotQA: the question's own distractors: no", "hotpotqa: none", "check"),
    ("Random sections: no (the rest are false positives)", "random", "check"),
    ("Needles: section with gold: yes", "needles: gold", "check"),
    ("Needles: only other keys' needles: no", "needles: none", "check"),
    ("Made-up facts: there: yes", "planted: gold", "check"),
    ("Made-up facts: not there: no", "planted: none", "check"),
    ("HotpotQA: merge keeps all facts and adds none", "hotpotqa: merge", "exact"),
    ("Needles: merge keeps all facts and adds none", "needles: merge", "exact"),
    ("HotpotQA: final answer from gold memory, exact", "hotpotqa: final", "em"),
    ("HotpotQA: final answer from gold memory, Sub-EM", "hotpotqa: final", "sub_em"),
    ("Needles: final answer from gold memory, exact", "needles: final", "em"),
    ("MemAgent's memory after all sections: HotpotQA", "hotpotqa: retention", "kept"),
    ("MemAgent's memory after all sections: needles", "needles: retention", "kept"),
)
"""What is asked first of a reader: label, the judge's case (None: every read), score."""


@dataclass(frozen=True)
class Sheet:
    """One table: cells in long form for the csv, the texts that are shown, and what a reader must know."""

    name: str
    title: str
    cells: pd.DataFrame
    shown: pd.DataFrame
    notes: tuple[str, ...]


def cases(records: Sequence[Record], *, version: str, level: float = 0.95) -> Sheet:
    """The judge's cases that matter most, a column a stage, and each stage against the one it began with.

    Pairs examples of one case and number. Raises `Absent` where no stage was judged, `DataError` where two were judged on
    other examples.
    """
    judged = [r for r in records if r.judged is not None]
    if not judged:
        raise Absent("no stage of a model has a record of the judge (eval.jsonl of pimem.training.judge)")
    cells, shown = [], []
    for label, case, score in HEADLINES:
        columns = {r.name: chosen(r, case, score) for r in judged}
        if all(part.empty for part in columns.values()):
            continue
        texts: dict[str, str] = {"Case": label}
        for record in judged:
            part = columns[record.name]
            texts[record.title] = ""
            if not part.empty:
                made = estimate(record, case, score, level)
                cells.append({"row": label, "case": case or "every read", "score": score, "stage": record.name, **_said(made)})
                texts[record.title] = _interval(made)
        for record, first in _pairs(judged):
            now, before = columns[record.name], columns[first.name]
            if now.empty or before.empty:
                continue
            facts = _paired(now, before, level, f"{record.name} and {first.name}")
            cells.append(
                {"row": label, "case": case or "every read", "score": score, "stage": f"{record.name} - {first.name}", **facts}
            )
            if record.kind == "rl":
                texts[_against(record, first)] = _test(facts)
        shown.append(texts | {"n": f"{max(len(part) for part in columns.values()):,}"})
    frame = pd.DataFrame(shown).fillna("")
    frame = frame[[c for c in frame if c != "n"] + ["n"]]
    notes = (
        f"Percent with {level:.0%} intervals in brackets: Wilson's where every question stands once, else resampled by "
        "question. n examples, held out, the same for every stage; greedy.",
        "Differences are in points of percent on the same examples, with their interval; then how many are right only now and "
        "only before, and the two-sided exact p of McNemar's test, these over the first example of each question. Each row is "
        "a test of its own: among many, some come out by chance.",
        f"Version {version}.",
    )
    return Sheet("training_cases", "What each call was judged to do, stage by stage", pd.DataFrame(cells), frame, notes)


def every_case(records: Sequence[Record], *, version: str, level: float = 0.95) -> Sheet:
    """All cases and scores of the judge. Raises `Absent` where no stage was judged."""
    rows = []
    for record in (r for r in records if r.judged is not None):
        assert record.judged is not None
        for case, part in record.judged.groupby("case", sort=False):
            for score in [c for c in part.columns[4:] if c != "extra" and part[c].notna().any()]:
                made = estimate(record, str(case), score, level)
                rows.append({"case": case, "score": score, "stage": record.name, "title": record.title, **_said(made)})
    if not rows:
        raise Absent("no stage of a model has a record of the judge (eval.jsonl of pimem.training.judge)")
    cells = pd.DataFrame(rows)
    digits = [_digits(n) for n in cells["n"]]
    texts = [f"{r.value:.{d}f} [{r.low:.{d}f}, {r.high:.{d}f}]" for r, d in zip(cells.itertuples(), digits, strict=True)]
    text = cells.assign(text=texts)
    shown = text.pivot_table(index=["case", "score"], columns="title", values="text", aggfunc="first", sort=False).fillna("")
    n = cells.groupby(["case", "score"], sort=False)["n"].max()
    shown = shown[list(dict.fromkeys(cells["title"]))].assign(n=[f"{n[at]:,}" for at in shown.index]).reset_index()
    notes = (f"Percent with {level:.0%} intervals, as in the shorter table. Version {version}.",)
    return Sheet("training_cases_all", "Every case and score of the judge", cells, shown, notes)


def workflows(records: Sequence[Record], *, version: str, level: float = 0.95) -> Sheet:
    """Whole workflows: score and turns by task, length and method, a row a stage, and each stage against the one before.

    Raises `Absent` where no stage was evaluated.
    """
    evaluated = [r for r in records if r.scores is not None]
    if not evaluated:
        raise Absent("no stage of a model has scores of an evaluation (scores.csv of a version of tables)")
    cells, shown = [], []
    for record in evaluated:
        assert record.scores is not None
        first = predecessor(record, evaluated)
        ours = tables.cells(record.scores, version=version, level=level)
        for cell in ours[ours["column"] != "Avg"].itertuples():
            at = {"task": cell.task, "length": cell.length, "method": cell.method, "variant": cell.variant}
            part = _at(record.scores, at)
            facts = {"value": cell.value, "low": cell.low, "high": cell.high, "n": cell.n, "clusters": cell.clusters}
            facts |= {"metric": cell.metric, "failed": cell.failed}
            facts |= _turns(part, level)
            texts = {
                "Stage": record.title,
                "Task": cell.task,
                "Length": heading(ours, cell.column),
                "Method": method_name(cell.method, cell.variant),
                f"Score [{level:.0%}]": f"{cell.value:.1f} [{cell.low:.1f}, {cell.high:.1f}]",
                "Turns": "{turns:.2f} [{turns_low:.2f}, {turns_high:.2f}]".format(**facts) if "turns" in facts else "",
                "n": f"{cell.n}",
            }
            before = _at(first.scores, at) if first is not None and first.scores is not None else pd.DataFrame()
            if not before.empty and first is not None:
                compared = _scores_paired(part, before, level)
                facts |= {"against": first.name, **compared}
                texts["Against the stage before"] = _test(compared)
            cells.append({"stage": record.name, **at, **facts})
            shown.append(texts)
    notes = [
        "Scores in percent under each task's own metric; a failed sample counts as 0. Turns include the closing one. Intervals "
        "over questions; differences on the same samples, with McNemar's exact p where scores are 0 or 1.",
        f"Version {version}.",
    ]
    if any(cell["clusters"] < tables.FEW for cell in cells):
        notes.append(f"Fewer than {tables.FEW} questions: such a cell ranks nothing.")
    name = "training_workflows"
    return Sheet(name, "Whole workflows, stage by stage", pd.DataFrame(cells), pd.DataFrame(shown).fillna(""), tuple(notes))


@functools.lru_cache(maxsize=4096)
def estimate(record: Record, case: str | None, score: str, level: float = 0.95) -> stats.Estimate:
    """Mean score of a case (None: of every read) with its interval over questions; computed once a record."""
    part = chosen(record, case, score)
    return stats.mean(part["score"].tolist(), part["source"].tolist(), level)


def chosen(record: Record, case: str | None, score: str) -> pd.DataFrame:
    """case, number, source, score of the examples of a case, or of every read."""
    assert record.judged is not None
    frame = record.judged
    if score not in frame:
        return pd.DataFrame()
    wanted = frame["case"].map(_is_read) if case is None else frame["case"] == case
    part = frame[wanted & frame[score].notna()]
    return part[["case", "number", "source"]].assign(score=part[score])


def _is_read(case: str) -> bool:
    return case == "random" or case.partition(": ")[2].removesuffix(" (cached order)") in READS


def _pairs(records: Sequence[Record]) -> list[tuple[Record, Record]]:
    found = [(r, predecessor(r, records)) for r in records]
    return [(r, first) for r, first in found if first is not None]


def _paired(now: pd.DataFrame, before: pd.DataFrame, level: float, who: str) -> dict[str, Any]:
    both = now.merge(before, on=["case", "number"], suffixes=("", "_before"), validate="one_to_one")
    if (both["source"] != both["source_before"]).any() or both.empty:
        raise DataError(f"{who}: the judge gave them other examples, so they cannot be paired; judge both on one eval.xz")
    return _compared(both["score"], both["score_before"], both["source"], level)


def _scores_paired(now: pd.DataFrame, before: pd.DataFrame, level: float) -> dict[str, Any]:
    now, before = (f.assign(score=primary_scores(f)) for f in (now, before))
    both = now.merge(before, on=["seed", "sample"], suffixes=("", "_before"), validate="one_to_one")
    return _compared(both["score"], both["score_before"], both["cluster"], level) if len(both) else {}


def _compared(now: pd.Series, before: pd.Series, clusters: pd.Series, level: float) -> dict[str, Any]:
    result = stats.paired(now.tolist(), before.tolist(), clusters.tolist(), level)
    first = ~clusters.duplicated()
    gap, binary = now[first] - before[first], bool((now.isin([0, 1]) & before.isin([0, 1])).all())
    only_now, only_before = int((gap > 0).sum()), int((gap < 0).sum())
    return {
        **_said(result.difference),
        "only_now": only_now,
        "only_before": only_before,
        "tested": int(first.sum()),
        "p_mcnemar": stats.mcnemar(only_now, only_before) if binary else None,
    }


def _said(estimate: stats.Estimate) -> dict[str, Any]:
    percent = {k: 100 * getattr(estimate, k) for k in ("value", "low", "high")}
    return {**percent, "level": estimate.level, "how": estimate.how, "n": estimate.n, "questions": estimate.clusters}


def _digits(n: int) -> int:
    """Decimals of percents: false positives among thousands are counted in hundredths."""
    return 2 if n > 2000 else 1


def _interval(made: stats.Estimate) -> str:
    digits = _digits(made.n)
    return f"{100 * made.value:.{digits}f} [{100 * made.low:.{digits}f}, {100 * made.high:.{digits}f}]"


def _against(record: Record, first: Record) -> str:
    return f"{record.title} against {first.title}"


def _test(facts: dict[str, Any]) -> str:
    if not facts:
        return ""
    p = facts["p_mcnemar"]
    digits = _digits(facts["n"])
    text = f"{facts['value']:+.{digits}f} [{facts['low']:+.{digits}f}, {facts['high']:+.{digits}f}]"
    if p is None:
        return text
    return f"{text}, {facts['only_now']} : {facts['only_before']}, p\N{NO-BREAK SPACE}" + (
        f"=\N{NO-BREAK SPACE}{p:.2g}" if p >= 1e-6 else "<\N{NO-BREAK SPACE}1e-6"
    )


def _turns(part: pd.DataFrame, level: float) -> dict[str, float]:
    """Mean turns with their interval; nothing for a method without turns."""
    if not part["turns"].any():
        return {}
    most = 1 + part["turns"].max()
    made = stats.mean((part["turns"] / most).tolist(), part["cluster"].tolist(), level)
    return {"turns": made.value * most, "turns_low": made.low * most, "turns_high": made.high * most}


def _at(scores: pd.DataFrame, where: dict[str, Any]) -> pd.DataFrame:
    wanted = pd.Series(True, index=scores.index)
    for column, value in where.items():
        wanted &= scores[column] == value
    return scores[wanted]
