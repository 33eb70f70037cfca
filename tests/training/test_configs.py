"""Training specifications: the shipped ones, what is refused, and what verl makes of the paper's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pimem.config import PiMemSpec
from pimem.errors import ConfigError, DataError, StoreError
from pimem.training import launch, settings, spec
from pimem.training.spec import Run, TrainSpec

SHIPPED = sorted(path for path in launch.CONFIGS.glob("*.yaml") if not path.name.startswith("cold_start"))
TABLE_1 = {
    "pi_mem_qwen3.5_35b_a3b": {
        "documents": 1000, "chunk": 15_000, "output": 4096, "group": 8, "steps": 80, "samples": 10_240, "gpus": 32,
    },
    "pi_mem_qwen2.5_7b": {
        "documents": 200, "chunk": 5000, "output": 1024, "group": 16, "steps": 240, "samples": 30_720, "gpus": 16,
    },
}  # fmt: skip
"""Supplement Table 1 where its columns differ."""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_configuration_builds_and_survives_its_own_file(path: Path) -> None:
    train = spec.load(path)
    again = json.loads(json.dumps(spec.config.as_dict(train)))
    assert spec.config.build(TrainSpec, again) == train


@pytest.mark.parametrize("name", TABLE_1)
def test_the_papers_set_ups_are_supplement_table_1(name: str) -> None:
    train, row = spec.load(launch.find(name)), TABLE_1[name]
    method = train.method
    assert isinstance(method, PiMemSpec)
    assert [p.length for p in train.questions.portions] == [row["documents"]]
    assert method.chunk_tokens == row["chunk"]
    assert {method.read_tokens, method.memory_tokens, method.answer_tokens} == {row["output"]}
    assert method.max_turns == 3
    assert (train.batch, train.mini_batch, train.updates) == (128, 8, 16)
    assert (train.group, train.steps, train.batch * train.steps) == (row["group"], row["steps"], row["samples"])
    assert (train.temperature, train.top_p) == (1.0, 1.0)
    optimiser = train.optimiser
    assert (optimiser.learning_rate, optimiser.warmup_steps, optimiser.weight_decay) == (1e-6, 20, 0.01)
    assert (optimiser.beta1, optimiser.beta2, optimiser.epsilon, optimiser.clip_norm) == (0.9, 0.999, 1e-8, 1.0)
    assert (train.objective.kl, train.objective.clip, train.objective.dual_clip) == (1e-3, 0.2, None)
    assert train.reward.turn_bonus == 0.2
    assert train.reward.bonus_on == "all"
    assert train.machines.nodes * train.machines.gpus == row["gpus"]
    assert train.model.template_args == {"enable_thinking": False}


def test_baselines_are_their_authors() -> None:
    gru = [spec.load(launch.find(f"gru_mem_qwen2.5_{size}")) for size in ("3b", "7b")]
    assert [(g.updates, g.reward.mixing, g.group, g.response_tokens) for g in gru] == [(1, 0.9, 16, 2048)] * 2
    assert spec.load(launch.find("gru_mem_qwen2.5_7b"), {"reward.alpha": 0.5}).reward.mixing == 0.5
    assert spec.load(launch.find("rememr1_qwen2.5_7b")).reward.mixing == 0.8
    released = spec.load(launch.find("mem_agent_qwen2.5_7b"))
    assert (released.updates, released.objective.dual_clip, released.method.on_failure) == (16, 3.0, "continue")


def small(**fields: Any) -> dict[str, Any]:
    return {
        "questions": {"portions": [{"task": "niah_single_1", "questions": 8, "length": 700, "params": {"haystack": "noise"}}]},
        "method": {"method": "pi_mem", "chunk_tokens": 300, "max_turns": 2},
        "batch": 4,
        "mini_batch": 2,
        "group": 2,
        **fields,
    }


def load(tmp_path: Path, changes: dict[str, Any] | None = None, **fields: Any) -> TrainSpec:
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(small(**fields)))
    return spec.load(path, changes)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mini_batch": 3}, "3 prompts do not divide a batch of 4; one of 1, 2, 4 does"),
        ({"group": 1}, "at least 2"),
        ({"method": {"method": "pi_mem", "max_turns": 1}}, "divides by zero"),
        ({"method": {"method": "rag"}}, "there is no reward for it"),
        ({"method": {"chunk_tokens": 300}}, "must say what is trained"),
        ({"keep": 1}, "at least 2"),
        ({"temperature": 0}, "all alike"),
        ({"objective": {"dual_clip": 0.5}}, "must lie above 1"),
        ({"machines": {"pack_tokens": 1000}}, "rows are never cut"),
        ({"machines": {"tensor_parallel": 2, "gpus": 2}}, "use megatron"),
        ({"machines": {"rollout_parallel": 3, "gpus": 8}}, "does not divide the 8 GPUs"),
        ({"machines": {"call_timeout": 0}}, "is no time"),
        ({"optimiser": {"learning_rate": 0}}, "give more than 0"),
        ({"learning_rate": 1e-6}, "unknown key 'learning_rate'"),
        ({"reward": {"kind": "mem_agent"}}, "contradicts the method"),
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, **fields)


def test_changes_reach_nested_fields(tmp_path: Path) -> None:
    train = load(tmp_path, {"optimiser.learning_rate": 3e-5, "machines.gpus": 2, "steps": 7})
    assert (train.optimiser.learning_rate, train.machines.gpus, train.steps) == (3e-5, 2, 7)
    with pytest.raises(ConfigError, match="steps has no fields"):
        load(tmp_path, {"steps.more": 1}, steps=3)


def test_semantics_are_a_preset_below_the_file(tmp_path: Path) -> None:
    released = load(tmp_path, semantics="released")
    assert (released.reward.bonus_on, released.method.check_rule) == ("correct", "lenient")  # type: ignore[union-attr]
    assert load(tmp_path, semantics="released", reward={"bonus_on": "all"}).reward.bonus_on == "all"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(load(tmp_path), tmp_path / "model", "abc", tmp_path / "questions")


def test_a_folder_belongs_to_one_run(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run.claim(out)
    assert Run.read(out) == run
    longer = replace(run, spec=replace(run.spec, steps=900, machines=replace(run.spec.machines, gpus=2)))
    longer.claim(out)
    assert Run.read(out).spec.steps == 900
    with pytest.raises(DataError, match="another --out"):
        replace(run, fingerprint="def").claim(out)
    with pytest.raises(ConfigError, match="another group"):
        replace(run, spec=replace(run.spec, group=4)).claim(out)
    with pytest.raises(StoreError, match="not what a training run writes"):
        Run.read(tmp_path)


def test_what_verl_is_told(run: Run, tmp_path: Path) -> None:
    said = settings.settings(run, tmp_path / "out")
    assert said["actor_rollout_ref.actor.clip_ratio_c"] == 1e9
    assert said["actor_rollout_ref.rollout.max_model_len"] == run.spec.model.window
    assert said["data.max_prompt_length"] + said["data.max_response_length"] == run.spec.model.window
    assert said["actor_rollout_ref.actor.use_kl_loss"] is True
    no_kl = replace(run, spec=replace(run.spec, objective=replace(run.spec.objective, kl=0.0, dual_clip=3.0)))
    said = settings.settings(no_kl, tmp_path / "out")
    assert said["actor_rollout_ref.actor.use_kl_loss"] is False
    assert said["actor_rollout_ref.actor.clip_ratio_c"] == 3.0
    machines = replace(run.spec.machines, attention="packed", log_prob_tokens=50_000)
    said = settings.settings(replace(run, spec=replace(run.spec, machines=machines)), tmp_path / "out")
    assert said["actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"] == 50_000
    assert said["actor_rollout_ref.ref.log_prob_max_token_len_per_gpu"] == 50_000
    assert said["actor_rollout_ref.model.external_lib"] == "pimem.training.attention"
    machines = replace(machines, output="responses")
    said = settings.settings(replace(run, spec=replace(run.spec, machines=machines)), tmp_path / "out")
    assert said["actor_rollout_ref.model.external_lib"] == "pimem.training.places"
    assert settings.environment(run.spec)["PYTHONPATH"].split(":")[0] == str(Path(launch.__file__).parents[2])
    assert "VLLM_BATCH_INVARIANT" not in settings.environment(run.spec)
    assert settings.environment(replace(run.spec, seeded=True))["VLLM_BATCH_INVARIANT"] == "1"


@pytest.mark.engine
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_verl_takes_every_configuration(path: Path, tmp_path: Path) -> None:
    """Composed and validated by verl itself; the paper's two with their parallelism."""
    pytest.importorskip("verl")
    train = spec.load(path)
    made = settings.compose(settings.settings(Run(train, tmp_path, "x", tmp_path), tmp_path / "out"), train.machines.backend)
    actor, rollout = made.actor_rollout_ref.actor, made.actor_rollout_ref.rollout
    assert (made.data.train_batch_size, actor.ppo_mini_batch_size, rollout.n) == (train.batch, train.mini_batch, train.group)
    assert made.trainer.nnodes * made.trainer.n_gpus_per_node == train.machines.nodes * train.machines.gpus
    assert actor.optim.lr == train.optimiser.learning_rate
    assert rollout.tensor_model_parallel_size == train.machines.rollout_parallel
    if train.machines.backend == "megatron":
        assert (actor.megatron.tensor_model_parallel_size, actor.megatron.expert_model_parallel_size) == (2, 8)
        assert actor.strategy == made.actor_rollout_ref.ref.strategy == "megatron"
        assert made.actor_rollout_ref.ref.megatron.expert_model_parallel_size == 8
        assert actor.megatron.override_transformer_config.moe_aux_loss_coeff == 1e-3
    else:
        assert actor.strategy == "fsdp2"


@pytest.mark.engine
def test_verl_settings_of_ones_own_are_checked(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("verl")
    train = replace(run.spec, verl={"actor_rollout_ref.actor.no_such_setting": 1})
    with pytest.raises(ConfigError, match=r"verl\.actor_rollout_ref\.actor\.no_such_setting"):
        settings.compose(settings.settings(replace(run, spec=train), tmp_path))
    train = replace(run.spec, verl={"actor_rollout_ref.actor.loss_agg_mode": "median"})
    with pytest.raises(ConfigError, match="verl refuses"):
        settings.compose(settings.settings(replace(run, spec=train), tmp_path))
