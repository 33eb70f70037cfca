"""An adapter becomes plain weights once; another base or damage is refused."""

from __future__ import annotations

import dataclasses
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
    facts = {
        "base": "tiny",
        "base_fingerprint": models.fingerprint(folder),
        "scale": 0.5,
        "licence": "Apache-2.0",
        "about": "a test",
    }
    adapters.save({f"{LAYER}.a": torch.randn(2, columns), f"{LAYER}.b": torch.randn(rows, 2)}, own, facts)
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
    parts = load_file(adapters.FOLDER / "tiny-trained" / "adapter.safetensors")
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
    weights = own / "adapter.safetensors"
    twice = {name: 2 * part for name, part in load_file(weights).items()}
    save_file(twice, weights)
    adapter = adapters.read(own)
    with pytest.raises(DataError, match="damaged"):
        adapters.merge(adapter, base, folder)
    weights.unlink()
    with pytest.raises(DataError, match=r"adapter.safetensors: missing"):
        adapters.merge(adapter, base, folder)
    adapters.save(twice, own, json.loads((own / adapters.MANIFEST).read_text()))
    with pytest.raises(DataError, match="made from an earlier adapter"):
        models.resolve(ModelSpec("tiny-trained"))
    before = load_file(folder / "model.safetensors")[f"{LAYER}.weight"]
    models.fetch("tiny-trained", quiet)
    assert not torch.equal(load_file(folder / "model.safetensors")[f"{LAYER}.weight"], before)


@pytest.mark.parametrize("files", [None, {}, [], {"../x": "0" * 64}, {"x": "short"}])
def test_a_manifest_that_does_not_read_is_named(base: Path, files: object) -> None:
    path = adapters.FOLDER / "tiny-trained" / adapters.MANIFEST
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"files": files} if files is not None else {}))
    with pytest.raises(DataError, match="not the manifest of an adapter"):
        adapters.read(path.parent)


def test_slices_of_the_rank_add_up_and_stay_small(tmp_path: Path) -> None:
    made = {f"{LAYER}.a": torch.randn(12, 40), f"{LAYER}.b": torch.randn(30, 12)}
    facts = {"base": "x", "base_fingerprint": "y", "scale": 1.0, "licence": "z", "about": "a test"}
    adapters.save(made, tmp_path, facts, largest=1500)
    adapter = adapters.read(tmp_path)
    assert list(adapter.files) == [f"adapter-{i}-of-3.safetensors" for i in (1, 2, 3)]
    ranks = [load_file(tmp_path / name)[f"{LAYER}.a"].shape[0] for name in adapter.files]
    assert ranks == [5, 5, 2]
    assert all(torch.equal(value, made[name]) for name, value in adapters.factors(adapter).items())
    save_file({"other.a": torch.zeros(1, 2)}, tmp_path / "adapter-2-of-3.safetensors")
    with pytest.raises(DataError, match=r"adapter-2-of-3\.safetensors: damaged"):
        adapters.factors(adapter)


def test_the_shipped_adapter_is_whole_and_small_enough() -> None:
    shipped = adapters.shipped()
    assert "smollm2-135m-pimem" in shipped
    for adapter in shipped.values():
        assert all((adapter.folder / name).stat().st_size < adapters.LARGEST for name in adapter.files)
        assert {name.rpartition(".")[2] for name in adapters.factors(adapter)} == {"a", "b"}
        assert adapter.base in models.CATALOGUE
