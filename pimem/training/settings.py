"""What verl is told: environment, settings by verl's own names, and its whole configuration, checked by verl itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pimem
from pimem.errors import ConfigError, EngineError
from pimem.training.spec import Run, TrainSpec

CHECKPOINTS, LOOPS, ROWS, EVALUATION = "checkpoints", "agent_loops.yaml", "questions.parquet", "evaluation.parquet"
"""Of a run's folder: verl's checkpoints, the entries of the agent loop, and the questions as verl reads them."""
_MISSING = "pip install verl==0.9.1 and what it needs: the extra `gpu` of this package, or `cpu-full` without a GPU"


def environment(train: TrainSpec) -> dict[str, str]:
    """Variables that every process of a run needs before it imports verl."""
    root = str(Path(pimem.__file__).parent.parent)
    path = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != root]
    said = {
        "PYTHONPATH": os.pathsep.join([root, *path]),
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray kills workers by its own count of memory, which shared pages inflate.
        "RAY_memory_monitor_refresh_ms": "0",
        # vLLM's other sampler compiles at first use.
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    if train.seeded and train.machines.device == "cuda":
        # A seed draws the same token only from the same probabilities, which otherwise depend on what else is in the batch.
        said["VLLM_BATCH_INVARIANT"] = "1"
    if train.machines.device == "cpu":
        said |= {"VERL_USE_EXTERNAL_MODULES": "pimem.training.cpu_platform", "VERL_PLATFORM": "cpu"}
    return said


def settings(run: Run, out: Path, resume: bool = True, until: float = 0.0) -> dict[str, Any]:
    """verl's settings by dotted name; a leading + marks one that verl's configuration does not name itself.

    `until`: Unix time at which training should have ended, 0 for none.
    """
    train, machines = run.spec, run.spec.machines
    optimiser, objective = train.optimiser, train.objective
    megatron, cpu = machines.backend == "megatron", machines.device == "cpu"
    full = train.model.dtype == "float32"
    said: dict[str, Any] = {
        "+pimem.folder": str(out),
        "+pimem.until": until,
        "data.train_files": str(out / ROWS),
        "data.val_files": str(out / (EVALUATION if train.evaluation else ROWS)),
        "data.train_batch_size": train.batch,
        "data.max_prompt_length": train.model.window - train.response_tokens,
        "data.max_response_length": train.response_tokens,
        "data.shuffle": True,
        "data.seed": train.seed,
        "data.dataloader_num_workers": 0,
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": False,
        "algorithm.use_kl_in_reward": False,
        "actor_rollout_ref.model.path": str(run.model),
        "actor_rollout_ref.model.enable_gradient_checkpointing": machines.gradient_checkpointing,
        "actor_rollout_ref.actor.ppo_mini_batch_size": train.mini_batch,
        "actor_rollout_ref.actor.use_dynamic_bsz": True,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": machines.pack_tokens,
        "actor_rollout_ref.actor.ppo_epochs": 1,
        "actor_rollout_ref.actor.shuffle": False,
        "actor_rollout_ref.actor.clip_ratio": objective.clip,
        "actor_rollout_ref.actor.clip_ratio_low": objective.clip,
        "actor_rollout_ref.actor.clip_ratio_high": objective.clip,
        # verl has no switch for its dual clip; a bound that no ratio reaches is none.
        "actor_rollout_ref.actor.clip_ratio_c": objective.dual_clip or 1e9,
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
        "actor_rollout_ref.actor.entropy_coeff": 0,
        "actor_rollout_ref.actor.use_kl_loss": objective.kl > 0,
        "actor_rollout_ref.actor.kl_loss_coef": objective.kl,
        "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
        "actor_rollout_ref.actor.optim.lr": optimiser.learning_rate,
        "actor_rollout_ref.actor.optim.lr_warmup_steps": optimiser.warmup_steps,
        "actor_rollout_ref.actor.optim.betas": [optimiser.beta1, optimiser.beta2],
        "actor_rollout_ref.actor.optim.weight_decay": optimiser.weight_decay,
        "actor_rollout_ref.actor.optim.clip_grad": optimiser.clip_norm,
        "actor_rollout_ref.actor.optim.override_optimizer_config": {"adam_eps" if megatron else "eps": optimiser.epsilon},
        "actor_rollout_ref.actor.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
        "actor_rollout_ref.actor.checkpoint.load_contents": ["model", "optimizer", "extra"],
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": train.group,
        "actor_rollout_ref.rollout.dtype": train.model.dtype,
        "actor_rollout_ref.rollout.seed": train.seed,
        "actor_rollout_ref.rollout.temperature": train.temperature,
        "actor_rollout_ref.rollout.top_p": train.top_p,
        "actor_rollout_ref.rollout.val_kwargs.temperature": train.eval_temperature,
        "actor_rollout_ref.rollout.val_kwargs.top_p": train.eval_top_p,
        "actor_rollout_ref.rollout.val_kwargs.do_sample": train.eval_temperature > 0,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": machines.rollout_parallel,
        "actor_rollout_ref.rollout.gpu_memory_utilization": machines.gpu_memory,
        "actor_rollout_ref.rollout.enforce_eager": machines.eager or cpu,
        "actor_rollout_ref.rollout.free_cache_engine": not cpu,
        "+actor_rollout_ref.rollout.enable_sleep_mode": not cpu,
        "actor_rollout_ref.rollout.enable_prefix_caching": True,
        # A CPU's sampler fails on a seeded request whose prompt is read in several steps.
        "actor_rollout_ref.rollout.enable_chunked_prefill": not cpu,
        "actor_rollout_ref.rollout.max_model_len": train.model.window,
        "actor_rollout_ref.rollout.max_num_batched_tokens": machines.max_batch_tokens,
        "actor_rollout_ref.rollout.max_num_seqs": machines.max_sequences,
        "actor_rollout_ref.rollout.agent.num_workers": machines.workers,
        "actor_rollout_ref.rollout.agent.default_agent_loop": "pimem",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path": str(out / LOOPS),
        # Rewards are computed where the trajectory is known; this worker has nothing to do.
        "reward.num_workers": 1,
        "trainer.device": machines.device,
        "trainer.nnodes": machines.nodes,
        "trainer.n_gpus_per_node": machines.gpus,
        "trainer.logger": ["console"],
        "trainer.project_name": "pimem",
        "trainer.experiment_name": out.name,
        "trainer.total_epochs": 1_000_000,
        "trainer.total_training_steps": train.steps,
        "trainer.save_freq": train.save_every,
        "trainer.test_freq": train.eval_every if train.evaluation else -1,
        "trainer.val_before_train": bool(train.evaluation and train.eval_every),
        "trainer.default_local_dir": str(out / CHECKPOINTS),
        "trainer.max_actor_ckpt_to_keep": train.keep,
        "trainer.resume_mode": "auto" if resume else "disable",
    }
    said |= _megatron(train) if megatron else _fsdp(train, cpu, full)
    if machines.nodes == 1 and "RAY_ADDRESS" not in os.environ:
        said["ray_kwargs.ray_init.num_cpus"] = max(16, os.cpu_count() or 1)
        said["+ray_kwargs.ray_init.include_dashboard"] = False
        said["transfer_queue.backend.SimpleStorage.num_data_storage_units"] = 2
    if train.evaluation:
        said["trainer.validation_data_dir"] = str(out / "evaluation")
    if cpu:
        # Ray counts one logical GPU, which is the CPU.
        said["+ray_kwargs.ray_init.num_gpus"] = 1
        said["actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"] = 16
    return said | train.verl


def _fsdp(train: TrainSpec, cpu: bool, full: bool) -> dict[str, Any]:
    said: dict[str, Any] = {
        "actor_rollout_ref.model.use_remove_padding": True,
        "+actor_rollout_ref.model.override_config.attn_implementation": train.machines.attention,
        # Without flash-attn verl takes log-probabilities row by row; this computes them with the output layer.
        "actor_rollout_ref.model.use_fused_kernels": True,
        "actor_rollout_ref.model.fused_kernel_options.impl_backend": "torch",
        "actor_rollout_ref.actor.strategy": "fsdp" if cpu else "fsdp2",
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant",
    }
    if train.machines.output == "responses":
        # Registers packed attention too.
        said["actor_rollout_ref.model.external_lib"] = "pimem.training.places"
    elif train.machines.attention == "packed":
        said["actor_rollout_ref.model.external_lib"] = "pimem.training.attention"
    if train.machines.log_prob_tokens is not None:
        for who in ("rollout", "ref"):
            said[f"actor_rollout_ref.{who}.log_prob_max_token_len_per_gpu"] = train.machines.log_prob_tokens
    if not cpu:
        said["actor_rollout_ref.ref.strategy"] = "fsdp2"
    for who in ("actor", "ref"):
        place = f"actor_rollout_ref.{who}.fsdp_config"
        said |= {f"{place}.use_torch_compile": False, f"{place}.param_offload": train.machines.offload}
        if full:
            said[f"{place}.dtype"] = "float32"
            said[f"+{place}.mixed_precision"] = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    said["actor_rollout_ref.actor.fsdp_config.optimizer_offload"] = train.machines.offload
    return said


def _megatron(train: TrainSpec) -> dict[str, Any]:
    place, machines = "actor_rollout_ref.actor.megatron", train.machines
    return {
        f"{place}.tensor_model_parallel_size": machines.tensor_parallel,
        f"{place}.expert_model_parallel_size": machines.expert_parallel,
        f"{place}.param_offload": machines.offload,
        f"{place}.optimizer_offload": machines.offload,
        "actor_rollout_ref.actor.optim.lr_decay_style": "constant",
    }


def compose(said: Mapping[str, Any], backend: str = "fsdp2") -> Any:
    """verl's whole configuration with these settings, checked by verl. Raises `ConfigError` for what verl refuses."""
    try:
        from hydra import compose as hydra_compose
        from hydra import initialize_config_module
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from verl.trainer.ppo.utils import need_critic, need_reference_policy
        from verl.utils.config import validate_config
    except ImportError as error:
        raise EngineError(f"training needs {error.name}, which is not installed: {_MISSING}", retryable=False) from error
    with initialize_config_module("verl.trainer.config", version_base=None):
        engine = ["model_engine=megatron"] if backend == "megatron" else []
        config = hydra_compose("ppo_trainer", overrides=engine)
    for name, value in said.items():
        try:
            # A mapping takes the place of verl's, whose keys would otherwise be all it may have.
            whole = isinstance(value, Mapping)
            OmegaConf.update(config, name.removeprefix("+"), value, merge=not whole, force_add=whole or name.startswith("+"))
        except OmegaConfBaseException as error:
            raise ConfigError(f"verl.{name.removeprefix('+')}: {str(error).splitlines()[0]}") from None
    try:
        validate_config(config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    except (AssertionError, ValueError, HydraException, OmegaConfBaseException) as error:
        raise ConfigError(f"verl refuses this configuration: {error}") from error
    return config
