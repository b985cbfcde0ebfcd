"""Every setting of the package, declared once: validated dataclasses and where they live in a verl config.

    algorithm.grail    GrailConfig    read when algorithm.adv_estimator=grail
    algorithm.oar_g    OarGConfig     read when algorithm.adv_estimator=oar_g
    algorithm.answers  AnswersConfig  what the final answer is, read by grail and oar_g
    algorithm.signals  SignalsConfig  how the signal pass runs
    reward.gar         GarConfig      read when reward.reward_manager.name=gar

verl's YAML has no such nodes, so a command line adds them with a plus sign: ``+algorithm.grail.rollouts=all``. Fields
that the two readings of a paper set differently default to None, which means "as ``reading`` says".
"""

from verl_grail.config.answers import AnswersConfig
from verl_grail.config.gar import GAR_REWARD_KEYS, GarConfig
from verl_grail.config.grail import GrailConfig
from verl_grail.config.load import MODE_KEY, OUR_MODES, STOCK_MODES, Settings, load_settings, parse_section
from verl_grail.config.oar_g import OarGConfig
from verl_grail.config.section import BASE_ESTIMATORS, BASES_WITH_STD, READINGS, ConfigError, Section
from verl_grail.config.signals import SignalsConfig

__all__ = [
    "BASES_WITH_STD",
    "BASE_ESTIMATORS",
    "GAR_REWARD_KEYS",
    "MODE_KEY",
    "OUR_MODES",
    "READINGS",
    "STOCK_MODES",
    "AnswersConfig",
    "ConfigError",
    "GarConfig",
    "GrailConfig",
    "OarGConfig",
    "Section",
    "Settings",
    "SignalsConfig",
    "load_settings",
    "parse_section",
]
