"""YaRN and longer windows: written as engines read them, read back from a model that has started, refused where wrong."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_bench import KEY, started

from pimem import models, rope
from pimem.config import EngineSpec, ModelSpec
from pimem.engines.base import build
from pimem.errors import ConfigError, DataError, EngineError
from pimem.records import Sampling

LLAMA = {"model_type": "llama", "max_position_embeddings": 2048, "rope_theta": 10000.0}
QWEN = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "max_position_embeddings": 262144,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e7,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
        },
    },
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIMEM_HOME", str(tmp_path / "home"))


def variant(tiny_model: Path, folder: Path, **changes: Any) -> str:
    """The tiny model under another configuration."""
    shutil.copytree(tiny_model, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in (config | changes).items() if v is not None}))
    return str(folder)


def test_the_scaling_is_written_in_the_place_and_with_the_numbers_that_every_engine_reads() -> None:
    made = rope.scaled(LLAMA, ModelSpec("m", yarn=4.0))
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert made == {**LLAMA, "max_position_embeddings": 8192, "rope_scaling": scaling}
    nested = rope.scaled(QWEN, ModelSpec("m", yarn=4.0))["text_config"]
    assert nested["max_position_embeddings"] == 1048576
    before = QWEN["text_config"]["rope_parameters"]  # type: ignore[index]
    assert nested["rope_parameters"] == before | scaling | {"original_max_position_embeddings": 262144}
    assert rope.positions(made) == rope.Positions("yarn", 4.0, 2048, 8192)


def test_a_configuration_as_its_makers_advise_gets_the_window_that_later_engines_want() -> None:
    advised = {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}}
    made = rope.scaled(advised, ModelSpec("m", yarn=4.0))
    assert made["max_position_embeddings"] == 8192
    assert made["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert rope.scaled(made, ModelSpec("m", yarn=4.0)) == made


def test_a_configuration_that_leaves_its_rotary_base_out_is_rotary_all_the_same() -> None:
    without = {k: v for k, v in LLAMA.items() if k != "rope_theta"}
    assert rope.scaled(without, ModelSpec("m", yarn=2.0))["max_position_embeddings"] == 4096


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"model_type": "gpt2", "n_positions": 1024, "max_position_embeddings": 1024}, "has no rotary positions"),
        ({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, r"already scales its positions \(linear"),
        ({**LLAMA, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, r"already scales its positions \(yarn, factor 2\)"),
        ({"model_type": "llama", "rope_theta": 1e4}, "does not say how long its own window is"),
        (
            {
                **LLAMA,
                "rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}},
            },
            "other positions in other layers",
        ),
    ],
)
def test_a_model_that_yarn_cannot_scale_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=f"model.yarn: m .*{says}"):
        rope.scaled(config, ModelSpec("m", yarn=4.0))


@pytest.mark.parametrize(
    ("fields", "says"), [({"yarn": 0.5}, "yarn: 0.5 is too little"), ({"yarn": 2.0, "beyond": True}, "beyond:")]
)
def test_a_factor_that_makes_no_sense_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ModelSpec(**fields)


def test_the_window_grows_by_the_factor_and_no_further(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"8,192 tokens are more than the 2,048 that .* was made for"):
        models.resolve(ModelSpec(str(tiny_model), window=8192))
    folder = models.resolve(ModelSpec(str(tiny_model), window=8192, yarn=4.0))
    assert folder != tiny_model
    assert models.window_of(folder) == 8192
    assert (folder / "model.safetensors").resolve() == (tiny_model / "model.safetensors").resolve()
    assert models.resolve(ModelSpec(str(tiny_model), window=100, yarn=4.0)) == folder
    assert models.fingerprint(folder) != models.fingerprint(tiny_model)
    with pytest.raises(ConfigError, match=r"8,193 tokens are more than the 8,192 that .* reaches with yarn=4"):
        models.resolve(ModelSpec(str(tiny_model), window=8193, yarn=4.0))


def test_links_that_lead_nowhere_are_made_again(tiny_model: Path, tmp_path: Path) -> None:
    spec = ModelSpec(variant(tiny_model, tmp_path / "m"), yarn=2.0)
    folder = models.resolve(spec)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "gone")
    assert models.resolve(spec) == folder
    assert (folder / "model.safetensors").stat().st_size == (tiny_model / "model.safetensors").stat().st_size


def test_a_model_goes_on_beyond_its_window_where_that_is_asked_for(tiny_model: Path, tmp_path: Path) -> None:
    folder = models.resolve(ModelSpec(str(tiny_model), window=5000, beyond=True))
    assert models.window_of(folder) == 5000
    assert rope.positions(json.loads((folder / "config.json").read_text())).kind == "default"
    assert models.resolve(ModelSpec(str(tiny_model), window=2000, beyond=True)) == tiny_model
    with pytest.raises(ConfigError, match=r"model\.beyond: m has no rotary positions"):
        rope.beyond({"model_type": "gpt2", "max_position_embeddings": 9}, ModelSpec("m", window=10, beyond=True))


def test_a_started_model_runs_with_yarn_and_answers_beyond_its_old_window(tiny_model: Path) -> None:
    plain, long = ModelSpec(str(tiny_model)), ModelSpec(str(tiny_model), window=4096, yarn=4.0)
    prompt = np.arange(3000, dtype=np.uint32) % 300 + 50
    frequencies = []
    for spec in (plain, long):
        with started(build, tiny_model, EngineSpec(device="cpu"), spec) as bench:
            rotary = bench.engine._weights.model.rotary_emb  # type: ignore[attr-defined]
            frequencies.append((rotary.inv_freq.tolist(), rotary.attention_scaling))
            said = bench.engine.info.details
            if spec is plain:
                assert (said["rope"], said["own_window"]) == ("default", 2048)
                with pytest.raises(EngineError, match=r"exceed the window of 2,048"):
                    bench.portal.call(bench.engine.generate, prompt, Sampling(max_tokens=4), KEY)
            else:
                assert (said["rope"], said["rope_factor"], said["own_window"]) == ("yarn", 4.0, 8192)
                answer = bench.portal.call(bench.engine.generate, prompt, Sampling(max_tokens=4), KEY)
                assert answer.prompt_tokens == 3000
    (before, _), (after, attention) = frequencies
    assert attention == pytest.approx(0.1 * math.log(4) + 1)
    # The fastest frequency stays, the slowest is divided by the factor: that is YaRN and not plain interpolation.
    assert after[0] == pytest.approx(before[0])
    assert after[-1] == pytest.approx(before[-1] / 4)


def test_an_engine_that_ignores_the_scaling_is_found_out(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rope, "extended", lambda folder, model: folder)
    monkeypatch.setattr(models.rope, "extended", lambda folder, model: folder)
    with (
        pytest.raises(
            EngineError, match=r"model\.yarn: a factor of 4 was asked for and the engine runs with positions 'default'"
        ),
        started(build, tiny_model, EngineSpec(device="cpu"), ModelSpec(str(tiny_model), yarn=4.0)),
    ):
        pass


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"window": 8191, "rope": "yarn", "rope_factor": 4.0}, r"8,192 tokens were asked for and the engine runs with 8191"),
        ({"rope": "yarn", "rope_factor": 4.0}, "the engine runs with None"),
        ({"window": 8192, "rope": "default", "rope_factor": 1.0}, "runs with positions 'default'"),
        ({"window": 8192, "rope": "yarn", "rope_factor": 2.0}, "runs with positions 'yarn', factor 2"),
    ],
)
def test_what_an_engine_reads_back_must_be_what_was_asked_for(said: dict[str, Any], says: str) -> None:
    asked = ModelSpec("m", window=8192, yarn=4.0)
    rope.check(asked, {"window": 8192, "rope": "yarn", "rope_factor": 4.0})
    with pytest.raises(EngineError, match=says) as failure:
        rope.check(asked, said)
    assert not failure.value.retryable


def test_a_loaded_configuration_without_rotary_positions_or_with_senseless_ones() -> None:
    nothing = SimpleNamespace(max_position_embeddings=1024, rope_parameters=None)
    assert rope.read_back(nothing) == {"window": 1024, "rope": "none", "rope_factor": 1.0}
    with pytest.raises(DataError, match="make no sense"):
        rope.read_back(SimpleNamespace(max_position_embeddings=9, rope_parameters={"rope_type": "yarn", "factor": 0.5}))


@pytest.mark.slow
@pytest.mark.engine
def test_vllm_serves_the_extended_window_and_says_so(tiny_model: Path) -> None:
    prompt = np.arange(3000, dtype=np.uint32) % 300 + 50
    engine = EngineSpec(kind="vllm", device="cpu", eager=True, gpu_memory=0.2)
    spec = ModelSpec(str(tiny_model), window=4096, yarn=4.0)
    with started(build, tiny_model, engine, spec) as bench:
        said = bench.engine.info.details
        assert (bench.engine.info.window, said["own_window"], said["rope"], said["rope_factor"]) == (4096, 8192, "yarn", 4.0)
        answer = bench.portal.call(bench.engine.generate, prompt, Sampling(max_tokens=8), KEY)
    with started(build, tiny_model, EngineSpec(device="cpu"), dataclasses.replace(spec)) as bench:
        reference = bench.portal.call(bench.engine.generate, prompt, Sampling(max_tokens=8), KEY)
    assert answer.token_ids == reference.token_ids
