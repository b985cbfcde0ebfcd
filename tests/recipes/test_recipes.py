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


PAPERS = {"qwen3": "grail", "deepseek": "grail", "octothinker": "grail", "qwen3_base": "gar"}
METHODS = {
    "grail": {"grpo": ("grpo", "naive"), "grail": ("grail", "naive"), "oar_g": ("oar_g", "naive")},
    "gar": {
        "grpo": ("grpo", "naive"),
        "gar_grpo": ("grpo", "gar"),
        "reinforce_pp": ("reinforce_plus_plus", "naive"),
        "gar_reinforce_pp": ("reinforce_plus_plus", "gar"),
    },
}
"""Published set-up -> method -> advantage estimator and reward manager."""


MODELS = {
    "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B",
    "deepseek-r1-distill-llama-8b": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "octothinker-3b-short": "OctoThinker/OctoThinker-3B-Short-Base",
    "octothinker-8b-short": "OctoThinker/OctoThinker-8B-Short-Base",
    "qwen3-4b-base": "Qwen/Qwen3-4B-Base",
    "qwen3-8b-base": "Qwen/Qwen3-8B-Base",
}
"""Name in a recipe's -> on the hub."""


def test_there_is_a_recipe_for_every_row_of_the_papers():
    models = {
        "qwen3": ("qwen3-4b", "qwen3-8b"),
        "deepseek": ("deepseek-r1-distill-llama-8b",),
        "octothinker": ("octothinker-3b-short", "octothinker-8b-short"),
        "qwen3_base": ("qwen3-4b-base", "qwen3-8b-base"),
    }
    wanted = {
        f"{family}/run_{model}_{method}_{backend}.sh"
        for family, names in models.items()
        for model in names
        for method in METHODS[PAPERS[family]]
        for backend in ("fsdp2", "megatron")
    }
    assert {f"{p.parent.name}/{p.name}" for p in RECIPES} == wanted


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_it_composes_to_the_published_set_up(recipe, hydra, tmp_path):
    from verl.utils.config import validate_config

    arguments = command_of(recipe, tmp_path, NNODES="2", GPUS_PER_NODE="4")
    assert arguments[:2] == ["-m", "verl.trainer.main_ppo"]
    config = hydra(arguments[2:])
    validate_config(config, use_reference_policy=False, use_critic=False)
    check_run(config)

    model, method, backend = recipe.stem.removeprefix("run_").split("_", 1)[0], *_named(recipe)
    actor, rollout, algorithm = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.algorithm
    paper = PAPERS[recipe.parent.name]
    assert config.actor_rollout_ref.model.path == MODELS[model]
    assert bool(config.actor_rollout_ref.model.custom_chat_template) == model.startswith("octothinker")
    assert (algorithm.adv_estimator, config.reward.reward_manager.name) == METHODS[paper][method]
    assert actor.strategy == backend and config.trainer.nnodes == 2 and config.trainer.n_gpus_per_node == 4
    assert actor.optim.lr == 1e-6 and actor.optim.clip_grad == 1.0 and rollout.temperature == 1.0
    assert not actor.use_kl_loss and not algorithm.use_kl_in_reward
    if paper == "gar":
        assert (config.data.train_batch_size, rollout.n, config.trainer.total_training_steps) == (128, 16, 400)
        assert actor.loss_agg_mode == "token-mean" and algorithm.norm_adv_by_std_in_grpo
        return
    assert (config.data.train_batch_size, rollout.n, config.trainer.total_training_steps) == (32, 8, 200)
    assert (actor.ppo_mini_batch_size, actor.ppo_epochs, rollout.top_k, actor.optim.lr_warmup_steps) == (32, 4, 50, 20)
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.28)
    assert (actor.loss_agg_mode, actor.loss_scale_factor) == ("seq-mean-token-sum-norm", 4096)
    assert not algorithm.norm_adv_by_std_in_grpo
    if method != "grpo":
        assert algorithm[method].mask_truncated and not algorithm[method].norm_adv_by_std


def _named(recipe) -> tuple[str, str]:
    """Method and backend of a recipe's name."""
    rest = recipe.stem.removeprefix("run_").split("_", 1)[1]
    return tuple(rest.rsplit("_", 1))


def test_runs_have_folders_of_their_own_and_do_not_go_on_by_themselves(hydra, tmp_path):
    folders = set()
    for method, env in (("grail", {}), ("grpo", {}), ("grail", {"SEED": "2"}), ("grail", {"RUN": "middle"})):
        recipe = ROOT / f"recipes/qwen3/run_qwen3-8b_{method}_fsdp2.sh"
        config = hydra(command_of(recipe, tmp_path, CHECKPOINTS="/all", **env)[2:])
        folders.add((config.trainer.default_local_dir, config.trainer.rollout_data_dir, config.trainer.experiment_name))
        assert config.trainer.default_local_dir.startswith("/all/Qwen3-8B_")
        assert config.trainer.resume_mode == "disable"
        seed = int(env.get("SEED", 1))
        assert (config.data.seed, config.actor_rollout_ref.rollout.seed) == (seed, seed)
    assert len(folders) == 4
    assert hydra(command_of(recipe, tmp_path, RESUME="auto")[2:]).trainer.resume_mode == "auto"


def test_odd_paths_and_lists_reach_verl_as_they_are(hydra, tmp_path):
    odd, several = "/data/run=1, it's (new)/{t}.parquet", "[a.parquet,b.parquet]"
    recipe = ROOT / "recipes/qwen3/run_qwen3-8b_grail_fsdp2.sh"
    config = hydra(command_of(recipe, tmp_path, TRAIN_FILES=odd, VAL_FILES=several, MODEL="/models/my(1)=x")[2:])
    assert config.data.train_files == odd and list(config.data.val_files) == ["a.parquet", "b.parquet"]
    assert config.actor_rollout_ref.model.path == "/models/my(1)=x"


@pytest.mark.parametrize("backend", ["fsdp2", "megatron"])
def test_token_budgets_follow_the_response_length(hydra, tmp_path, backend):
    recipe = ROOT / f"recipes/qwen3/run_qwen3-8b_grail_{backend}.sh"
    config = hydra(command_of(recipe, tmp_path, RESPONSE="16384")[2:])
    assert config.data.max_response_length == config.actor_rollout_ref.actor.loss_scale_factor == 16384
    assert config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 2 * (1024 + 16384)
    check_run(config)


def test_a_recipe_can_check_itself(tmp_path):
    stub(tmp_path, "verl-grail", f'printf "%s\\n" "$@" > {tmp_path}/checked')
    env = {**os.environ, "CHECK": "1", "TRAIN_FILES": "a", "VAL_FILES": "b", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["bash", str(ROOT / "recipes/qwen3/run_qwen3-8b_grail_fsdp2.sh"), "x=y"], env=env, check=True)
    said = (tmp_path / "checked").read_text().splitlines()
    assert said[:2] == ["check", "+method=grail"] and said[-1] == "x=y"


def test_overrides_come_last(hydra, tmp_path):
    recipe = ROOT / "recipes/qwen3/run_qwen3-8b_grail_fsdp2.sh"
    arguments = command_of(recipe, tmp_path, "algorithm.grail.leaf=middle", "trainer.v1.trainer_mode=sync")
    config = hydra(arguments[2:])
    assert config.algorithm.grail.leaf == "middle"
    with pytest.raises(ConfigError, match="trainer_mode"):
        check_run(config)


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
