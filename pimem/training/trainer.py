"""verl's synchronous trainer with what whole trajectories need: advantages and mini-batches by trajectory and prompt, own logs.

verl's own counts mini-batches in rows, averages its metrics over rows and gives a lone survivor its raw reward. The subclass
takes the registry's place "sync", since verl treats any other name as asynchronous.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.utils.seqlen_balancing import calculate_workload

from pimem.errors import EngineError, StoreError
from pimem.training import batches, logs
from pimem.training.spec import Run

POLL_SECONDS = 0.2
"""Between looks at whether a rollout step is complete."""
READ = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask", "routed_experts")
"""Of a row: all that a forward pass reads. Left to itself verl carries every field of every row to the GPU's process each time
and cuts all of them into packs, Python objects included, which took as long as the pass of a small model."""
LEARNED = (*READ, "old_log_probs", "ref_log_prob", "advantages", "rollout_is_weights")
"""Of a row: all that an update reads. What a row does not have is left out."""


class Trainer(PPOTrainerSync):
    """Trains the run in the folder `pimem.folder` of verl's configuration."""

    total_training_steps: int

    def __init__(self, config: Any):
        super().__init__(config)
        self.folder = Path(config.pimem.folder)
        self.run = Run.read(self.folder)
        self.replay_buffer.poll_interval = POLL_SECONDS
        self.until = float(config.pimem.until)
        self._plan: batches.Plan | None = None
        self._updates = 1

    def fit(self, agent_loop_manager: Any) -> None:
        """Forgets what an interrupted run logged after the checkpoint it goes on from, then trains."""
        for name in (logs.TRAJECTORIES, logs.STEPS):
            logs.forget(self.folder / name, self.global_steps)
        try:
            super().fit(agent_loop_manager)
        except EngineError:
            # The weights are those of the last whole step, which its checkpoint may not have yet.
            self.global_steps -= 1
            if self.global_steps % self.config.trainer.save_freq:
                self._save_checkpoint()
            raise

    def on_step_end(self) -> None:
        """Makes the next step the last one where time would not suffice for another two; that one is saved as any last is."""
        super().on_step_end()
        if self.until and time.time() + 2 * (time.time() - self._began) > self.until:
            self.total_training_steps = min(self.total_training_steps, self.global_steps + 1)

    def on_step_begin(self) -> None:
        self._began = time.time()
        super().on_step_begin()

    def _balance_batch(self, batch: Any, metrics: dict, *_: Any, **__: Any) -> Any:
        """Sorts a rollout step out: advantages, trajectories left out, rows in the order of mini-batches, pads."""
        said = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"])
        made = batches.plan(
            batch.keys, list(said["extra_fields"]), self.run.spec.reward.mixing, self.run.spec.objective.drop_equal
        )
        metrics.update(batches.summary(made.trajectories))
        logs.append(self.folder / logs.TRAJECTORIES, self.global_steps, made.trajectories)
        self._plan = made
        gone = [key for key in batch.keys if key not in made.advantages]
        if gone:
            tq.kv_clear(keys=gone, partition_id=batch.partition_id)
            batch = batch.select_keys([key for key in batch.keys if key in made.advantages])
        lengths = torch.tensor([tag["seq_len"] for tag in batch.tags], dtype=torch.int64)
        ranks = self._ranks()
        self._updates, pads, order = batches.arrange(
            [made.prompts[key] for key in batch.keys], calculate_workload(lengths).tolist(), self.run.spec.updates, ranks
        )
        if pads:
            batch = upsample_batch_to_divisible_size(batch, len(batch.keys) + pads, self.tokenizer.eos_token_id)
        batch.reorder(order)
        metrics |= {"pimem/pads": float(pads), "pimem/updates": float(self._updates if made.learns else 0)}
        return batch

    def _ranks(self) -> int:
        group = self.actor_rollout_wg
        if "actor" not in group._dispatch_info:
            group._dispatch_info["actor"] = group._query_dispatch_info("actor")
        return max(group._dispatch_info["actor"]) + 1

    def _compute_old_log_prob(self, batch: Any, metrics: dict) -> Any:
        batch.fields = list(READ)
        return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: Any, metrics: dict) -> Any:
        batch.fields = list(READ)
        return super()._compute_ref_log_prob(batch, metrics)

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        """Each row's advantage on each of its response tokens (equation 5, or its mix with single turns')."""
        assert self._plan is not None
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
        values = [self._plan.advantages.get(key, 0.0) for key in batch.keys]
        spread = torch.nested.as_nested_tensor(
            [value * mask.to(torch.float32) for value, mask in zip(values, data["response_mask"].unbind(), strict=True)],
            layout=torch.jagged,
        )
        fields = TensorDict({"advantages": spread, "returns": spread.clone()}, batch_size=len(batch.keys))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        """One optimiser step a mini-batch of prompts; none where no group has anything to learn from."""
        assert self._plan is not None
        if not self._plan.learns:
            return batch
        actor = self.config.actor_rollout_ref.actor
        size = len(batch.keys) // self._updates
        batch.fields = list(LEARNED)
        batch.extra_info |= {
            "calculate_entropy": False,
            "distillation_use_topk": False,
            "distillation_only": False,
            "global_batch_size": size,
            "mini_batch_size": size,
            "epochs": actor.ppo_epochs,
            "seed": actor.data_loader_seed,
            # The order is the mini-batches'.
            "dataloader_kwargs": {"shuffle": False},
            "temperature": self.config.actor_rollout_ref.rollout.temperature,
        }
        said = rename_dict(self.actor_rollout_wg.update_actor(batch)["metrics"], "actor/")
        said["perf/mfu/actor"] = said.pop("actor/mfu")
        metrics.update(reduce_metrics(said))
        return batch

    def _compute_metrics(self, batch: Any, metrics: dict, timing_raw: dict, global_steps: int, epoch: int) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)
        plain = {name: number for name, value in metrics.items() if (number := _number(value)) is not None}
        logs.append(self.folder / logs.STEPS, global_steps, [plain])

    def _save_checkpoint(self) -> None:
        """Saves, or says why not and leaves the one before in place. Raises `StoreError` for a disk that is full."""
        target = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        needed, free = self._size_of_last(target.parent), shutil.disk_usage(self.folder).free
        if needed > free:
            raise StoreError(self._full(f"it takes about {needed:,} bytes and {free:,} are free"))
        try:
            super()._save_checkpoint()
        except Exception as error:
            shutil.rmtree(target, ignore_errors=True)
            raise StoreError(self._full(f"{type(error).__name__}: {error}")) from error

    def _full(self, reason: str) -> str:
        last = Path(self.config.trainer.default_local_dir) / "latest_checkpointed_iteration.txt"
        kept = f"that of step {last.read_text().strip()} is whole" if last.is_file() else "there is none yet"
        return (
            f"{self.folder}: the checkpoint of step {self.global_steps} could not be written ({reason}); {kept}. Make room and "
            "run the same command again: it goes on from there"
        )

    def _size_of_last(self, folder: Path) -> int:
        """Bytes of the newest checkpoint; before the first one a guess from the weights: float32, twice more for AdamW."""
        known = sorted(folder.glob("global_step_*"), key=lambda p: int(p.name.rpartition("_")[2]))
        if known:
            return sum(p.stat().st_size for p in known[-1].rglob("*") if p.is_file())
        weights = sum(p.stat().st_size for p in self.run.model.glob("*.safetensors"))
        return 2 * 3 * weights


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


class Runner(TaskRunnerV1.__ray_actor_class__):  # type: ignore[misc]
    """verl's task runner with the trainer above."""

    def run(self, config: Any) -> None:
        TRAINER_REGISTRY["sync"] = Trainer
        super().run(config)
