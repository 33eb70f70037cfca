"""Weights at the end of a run, and the low-rank difference that carries them; logs of a run that goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pimem import adapters
from pimem.config import ModelSpec, PiMemSpec
from pimem.errors import DataError, StoreError
from pimem.models import fingerprint
from pimem.training import export, logs, lora, rewards
from pimem.training.question_sets import Portion, QuestionSet
from pimem.training.spec import Run, TrainSpec

METHOD = PiMemSpec()


@pytest.fixture
def run(tiny_model: Path, tmp_path: Path) -> Run:
    """A run whose checkpoint of step 3 lies in `out`: the tiny model, its first layer moved by a matrix of rank 2."""
    spec = TrainSpec(
        questions=QuestionSet((Portion("niah_single_1", 8, 700),)),
        method=METHOD,
        reward=rewards.reward_spec(METHOD),
        model=ModelSpec(str(tiny_model), window=1024, dtype="float32"),
        batch=8,
        adapter_rank=2,
    )
    return Run(spec, tiny_model, fingerprint(tiny_model), tmp_path / "questions")


NAME = "model.layers.0.self_attn.q_proj.weight"


def checkpoint(run: Run, out: Path) -> dict[str, torch.Tensor]:
    weights = load_file(run.model / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    shape = weights[NAME].shape
    step = torch.randn(shape[0], 2, generator=generator) @ torch.randn(2, shape[1], generator=generator)
    weights[NAME] = weights[NAME] + step / 64
    folder = out / "checkpoints" / "global_step_3" / "actor" / "huggingface"
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors")
    (out / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("3")
    return weights


def test_the_exported_folder_is_a_whole_model(run: Run, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    weights = checkpoint(run, tmp_path)
    folder = export.weights(run, tmp_path, 3, report=lambda _: None)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert torch.equal(model.state_dict()[NAME], weights[NAME])
    assert AutoTokenizer.from_pretrained(folder)("x")["input_ids"]
    assert json.loads((folder / "training.json").read_text())["step"] == 3


def test_the_adapter_merges_back_to_the_trained_weights(run: Run, tmp_path: Path) -> None:
    weights = checkpoint(run, tmp_path)
    export.weights(run, tmp_path, 3, report=lambda _: None)
    adapter = adapters.read(tmp_path / "adapter")
    assert adapter.base_fingerprint == run.fingerprint
    merged = adapters.merged(load_file(run.model / "model.safetensors"), adapters.factors(adapter), 1.0)
    assert torch.allclose(merged[NAME], weights[NAME], atol=2e-3)
    assert json.loads((tmp_path / "adapter" / "adapter.json").read_text())["kept"] > 0.999


def test_weights_of_another_model_are_refused(run: Run, tmp_path: Path) -> None:
    checkpoint(run, tmp_path)
    file = tmp_path / "checkpoints" / "global_step_3" / "actor" / "huggingface" / "model.safetensors"
    save_file({NAME: torch.zeros(3, 3)}, file)
    with pytest.raises(DataError, match="a checkpoint of another model"):
        export.weights(run, tmp_path, 3, report=lambda _: None)


def test_nothing_to_export_is_said(run: Run, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="train at least to the first checkpoint"):
        export.weights(run, tmp_path, 0)


def test_difference_keeps_what_its_rank_can() -> None:
    generator = torch.Generator().manual_seed(0)
    u, _ = torch.linalg.qr(torch.randn(20, 3, generator=generator, dtype=torch.float64))
    v, _ = torch.linalg.qr(torch.randn(12, 3, generator=generator, dtype=torch.float64))
    step = (u * torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)) @ v.T
    base = {"m.layers.0.a.weight": torch.zeros(20, 12), "norm.weight": torch.zeros(4)}
    trained = {"m.layers.0.a.weight": step.float(), "norm.weight": torch.zeros(4)}
    for rank, share in ((1, 9 / 14), (2, 13 / 14), (3, 1.0), (9, 1.0)):
        factors, kept = lora.difference(base, trained, rank)
        assert kept == pytest.approx(share, abs=1e-3)
        assert factors["m.layers.0.a.b"].shape == (20, min(rank, 12))
    trained["norm.weight"] = torch.full((4,), 7**0.5 / 2)
    assert lora.difference(base, trained, 3)[1] == pytest.approx(14 / (14 + 7), abs=1e-3)


def test_no_difference_and_other_architectures_are_errors() -> None:
    base = {"m.layers.0.a.weight": torch.zeros(2, 2)}
    with pytest.raises(DataError, match="nothing to keep"):
        lora.difference(base, base, 1)
    with pytest.raises(DataError, match="no difference"):
        lora.difference(base, {"m.layers.0.a.weight": torch.zeros(3, 2)}, 1)


def test_logs_forget_what_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / logs.STEPS
    for step in (1, 2, 3):
        logs.append(path, step, [{"loss": step / 2}, {"loss": 0}])
    with path.open("a") as file:
        file.write('{"step": 3, "lo')
    assert len(logs.read(path)) == 6
    logs.forget(path, 2)
    assert [r["step"] for r in logs.read(path)] == [1, 1, 2, 2]
    logs.append(path, 3, [{"loss": 9}])
    assert logs.read(path)[-1]["loss"] == 9
    logs.forget(tmp_path / "none.jsonl", 1)


def test_a_damaged_log_is_not_taken_for_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / logs.STEPS
    path.write_text('{"step": 1}\nnot json\n{"step": 2}\n')
    with pytest.raises(StoreError, match="line 2"):
        logs.read(path)


def test_a_folder_that_is_gone_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.rmtree(folder)
    with pytest.raises(StoreError, match="cannot be written"):
        logs.append(folder / logs.STEPS, 1, [{}])
