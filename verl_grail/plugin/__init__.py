"""Entry point of the group ``verl.plugins``: arms registration with verl; importing it is all it takes.

verl loads this module at the end of ``import verl`` in every process (driver, actor workers, reward workers), calls
nothing, and hides an ImportError. Registering right away would import the trainer and the reward managers in each of
them, seconds apiece; so every registration waits for the verl module it belongs to.
"""

import importlib

import wrapt

from verl_grail import cpu

REGISTERING: dict[str, str] = {
    "verl.trainer.ppo.core_algos": "verl_grail.plugin.estimators",
    "verl.experimental.reward_loop.reward_manager": "verl_grail.plugin.reward_manager",
    "verl.trainer.ppo.v1": "verl_grail.plugin.trainer",
}
"""verl module -> module of ours that is imported after it, and registers itself in its last line."""

WRAPPING: dict[str, str] = {
    "verl.utils.config": "wrap_validate_config",
    "verl.trainer.main_ppo": "wrap_run_ppo",
}
"""verl module -> function of `startup` that is called with it."""


def _register(module: str):
    # importing is enough, and harmless if the import of ours is what brought verl's module in
    return lambda _: importlib.import_module(module)


def _wrap(function: str):
    return lambda module: getattr(importlib.import_module("verl_grail.plugin.startup"), function)(module)


for _name, _ours in REGISTERING.items():
    wrapt.register_post_import_hook(_register(_ours), _name)
for _name, _function in WRAPPING.items():
    wrapt.register_post_import_hook(_wrap(_function), _name)
cpu.install()
