"""The whole loop on a CPU: verl's trainer, vLLM's rollout, weights exchanged, a checkpoint, and a run that goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

from pimem.training import logs

PROMPTS = """\
name: terse
version: "1"
answer_form: boxed
phases:
  read: "Q {question} M {memory} C {chunk}"
  merge: "Q {question} M {memory} O {observations}"
  final: "Q {question} M {memory}"
"""


def train(folder: Path, *changes: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pimem.cli", "train", str(folder / "train.yaml"), "--out", str(folder / "out")]
    environment = {**os.environ, "PIMEM_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([*command, "--set", *changes], capture_output=True, text=True, env=environment, timeout=1500)


@pytest.mark.slow
@pytest.mark.engine
def test_two_steps_then_one_more(tiny_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("verl")
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "prompts.yaml").write_text(PROMPTS)
    portion = {"task": "niah_single_1", "questions": 16, "length": 700, "params": {"haystack": "noise"}}
    settings = {
        "questions": {"portions": [portion]},
        "method": {"method": "pi_mem", "chunk_tokens": 300, "read_tokens": 24, "memory_tokens": 24, "answer_tokens": 16},
        "prompts": str(tmp_path / "prompts"),
        "model": {"path": str(tiny_model), "window": 1024, "dtype": "float32"},
        "batch": 4,
        "mini_batch": 2,
        "group": 2,
        "steps": 2,
        "save_every": 2,
        "adapter_rank": 4,
        "optimiser": {"learning_rate": 1e-3, "warmup_steps": 0},
        "machines": {
            "device": "cpu", "attention": "packed", "output": "responses", "pack_tokens": 2048, "log_prob_tokens": 4096,
            "gpu_memory": 0.2, "workers": 1, "max_batch_tokens": 4096,
        },
    }  # fmt: skip
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(settings))
    out = tmp_path / "out"

    done = train(tmp_path, "steps=2")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    first = logs.read(out / logs.TRAJECTORIES)
    assert [r["step"] for r in first] == [1] * 8 + [2] * 8
    # Every trajectory has a row a call: three reads a turn, the merges, the final answer.
    assert all(r["rows"] >= 4 and not r["failed"] for r in first)
    steps = logs.read(out / logs.STEPS)
    assert [s["step"] for s in steps] == [1, 2]
    assert all(s["pimem/updates"] == 2 and s["pimem/trajectories"] == 8 for s in steps)
    # Rollout and training give the same tokens the same probabilities: weights arrive, and rows are what the server saw.
    assert all(s["training/rollout_probs_diff_max"] < 1e-4 for s in steps)
    assert steps[1]["actor/kl_loss"] >= 0

    again = train(tmp_path, "steps=3")
    assert again.returncode == 0, again.stdout[-3000:] + again.stderr[-3000:]
    assert [s["step"] for s in logs.read(out / logs.STEPS)] == [1, 2, 3]
    assert len(logs.read(out / logs.TRAJECTORIES)) == 24
    assert json.loads((out / "model" / "training.json").read_text())["step"] == 3
    before, after = load_file(tiny_model / "model.safetensors"), load_file(out / "model" / "model.safetensors")
    assert before.keys() == after.keys()
    assert any((after[name] - before[name]).abs().max() > 0 for name in before)
    assert (out / "adapter" / "adapter.safetensors").stat().st_size < 16 * 2**20

    other = train(tmp_path, "group=4")
    assert other.returncode == 2
    assert "another group" in other.stderr
