"""Published formats of the question sets, brought into one form.

A corpus is paragraphs, each once and in sorted order, and questions that point at them. The same content gives the same corpus
and the same hash from whichever format and in whichever order it came.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimem.errors import DataError


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A titled paragraph."""

    title: str
    sentences: tuple[str, ...]
    """With the white space that separates them."""

    @property
    def text(self) -> str:
        return "".join(self.sentences)


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its right answers, and the paragraphs it came with."""

    id: str
    question: str
    answers: tuple[str, ...]
    """Empty where the question cannot be answered from its paragraphs."""
    paragraphs: tuple[int, ...]
    """Numbers of its own paragraphs, gold ones and distractors."""
    support: tuple[tuple[int, int], ...]
    """(paragraph number, sentence index) of what the answer rests on; the index may lie outside the paragraph."""
    kind: str = ""
    """The set's own label of the question's type."""


@dataclass(frozen=True, eq=False)
class Corpus:
    """Paragraphs in sorted order, questions in order of their ids. Equal content has an equal `hash`."""

    paragraphs: tuple[Paragraph, ...]
    questions: tuple[Question, ...]
    hash: str
    """Hex digest of the content."""


Row = tuple[str, str, tuple[str, ...], list[Paragraph], list[tuple[str, int]], str]
"""id, question, answers, own paragraphs, support as (title, sentence), kind."""


def corpus(rows: Iterable[Row]) -> Corpus:
    """Rows of any order as a corpus. Paragraphs equal in title and text are one."""
    rows = sorted(rows, key=lambda row: row[0])
    pool: dict[str, Paragraph] = {}
    for _, _, _, paragraphs, _, _ in rows:
        for paragraph in paragraphs:
            pool.setdefault(_key(paragraph), paragraph)
    keys = sorted(pool)
    number = {key: i for i, key in enumerate(keys)}
    questions = []
    for name, question, answers, paragraphs, support, kind in rows:
        own = list(dict.fromkeys(number[_key(p)] for p in paragraphs))
        place = {pool[keys[i]].title: i for i in reversed(own)}
        found = tuple((place[title], int(index)) for title, index in support if title in place)
        questions.append(Question(name, question, answers, tuple(own), found, kind))
    shared = tuple(pool[key] for key in keys)
    return Corpus(shared, tuple(questions), _digest(shared, questions))


def _key(paragraph: Paragraph) -> str:
    return f"{paragraph.title}\n{paragraph.text}"


def _lines(records: Iterable[Any]) -> Iterator[str]:
    """Compact JSON lines of records whose class has slots, with their fields in order."""
    for record in records:
        fields = {name: getattr(record, name) for name in record.__slots__}
        yield json.dumps(fields, ensure_ascii=False, separators=(",", ":")) + "\n"


def _digest(paragraphs: Iterable[Paragraph], questions: Iterable[Question]) -> str:
    digest = hashlib.sha256()
    for line in itertools.chain(_lines(paragraphs), _lines(questions)):
        digest.update(line.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def write(what: Corpus, folder: Path) -> None:
    """`what` as paragraphs.jsonl and questions.jsonl."""
    for name, records in (("paragraphs", what.paragraphs), ("questions", what.questions)):
        with (folder / f"{name}.jsonl").open("w", encoding="utf-8", errors="surrogatepass") as file:
            file.writelines(_lines(records))


@functools.lru_cache(maxsize=4)
def read(folder: Path, digest: str) -> Corpus:
    """The corpus that `write` put into `folder`. Raises `DataError` where the content is not that of `digest`."""
    try:
        raw = [(folder / f"{name}.jsonl").read_bytes() for name in ("paragraphs", "questions")]
    except OSError as error:
        raise DataError(f"{folder}: this data set does not read ({error}); fetch it again") from error
    found = hashlib.sha256(b"".join(raw)).hexdigest()
    if found != digest:
        raise DataError(f"{folder}: content has SHA-256 {found} where its manifest says {digest}: damaged; fetch it again")
    paragraphs, questions = ([json.loads(line) for line in part.splitlines()] for part in raw)
    return Corpus(
        tuple(Paragraph(p["title"], tuple(p["sentences"])) for p in paragraphs),
        tuple(_question(q) for q in questions),
        digest,
    )


def _question(fields: dict[str, Any]) -> Question:
    lists = {name: tuple(fields[name]) for name in ("answers", "paragraphs")}
    return Question(**{**fields, **lists, "support": tuple((p, s) for p, s in fields["support"])})


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="surrogatepass") as file:
        yield from map(json.loads, file)


def raw_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Records of a JSON list, a JSON lines file, a parquet file, or a folder of such files of one kind.

    Raises `DataError` for anything else and for a file that does not parse.
    """
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.suffix in (".parquet", ".jsonl", ".json"))
        if not files:
            raise DataError(f"{path}: no .parquet, .jsonl or .json file in this folder")
        for file in files:
            yield from raw_rows(file)
        return
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as parquet

            for batch in parquet.ParquetFile(path).iter_batches():
                yield from batch.to_pylist()
        elif path.suffix == ".jsonl":
            yield from _records(path)
        else:
            data = json.loads(path.read_text(encoding="utf-8"))
            yield from data["data"] if isinstance(data, dict) else data
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: does not parse ({type(error).__name__}: {error})") from error


def hotpotqa_rows(path: Path) -> Iterator[Row]:
    """HotpotQA as its authors publish it (JSON, lists of pairs) or as the hub has it (columns). Raises `DataError`."""
    for at, raw in enumerate(raw_rows(path)):
        try:
            context, facts = raw["context"], raw["supporting_facts"]
            if isinstance(context, Mapping):
                context = list(zip(context["title"], context["sentences"], strict=True))
                facts = list(zip(facts["title"], facts["sent_id"], strict=True))
            paragraphs = [Paragraph(title, tuple(sentences)) for title, sentences in context]
            support = [(title, int(index)) for title, index in facts]
            name = raw.get("_id") or raw["id"]
            yield name, raw["question"], (raw["answer"],), paragraphs, support, raw.get("type", "")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: record {at} is not in a HotpotQA format ({type(error).__name__}: {error})") from error


def squad_rows(path: Path) -> Iterator[Row]:
    """SQuAD as its authors publish it (articles) or as the hub has it (one question a row). Raises `DataError`."""
    for at, raw in enumerate(raw_rows(path)):
        try:
            if "paragraphs" in raw:
                for part in raw["paragraphs"]:
                    for qa in part["qas"]:
                        texts = [a["text"] for a in qa["answers"]]
                        yield _squad_row(qa["id"], qa["question"], texts, raw["title"], part["context"])
            else:
                yield _squad_row(raw["id"], raw["question"], raw["answers"]["text"], raw["title"], raw["context"])
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: record {at} is not in a SQuAD format ({type(error).__name__}: {error})") from error


def _squad_row(name: str, question: str, answers: list[str], title: str, context: str) -> Row:
    return name, question, tuple(dict.fromkeys(answers)), [Paragraph(title, (context,))], [(title, 0)], ""
