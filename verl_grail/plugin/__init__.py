"""Entry point of the group ``verl.plugins``: arms registration with verl; importing it is all it takes.

verl loads this module at the end of ``import verl`` in every process (driver, actor workers, reward workers), calls
nothing, and hides an ImportError. Registering right away would import the trainer and the reward managers in each of
them, seconds apiece; so every registration waits for the verl module it belongs to.
"""

import wrapt

from verl_grail import cpu

HOOKS: tuple[tuple[str, str], ...] = (
    ("verl.trainer.ppo.core_algos", "verl_grail.plugin.estimators:register"),
    ("verl.experimental.reward_loop.reward_manager", "verl_grail.plugin.reward_manager:register"),
    ("verl.trainer.ppo.v1", "verl_grail.plugin.trainer:register"),
    ("verl.utils.config", "verl_grail.plugin.startup:wrap_validate_config"),
    ("verl.trainer.main_ppo", "verl_grail.plugin.startup:wrap_run_ppo"),
)
"""(verl module, what to call with it once it is imported). wrapt imports the right-hand side only then."""

for _module, _hook in HOOKS:
    wrapt.register_post_import_hook(_hook, _module)
cpu.install()
