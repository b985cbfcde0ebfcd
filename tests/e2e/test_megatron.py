"""verl's whole trainer on its Megatron engine, with vLLM; CPU modules stand in for those of TransformerEngine."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import ROOT
from tests.signals.megatron_cpu import CONFIG

ACTOR, MODEL, ENV = "actor_rollout_ref.actor", "actor_rollout_ref.model", "+ray_kwargs.ray_init.runtime_env.env_vars"


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


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_megatron_trains_with_both_methods(verl, tp, pp):
    """Rollouts of the second step agree with the actor, so the weights that vLLM got are those of the first update."""
    options = [*megatron_overrides(tp, pp), "algorithm.adv_estimator=grail", "reward.reward_manager.name=gar"]
    run = verl(f"megatron-tp{tp}-pp{pp}", options, n_ranks=2, without=("fsdp_config",), lr=1e-3)
    for step in (1, 2):
        metrics = run.metrics[step]
        assert metrics["grail/rows/weighted"] > 0 and metrics["gar/rows/scored"] > 0
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
        assert metrics["actor/grad_norm"] > 0
