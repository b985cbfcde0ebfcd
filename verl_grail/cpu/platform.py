"""verl's platform "cpu": `PlatformCPU`, registered by verl/plugin/platform/platform_manager.py:PlatformRegistry.

Ray's slots stay the built-in "GPU" resource, declared by ``ray.init(num_gpus=N)``. verl counts only "GPU" and "NPU"
(``ResourcePoolManager._check_resource_available``), and only accelerators that Ray knows have the ids that
``vLLMReplica.launch_servers`` reads (verl/workers/rollout/vllm_rollout/vllm_async_server.py:1348).
"""

import types
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from verl_grail.cpu import PLATFORM, enabled


def _nothing(*_args, **_kwargs) -> None:
    """Stand in for calls that manage an accelerator's memory or streams."""


def _zero(*_args, **_kwargs) -> int:
    """Stand in for calls that measure an accelerator's memory."""
    return 0


class _DeviceModule(types.ModuleType):
    """``torch.cpu`` plus the parts of the ``torch.cuda`` API that verl calls without a guard."""

    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: PLATFORM)
    get_device_name = staticmethod(lambda *_args: "CPU")
    memory_allocated = memory_reserved = staticmethod(_zero)
    max_memory_allocated = max_memory_reserved = staticmethod(_zero)
    mem_get_info = staticmethod(lambda *_args: (0, 0))
    empty_cache = ipc_collect = synchronize = staticmethod(_nothing)
    set_device = reset_peak_memory_stats = set_per_process_memory_fraction = staticmethod(_nothing)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)

    def __getattr__(self, name: str):
        return getattr(torch.cpu, name)


class PlatformCPU(PlatformBase):
    """The host's processors, presented as one device per rank."""

    _module = _DeviceModule("verl_grail.cpu.device")

    @property
    def device_name(self) -> str:
        return PLATFORM

    @property
    def vendor_name(self) -> str:
        return PLATFORM

    @property
    def device_module(self) -> types.ModuleType:
        return self._module

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # Auto-detection takes the first platform that says yes; this one is only ever chosen by VERL_PLATFORM.
        return False

    def current_device(self) -> str:
        # verl hands ``get_device_id()`` to ``Tensor.to``: an index would mean an accelerator, so name the CPU.
        return PLATFORM

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        # No CUDA IPC: verl then passes weights to a colocated vLLM through POSIX shared memory.
        return False

    def cudart(self) -> None:
        return None


def register() -> None:
    """Register `PlatformCPU` with verl."""
    if PlatformRegistry.get(PLATFORM) is not PlatformCPU:
        PlatformRegistry.register(platform=PLATFORM)(PlatformCPU)


if enabled():
    register()
