"""Every recipe is a bash script that composes to a configuration that verl's checks and ours accept."""

from __future__ import annotations

import os
import subprocess

import pytest
from hydra import compose, initialize_config_module

from tests.recipes.scripts import RECIPES, ROOT, command_of, stub
from verl_grail.config import ConfigError
from verl_grail.plugin.startup import check_run

SCRIPTS = sorted([*(ROOT / "recipes").glob("*/*.sh"), *(ROOT / "recipes").glob("*/*.sbatch")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_bash_can_read_it(script):
    subprocess.run(["bash", "-n", str(script)], check=True)


@pytest.fixture(scope="module")
def hydra():
    with initialize_config_module("verl.trainer.config", version_base=None):
        yield lambda overrides: compose("ppo_trainer", overrides=overrides)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_it_composes_to_a_valid_configuration(recipe, hydra, tmp_path):
    from verl.utils.config import validate_config

    arguments = command_of(recipe, tmp_path, NNODES="2", GPUS_PER_NODE="8")
    assert arguments[:2] == ["-m", "verl.trainer.main_ppo"]
    config = hydra(arguments[2:])
    validate_config(config, use_reference_policy=False, use_critic=False)
    check_run(config)
    assert config.trainer.nnodes == 2 and config.actor_rollout_ref.actor.strategy == "megatron"


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_overrides_come_last(recipe, hydra, tmp_path):
    arguments = command_of(recipe, tmp_path, "trainer.v1.trainer_mode=sync")
    with pytest.raises(ConfigError, match="trainer_mode"):
        check_run(hydra(arguments[2:]))


def test_slurm_starts_a_rank_on_every_node(tmp_path):
    """Stand-ins for Slurm's own commands, which need a cluster: each task gets its rank, rank 0 the head's address."""
    stub(tmp_path, "scontrol", 'printf "node-%s\\n" 1 2 3')
    stub(tmp_path, "srun", 'shift; for i in 0 1 2; do SLURM_PROCID=$i "$@"; done')
    bash = 'printf "%s %s %s %s %s\\n" "$NODE_RANK" "$NNODES" "$GPUS_PER_NODE" "$HEAD" "$*" >> ' + f"{tmp_path}/started"
    stub(tmp_path, "bash", f'if [ "$1" = -c ]; then exec /bin/bash "$@"; fi; {bash}')
    slurm = dict(SLURM_NNODES="3", SLURM_GPUS_ON_NODE="4", SLURM_JOB_NODELIST="node-[1-3]", SLURM_SUBMIT_DIR=str(ROOT))
    env = {**os.environ, **slurm, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["/bin/bash", str(ROOT / "recipes/cluster/slurm.sbatch"), "recipes/qwen3/run.sh", "a=b c"]
    subprocess.run(command, env=env, check=True)
    assert (tmp_path / "started").read_text().splitlines() == [
        f"{rank} 3 4 node-1 recipes/cluster/with_ray.sh bash recipes/qwen3/run.sh a=b c" for rank in range(3)
    ]
