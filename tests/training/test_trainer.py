"""The trainer's own parts, without a cluster: advantages on tokens, mini-batches, a full disk, time that runs out."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pimem.errors import EngineError, StoreError
from pimem.training import batches, logs

pytestmark = pytest.mark.engine
pytest.importorskip("verl")

import torch  # noqa: E402
from transfer_queue import KVBatchMeta  # noqa: E402
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync  # noqa: E402

from pimem.training import trainer as trainers  # noqa: E402
from pimem.training.trainer import Trainer  # noqa: E402


class Queue:
    """verl's store of rows, in memory."""

    def __init__(self, **columns: Any):
        self.columns = columns
        self.put: Any = None
        self.cleared: list[str] = []

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        return {name: self.columns[name] for name in select_fields}

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any) -> Any:
        self.put = fields
        return keys

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        self.cleared += keys


def batch_of(keys: list[str]) -> KVBatchMeta:
    return KVBatchMeta(keys=keys, tags=[{"seq_len": 10 + i} for i in range(len(keys))], partition_id="train")


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    made: Trainer = object.__new__(Trainer)
    made.folder, made.global_steps, made.until = tmp_path, 7, 0.0
    made.run = SimpleNamespace(  # type: ignore[assignment]
        model=tmp_path,
        spec=SimpleNamespace(updates=2, reward=SimpleNamespace(mixing=1.0), objective=SimpleNamespace(drop_equal=True)),
    )
    made.config = SimpleNamespace(trainer=SimpleNamespace(default_local_dir=str(tmp_path / "checkpoints"), save_freq=5))
    made.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0]})
    made.tokenizer = SimpleNamespace(eos_token_id=2)
    return made


def said(reward: float) -> dict[str, Any]:
    zeros = dict.fromkeys(
        ("bonus", "turns", "rows", "prompt_tokens", "response_tokens", "memory_tokens", "truncated", "malformed", "damaged",
         "retries", "checks", "positive", "cached_tokens"), 0,
    )  # fmt: skip
    return {**zeros, "reward": reward, "accuracy": reward, "steps": None, "failed": False, "failure": None, "parts": {}}


