"""From a composed verl config to validated settings."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_grail.config.answers import AnswersConfig
from verl_grail.config.gar import GarConfig
from verl_grail.config.grail import GrailConfig
from verl_grail.config.oar_g import OarGConfig
from verl_grail.config.section import ConfigError, Section
from verl_grail.config.signals import SignalsConfig

STOCK_MODES = ("sync", "colocate_async", "separate_async")
OUR_MODES = {f"grail_{mode}": mode for mode in STOCK_MODES}
"""Our trainer modes and the verl mode that each extends."""

MODE_KEY = "trainer.v1.signal_trainer"
"""Where our trainers note their own mode, since they put the stock mode's name back for verl to compare with."""

AnySection = TypeVar("AnySection", bound=Section)


def parse_section(cls: type[AnySection], node: Any) -> AnySection:
    """One config section from a config node (mapping, DictConfig or None).

    Raises:
        ConfigError: unknown key, wrong type or value; the message starts with the full key.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    # resolved in place: a copy of the node would lose the rest of the config that its interpolations point to
    values: Any = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{cls.key} must be a mapping of settings, not {values!r}")
    for name in values:
        if name not in known:
            raise ConfigError(f"{cls.key}.{name} is unknown; the settings of {cls.key} are: {', '.join(known)}")
    try:
        section: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), values))
    except OmegaConfBaseException as e:
        name = str(getattr(e, "full_key", None) or "")
        raise ConfigError(f"{cls.key}.{name}={values.get(name)!r}: {str(e).splitlines()[0]}") from e
    # a method's config spells out every default: only what differs from it was asked for
    declared = OmegaConf.structured(cls)
    section.refuse_dead({name for name, value in values.items() if value != declared[name]})
    return section


@dataclass(frozen=True)
class Settings:
    """What a run asks for; absent methods are None."""

    grail: GrailConfig | None
    oar_g: OarGConfig | None
    gar: GarConfig | None
    signals: SignalsConfig
    answers: AnswersConfig = field(default_factory=AnswersConfig)

    @property
    def weighting(self) -> GrailConfig | OarGConfig | None:
        """The estimator that re-weights tokens, if any."""
        return self.grail or self.oar_g

    @property
    def active(self) -> bool:
        """Whether any signal is asked for; if not, a run is verl's own."""
        return self.weighting is not None or self.gar is not None


def load_settings(config: DictConfig) -> Settings:
    """Settings of a composed verl run config (``ppo_trainer`` or ``ppo_megatron_trainer``)."""

    def node(path: str) -> Any:
        return OmegaConf.select(config, path)

    estimator = str(node("algorithm.adv_estimator"))
    manager = str(node("reward.reward_manager.name"))
    return Settings(
        grail=parse_section(GrailConfig, node("algorithm.grail")) if estimator == "grail" else None,
        oar_g=parse_section(OarGConfig, node("algorithm.oar_g")) if estimator == "oar_g" else None,
        gar=parse_section(GarConfig, node("reward.gar")) if manager == "gar" else None,
        signals=parse_section(SignalsConfig, node("algorithm.signals")),
        answers=parse_section(AnswersConfig, node("algorithm.answers")),
    )
