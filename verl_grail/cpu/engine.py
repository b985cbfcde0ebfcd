"""FSDP2 engines for verl's EngineRegistry under the device "cpu", where verl registers "cuda" and "npu" only.

verl's own engines (verl/workers/engine/fsdp/transformer_impl.py:1143 and 1594) run on the CPU as they are, but for the
offload policy of forward-only models. FSDP1 is refused by name: verl builds it with ``sync_module_states=True``
(transformer_impl.py:444), which torch does not accept for a module that lives on the CPU.
"""

import dataclasses

from verl.workers.engine.base import BaseEngine, EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead

from verl_grail.cpu import PLATFORM, enabled


class _CPUFSDP2:
    """Builds the module without an offload policy; mixed in before verl's engine."""

    def _build_fsdp_module(self, module):
        # A forward-only engine (the reference policy), or offload_policy=True, asks FSDP2 to offload into pinned
        # memory (transformer_impl.py:462), and pinning needs an accelerator. Here the parameters are where an offload
        # would put them, so the build sees both options off. The config is frozen: lend it a copy.
        config = self.engine_config
        self.engine_config = dataclasses.replace(config, forward_only=False, offload_policy=False)
        try:
            return super()._build_fsdp_module(module)
        finally:
            self.engine_config = config


class CPUFSDPEngineWithLMHead(_CPUFSDP2, FSDPEngineWithLMHead):
    """verl's FSDP2 language-model engine, on the CPU."""


class CPUFSDPEngineWithValueHead(_CPUFSDP2, FSDPEngineWithValueHead):
    """verl's FSDP2 value-model engine (the critic), on the CPU."""


class RefusedFSDP1(BaseEngine):
    """Stands where FSDP1 would be, to say what to set instead of failing inside torch."""

    def __init__(self, *_args, **_kwargs):
        raise ValueError(
            "strategy=fsdp (FSDP1) cannot be built on the CPU platform: set actor_rollout_ref.actor.strategy=fsdp2 "
            "(and critic.strategy=fsdp2 when there is a critic)"
        )


_ENGINES = (
    ("language_model", "fsdp2", CPUFSDPEngineWithLMHead),
    ("value_model", "fsdp2", CPUFSDPEngineWithValueHead),
    ("language_model", "fsdp", RefusedFSDP1),
    ("value_model", "fsdp", RefusedFSDP1),
)


def register() -> None:
    """Register the engines with verl."""
    for model_type, backend, engine in _ENGINES:
        # verl asserts that a key is registered once (verl/workers/engine/base.py:389).
        if PLATFORM not in EngineRegistry._engines.get(model_type, {}).get(backend, {}):
            EngineRegistry.register(model_type=model_type, backend=backend, device=PLATFORM)(engine)


if enabled():
    register()
