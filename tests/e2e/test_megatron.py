"""verl's whole trainer on its Megatron engine, with vLLM; CPU modules stand in for those of TransformerEngine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.conftest import ROOT, launch, run_overrides, task_overrides
from tests.e2e.nodes import RESOURCES, end, free_port
from tests.signals.megatron_cpu import CONFIG
from verl_grail.cpu.overrides import cpu_env

ACTOR, MODEL, ENV = "actor_rollout_ref.actor", "actor_rollout_ref.model", "+ray_kwargs.ray_init.runtime_env.env_vars"
BOTH = ["algorithm.adv_estimator=grail", "reward.reward_manager.name=gar"]


def megatron_overrides(tp: int, pp: int) -> list[str]:
    """Overrides that put verl's Megatron engine in the place of FSDP."""
    return [
        "model_engine=megatron",
        f"{ACTOR}.strategy=megatron",
        f"{MODEL}.external_lib=tests.e2e.megatron_rank",
        f"{MODEL}.use_remove_padding=True",
        f"{ACTOR}.megatron.tensor_model_parallel_size={tp}",
        f"{ACTOR}.megatron.pipeline_model_parallel_size={pp}",
        f"{ACTOR}.megatron.vanilla_mbridge=True",
        f"{ACTOR}.megatron.use_distributed_optimizer=True",
        *[f"+{ACTOR}.megatron.override_transformer_config.{k}={v}" for k, v in CONFIG.items()],
        f"{ENV}.PYTHONPATH={ROOT}",
    ]


def assert_trained(run):
    """Rollouts of the second step agree with the actor: the weights that vLLM got are those of the first update."""
    for step in (1, 2):
        metrics = run.metrics[step]
        assert metrics["grail/rows/weighted"] > 0
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
        assert metrics["actor/grad_norm"] > 0 and metrics["actor/lr"] > 0
    assert run.metrics[1]["gar/rows/pass"] > 0 and run.metrics[1]["gar/bonus_mean"] >= 0


def test_tensor_parallel(verl):
    options = [*megatron_overrides(2, 1), *BOTH]
    assert_trained(verl("megatron-tp2", options, n_ranks=2, without=("fsdp_config",)))


def test_a_recipe_with_two_pipeline_stages_on_two_nodes(task, tmp_path):
    """The scripts that a cluster would run: Ray on both nodes, the doctor, the recipe."""
    small = [o for o in task_overrides(task, 1, "grail_sync") if "fsdp_config" not in o]
    small += [*run_overrides(tmp_path, None, 2), *megatron_overrides(1, 2), "reward.reward_manager.name=gar"]
    small += ["trainer.nnodes=2", "trainer.val_before_train=False", "actor_rollout_ref.actor.optim.lr_warmup_steps=0"]
    # the recipe's 50 would make vLLM's probabilities those of the truncated distribution, and the actor's are not
    small.append("actor_rollout_ref.rollout.top_k=-1")
    # the tiny model has three layers: two on the first stage
    small.append(f"+{ACTOR}.megatron.override_transformer_config.num_layers_in_first_pipeline_stage=2")
    files = {"TRAIN_FILES": str(task / "train.parquet"), "VAL_FILES": str(task / "val.parquet")}
    env = dict(
        **files,
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        MODEL=str(task / "model"),
        NNODES="2",
        GPUS_PER_NODE="1",
        TP="1",
        PP="2",
        HEAD="127.0.0.2",
        PORT=str(free_port()),
        WAIT="300",
    )
    ray_args = " ".join(RESOURCES)
    script = str(ROOT / "recipes/cluster/with_ray.sh")
    second = subprocess.Popen(
        ["bash", script],
        env={**os.environ, **cpu_env(), **env, "NODE_RANK": "1", "NODE_IP": "127.0.0.3", "RAY_ARGS": ray_args},
        cwd=tmp_path,
    )
    try:
        head = {"NODE_RANK": "0", "NODE_IP": "127.0.0.2"}
        head["RAY_ARGS"] = f"{ray_args} --include-dashboard=false --ray-client-server-port={free_port()}"
        recipe = str(ROOT / "recipes/qwen3/run_qwen3-8b_grail_megatron.sh")
        run = launch(["bash", script, "bash", recipe, *small], tmp_path, **env, **head)
        assert second.wait(60) == 0  # it serves until the head goes
    finally:
        end(second)
    assert "Everything is in its place" in run.log and "actor on 127.0.0.3" in run.log
    assert_trained(run)
