"""An adapter becomes plain weights once; another base or damage is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from pimem import adapters, models
from pimem.config import ModelSpec
from pimem.errors import DataError

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file  # noqa: E402

LAYER = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> Path:
    """A catalogue of one model that is here, and an adapter for it that ships."""
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "models" / "tiny"
    folder.mkdir(parents=True)
    for file in tiny_model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    entry = dataclasses.replace(models.CATALOGUE["smollm2-135m"], disk=1000)
    monkeypatch.setattr(models, "CATALOGUE", {"tiny": entry})
    models._write_manifest(folder, {})
    rows, columns = load_file(folder / "model.safetensors")[f"{LAYER}.weight"].shape
    own = tmp_path / "shipped" / "tiny-trained"
    own.mkdir(parents=True)
    torch.manual_seed(0)
    save_file({f"{LAYER}.a": torch.randn(2, columns), f"{LAYER}.b": torch.randn(rows, 2)}, own / adapters.WEIGHTS)
    facts = {
        "base": "tiny",
        "base_fingerprint": models.fingerprint(folder),
        "scale": 0.5,
        "sha256": hashlib.sha256((own / adapters.WEIGHTS).read_bytes()).hexdigest(),
        "licence": "Apache-2.0",
        "about": "a test",
    }
    (own / adapters.MANIFEST).write_text(json.dumps(facts))
    monkeypatch.setattr(adapters, "FOLDER", own.parent)
    return folder


def quiet(line: str) -> None:
    pass


def test_fetching_merges_once_and_the_name_resolves(base: Path) -> None:
    with pytest.raises(DataError, match="pimem models fetch tiny-trained"):
        models.resolve(ModelSpec("tiny-trained"))
    folder = models.fetch("tiny-trained", quiet)
    assert models.resolve(ModelSpec("tiny-trained")) == folder
    was, now = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    parts = load_file(adapters.FOLDER / "tiny-trained" / adapters.WEIGHTS)
    wanted = was[f"{LAYER}.weight"].float() + 0.5 * parts[f"{LAYER}.b"] @ parts[f"{LAYER}.a"]
    assert torch.equal(now.pop(f"{LAYER}.weight"), wanted.to(was.pop(f"{LAYER}.weight").dtype))
    assert all(torch.equal(now[name], was[name]) for name in was)
    assert now.keys() == was.keys()
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert models.fetch("tiny-trained", quiet) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert {row.name: row.folder for row in models.listing()}["tiny-trained"] == folder
    assert models.fingerprint(folder) != models.fingerprint(base)


def test_a_base_with_other_weights_is_refused(base: Path) -> None:
    manifest = adapters.FOLDER / "tiny-trained" / adapters.MANIFEST
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(facts | {"base_fingerprint": "0" * 16}))
    with pytest.raises(DataError, match="was trained on 0000000000000000"):
        models.fetch("tiny-trained", quiet)


def test_a_damaged_adapter_is_refused_and_a_newer_one_merged_again(base: Path) -> None:
    folder = models.fetch("tiny-trained", quiet)
    own = adapters.FOLDER / "tiny-trained"
    parts = load_file(own / adapters.WEIGHTS)
    save_file({name: 2 * part for name, part in parts.items()}, own / adapters.WEIGHTS)
    adapter = adapters.read(own)
    with pytest.raises(DataError, match="damaged"):
        adapters.merge(adapter, base, folder)
    facts = json.loads((own / adapters.MANIFEST).read_text())
    digest = hashlib.sha256((own / adapters.WEIGHTS).read_bytes()).hexdigest()
    (own / adapters.MANIFEST).write_text(json.dumps(facts | {"sha256": digest}))
    with pytest.raises(DataError, match="made from an earlier adapter"):
        models.resolve(ModelSpec("tiny-trained"))
    before = load_file(folder / "model.safetensors")[f"{LAYER}.weight"]
    models.fetch("tiny-trained", quiet)
    assert not torch.equal(load_file(folder / "model.safetensors")[f"{LAYER}.weight"], before)


def test_a_manifest_that_does_not_read_is_named(tmp_path: Path) -> None:
    (tmp_path / adapters.MANIFEST).write_text("{}")
    with pytest.raises(DataError, match="not the manifest of an adapter"):
        adapters.read(tmp_path)


def test_the_shipped_adapter_is_whole_and_small_enough() -> None:
    shipped = adapters.shipped()
    assert "smollm2-135m-pimem" in shipped
    for adapter in shipped.values():
        weights = adapter.folder / adapters.WEIGHTS
        assert weights.stat().st_size < 16_000_000
        assert hashlib.sha256(weights.read_bytes()).hexdigest() == adapter.sha256
        assert adapter.base in models.CATALOGUE
