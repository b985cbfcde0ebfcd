"""Methods as Hydra configs: ``python -m verl.trainer.main_ppo +method=grail`` (verl_grail/methods/method/*.yaml).

The settings of our sections are not written there: `register` hands Hydra the defaults of the dataclasses, so that they
are declared once and every one can be overridden without a plus sign.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hydra.core.config_store import ConfigStore

from verl_grail import config

GROUP = "verl_grail"
"""Config group of the sections' defaults: ``verl_grail/grail@algorithm.grail`` in a defaults list."""
SECTIONS = {
    "grail": config.GrailConfig,
    "oar_g": config.OarGConfig,
    "gar": config.GarConfig,
    "answers": config.AnswersConfig,
    "signals": config.SignalsConfig,
}


def declared(section: type) -> dict[str, Any]:
    """Defaults as the dataclass declares them: null where the reading decides."""
    found: dict[str, Any] = {}
    for f in fields(section):
        found[f.name] = list(f.default_factory()) if callable(f.default_factory) else f.default  # type: ignore[misc]
    return found


def register() -> None:
    """Put the sections' defaults where Hydra looks for configs."""
    store = ConfigStore.instance()
    for name, section in SECTIONS.items():
        store.store(group=GROUP, name=name, node=declared(section), provider="verl_grail")
