"""Megatron on CPU in verl's trainer ranks: loaded in each through ``actor_rollout_ref.model.external_lib``.

Ray gives trainer ranks a ``RANK``; other processes that read the model's configuration are left as they are.
"""

from __future__ import annotations

import os

if "RANK" in os.environ:
    import vllm  # noqa: F401  before torch is patched

    from tests.signals import megatron_cpu

    megatron_cpu.install()
    megatron_cpu.register_bridges()

    from verl.workers.engine import EngineRegistry
    from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead

    @EngineRegistry.register(model_type="language_model", backend="megatron", device="cpu")
    class CpuMegatronEngine(MegatronEngineWithLMHead):
        """verl's engine in fp32, which its configuration does not admit, with generators that need no CUDA."""

        def initialize(self):
            from megatron.core import tensor_parallel

            object.__setattr__(self.engine_config, "dtype", "float32")
            tensor_parallel.model_parallel_cuda_manual_seed(1, inference_rng_tracker=True, force_reset_rng=True)
            super().initialize()
