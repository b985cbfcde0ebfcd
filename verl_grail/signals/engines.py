"""verl's language-model engines with a signal pass, under a name of their own in verl's registry.

verl builds a worker's engine by ``EngineRegistry.new(model_type, backend)`` and refuses to register a key twice
(verl/workers/engine/base.py:389). Ours are subclasses of whichever engine verl would build for the backend on this
device (its own, a vendor's), registered under the model type `MODEL_TYPE`, which `plugin.workers` asks for.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.device import get_device_name
from verl.workers.engine import EngineRegistry

from verl_grail.signals.fsdp import SignalPass, check_engine
from verl_grail.signals.request import PassRequest

VERLS_TYPE = "language_model"
MODEL_TYPE = "language_model_with_signals"


class SignalEngine:
    """What our engines add to verl's, before which it is mixed in. The caller does not know which engine answers."""

    def __init__(self, model_config: Any, *args: Any, **kwargs: Any):
        model_config.model_type = VERLS_TYPE  # `MODEL_TYPE` is for the registry; verl's engines do not know it
        super().__init__(model_config, *args, **kwargs)

    def check_signals(self, leaf: str) -> None:
        """Refuse a built engine that the pass cannot work with.

        Raises:
            ConfigError: names the config key and the mend.
        """
        raise NotImplementedError

    def compute_signals(self, data: TensorDict, request: PassRequest) -> dict[str, torch.Tensor]:
        """One pass over this data-parallel rank's rows.

        Args:
            data: the rows, with the fields of `request.PASS_FIELDS`.
            request: what is asked for; the same on every rank.

        Returns:
            As `batches.Collected.output`; of use where ``is_mp_src_rank_with_outputs()``.

        Raises:
            ConfigError: the engine or its model is not supported.
        """
        raise NotImplementedError


class FSDPSignals(SignalEngine):
    """For verl's FSDP engines (verl/workers/engine/fsdp/transformer_impl.py, FSDPEngineWithLMHead)."""

    def check_signals(self, leaf: str) -> None:
        check_engine(self, leaf)

    def compute_signals(self, data: TensorDict, request: PassRequest) -> dict[str, torch.Tensor]:
        with self.eval_mode():
            return SignalPass(self, request).run(data)


class MegatronSignals(SignalEngine):
    """For verl's Megatron engines (verl/workers/engine/megatron/transformer_impl.py, MegatronEngineWithLMHead)."""

    def check_signals(self, leaf: str) -> None:
        from verl_grail.signals.megatron import check_megatron  # needs megatron-core

        check_megatron(self, leaf)

    def compute_signals(self, data: TensorDict, request: PassRequest) -> dict[str, torch.Tensor]:
        from verl_grail.signals.megatron import MegatronPass

        with self.eval_mode():
            return MegatronPass(self, request).run(data)


def with_signals(engine_class: type, backend: str) -> type:
    """A subclass of one of verl's engine classes that can run a signal pass."""
    mixin = MegatronSignals if backend == "megatron" else FSDPSignals
    name = engine_class.__name__
    return type(f"Signal{name}", (mixin, engine_class), {"__doc__": f"{name}, and a signal pass."})


def register_engine(backend: str) -> None:
    """Register our engine for a backend ("fsdp", "fsdp2", "megatron") on this device, once per process."""
    device = os.getenv("VERL_ENGINE_DEVICE") or get_device_name()  # as EngineRegistry.get_engine_cls asks
    if device not in EngineRegistry._engines.get(MODEL_TYPE, {}).get(backend, {}):
        engine_class = EngineRegistry.get_engine_cls(VERLS_TYPE, backend)
        EngineRegistry.register(MODEL_TYPE, backend, device)(with_signals(engine_class, backend))
