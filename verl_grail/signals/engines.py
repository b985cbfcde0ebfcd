"""The signal pass of whichever engine verl built: FSDP, or Megatron where megatron-core is installed."""

from __future__ import annotations

from typing import Any

from verl_grail.signals.fsdp import SignalPass, check_engine
from verl_grail.signals.request import PassRequest


def is_megatron(engine: Any) -> bool:
    """Whether this is verl's Megatron engine."""
    return getattr(engine.engine_config, "strategy", None) == "megatron"


def make_pass(engine: Any, request: PassRequest) -> Any:
    """An object whose ``run(data)`` runs one pass.

    Raises:
        ConfigError: the engine or its model is not supported.
    """
    if is_megatron(engine):
        from verl_grail.signals.megatron import MegatronPass  # needs megatron-core

        return MegatronPass(engine, request)
    return SignalPass(engine, request)


def check_built_engine(engine: Any, leaf: str) -> None:
    """Refuse a built engine that no pass can work with.

    Raises:
        ConfigError: names the config key and the mend.
    """
    if is_megatron(engine):
        from verl_grail.signals.megatron import check_megatron

        check_megatron(engine, leaf)
    else:
        check_engine(engine, leaf)