def test_a_step_is_sorted_into_mini_batches_of_whole_prompts(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, fields = [], []
    # Prompts a and c differ within their groups, b does not.
    for prompt, scores in (("a", (1.0, 0.0)), ("b", (1.0, 1.0)), ("c", (0.0, 1.0))):
        for session, score in enumerate(scores):
            for index in range(2 + session):
                keys.append(f"{prompt}_{session}_{index}")
                fields.append({"step": -1, **({"trajectory": said(score)} if index == 1 + session else {})})
    queue = Queue(extra_fields=fields)
    monkeypatch.setattr(trainers, "tq", queue)
    metrics: dict[str, Any] = {}
    made = trainer._balance_batch(batch_of(keys), metrics)
    assert queue.cleared == [key for key in keys if key[0] == "b"]
    assert [key[0] for key in made.keys] == ["a"] * 5 + ["c"] * 5
    assert (metrics["pimem/trajectories"], metrics["pimem/updates"], metrics["pimem/pads"]) == (6, 2, 0)
    logged = logs.read(trainer.folder / logs.TRAJECTORIES)
    assert [(r["step"], r["advantage"], r["kept"]) for r in logged] == [
        (7, 0.5, True), (7, -0.5, True), (7, 0.0, False), (7, 0.0, False), (7, -0.5, True), (7, 0.5, True),
    ]  # fmt: skip


def test_advantages_lie_on_the_tokens_of_each_row(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = [torch.ones(3, dtype=torch.int64), torch.tensor([1, 0]), torch.zeros(1, dtype=torch.int64)]
    queue = Queue(response_mask=torch.nested.as_nested_tensor(masks, layout=torch.jagged))
    monkeypatch.setattr(trainers, "tq", queue)
    trainer._plan = batches.Plan([], {"a_0_0": 0.5, "a_0_1": -0.25})
    trainer._compute_advantage(batch_of(["a_0_0", "a_0_1", "pad_0_0"]), {})
    assert [row.tolist() for row in queue.put["advantages"].unbind()] == [[0.5] * 3, [-0.25, 0.0], [0.0]]
    assert [row.tolist() for row in queue.put["returns"].unbind()] == [[0.5] * 3, [-0.25, 0.0], [0.0]]


def test_every_update_is_a_mini_batch_of_the_plan(trainer: Trainer) -> None:
    asked: dict[str, Any] = {}

    def update(batch: Any) -> Any:
        asked.update(batch.extra_info, fields=batch.fields)
        return {"metrics": {"pg_loss": [0.1, 0.3], "mfu": 0.2}}

    trainer.actor_rollout_wg = SimpleNamespace(update_actor=update)
    rollout = SimpleNamespace(temperature=1.0)
    trainer.config.actor_rollout_ref = SimpleNamespace(
        actor=SimpleNamespace(ppo_epochs=1, data_loader_seed=42), rollout=rollout
    )
    trainer._plan, trainer._updates = batches.Plan([]), 4
    metrics: dict[str, Any] = {}
    trainer._update_actor(batch_of(list("abcdefgh")), metrics)
    assert (asked["mini_batch_size"], asked["global_batch_size"], asked["dataloader_kwargs"]) == (2, 2, {"shuffle": False})
    assert metrics["actor/pg_loss"] == pytest.approx(0.2)
    assert {"old_log_probs", "ref_log_prob", "advantages", "loss_mask"} < set(asked["fields"])
    trainer._plan = batches.Plan([], learns=False)
    asked.clear()
    trainer._update_actor(batch_of(list("ab")), metrics)
    assert not asked


@pytest.mark.parametrize("name", ["_compute_old_log_prob", "_compute_ref_log_prob"])
def test_a_pass_without_gradients_is_given_tokens_alone(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    given: list[Any] = []
    monkeypatch.setattr(PPOTrainerSync, name, lambda _, batch, metrics: given.append(batch.fields) or batch)
    batch = batch_of(["a_0_0"])
    assert getattr(trainer, name)(batch, {}) is batch
    assert given == [list(trainers.READ)]
    assert "extra_fields" not in trainers.READ


def test_a_full_disk_leaves_the_last_checkpoint_and_says_so(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trainer.folder / "checkpoints"
    (folder / "global_step_5").mkdir(parents=True)
    (folder / "global_step_5" / "weights").write_bytes(b"x" * 1000)
    (folder / "latest_checkpointed_iteration.txt").write_text("5")
    monkeypatch.setattr(trainers.shutil, "disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(
        StoreError, match=r"step 7 could not be written \(it takes about 1,000 bytes and 10 are free\).*step 5 is whole"
    ):
        trainer._save_checkpoint()
    monkeypatch.undo()

    def torn(_: Any) -> None:
        (folder / "global_step_7").mkdir()
        (folder / "global_step_7" / "half").write_bytes(b"x")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", torn)
    with pytest.raises(StoreError, match="No space left on device"):
        trainer._save_checkpoint()
    assert [p.name for p in folder.glob("global_step_*")] == ["global_step_5"]


def test_a_step_in_which_all_fail_saves_what_was_learned(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise EngineError("all rollouts failed", retryable=False)

    saved: list[int] = []
    monkeypatch.setattr(PPOTrainerSync, "fit", fails)
    monkeypatch.setattr(Trainer, "_save_checkpoint", lambda self: saved.append(self.global_steps))
    with pytest.raises(EngineError):
        trainer.fit(None)
    assert saved == [6]
    trainer.global_steps = 6
    with pytest.raises(EngineError):
        trainer.fit(None)
    assert saved == [6]  # step 5 has its checkpoint


def test_the_step_before_time_runs_out_is_the_last_but_one(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPOTrainerSync, "on_step_end", lambda self: None)
    trainer.total_training_steps = 100
    trainer._began = time.time() - 10
    trainer.until = time.time() + 60
    trainer.on_step_end()
    assert trainer.total_training_steps == 100
    trainer.until = time.time() + 15
    trainer.on_step_end()
    assert trainer.total_training_steps == 8
