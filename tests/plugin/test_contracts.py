"""One contract per seam of verl that the plugin leans on: an upgrade that moves one fails here with its name."""

from __future__ import annotations

import inspect

import pytest
import transfer_queue
from transfer_queue import KVBatchMeta
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.trainer.ppo import core_algos
from verl.trainer.ppo import v1 as trainers
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead
from verl.workers.engine_workers import ActorRolloutRefWorker

from verl_grail.config import OUR_MODES
from verl_grail.plugin.trainer import SignalTrainer


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)


def source(thing) -> str:
    return inspect.getsource(thing)


def test_estimators_get_rewards_mask_config_and_index():
    text = source(compute_advantage)
    for name in ('"token_level_rewards"', '"response_mask"', '"config"', 'adv_kwargs["index"]'):
        assert name in text
    assert "norm_adv_by_std_in_grpo" in parameters(core_algos.compute_grpo_outcome_advantage)


@pytest.mark.parametrize("stock", ["PPOTrainerSync", "PPOTrainerColocateAsync", "PPOTrainerSeparateAsync"])
def test_our_layer_sits_between_the_stock_mode_and_the_base_trainer(stock):
    ours = trainers.get_trainer_cls({"PPOTrainerSync": "grail_sync", "PPOTrainerColocateAsync": "grail_colocate_async",
                                     "PPOTrainerSeparateAsync": "grail_separate_async"}[stock])  # fmt: skip
    names = [c.__name__ for c in ours.__mro__]
    assert names[1:4] == [stock, "SignalTrainer", "PPOTrainer"]
    for method in ("_compute_advantage", "_log_rollout_data", "_dump_generations"):
        assert method not in vars(getattr(trainers, stock)), (
            f"{stock} now overrides {method}: ours would be passed over"
        )


@pytest.mark.parametrize(
    "method,names",
    [
        ("__init__", ["self", "config"]),
        ("_setup", ["self"]),
        ("_init_resource_pool_mgr", ["self"]),
        ("_compute_old_log_prob", ["self", "batch", "metrics"]),
        ("_compute_advantage", ["self", "batch", "metrics"]),
        ("_log_rollout_data", ["self", "batch", "timing_raw", "rollout_data_dir"]),
        (
            "_dump_generations",
            ["self", "inputs", "outputs", "gts", "scores", "reward_extra_infos_dict", "dump_path"],
        ),
    ],
)
def test_overridden_trainer_methods_keep_their_signature(method, names):
    assert parameters(getattr(PPOTrainer, method)) == names
    if method in vars(SignalTrainer):
        assert parameters(getattr(SignalTrainer, method)) == names


def test_the_log_prob_pass_is_one_worker_call_whose_fields_are_read_back():
    text = source(PPOTrainer._compute_old_log_prob)
    assert text.count("self.actor_rollout_wg.") == 1 and "self.actor_rollout_wg.compute_log_prob(batch)" in text
    assert '["entropy", "log_probs", "response_mask"]' in text and "response_from_nested" in text


def test_the_old_weights_are_restored_around_the_log_prob_pass():
    text = source(trainers.PPOTrainerSeparateAsync._compute_old_log_prob)
    restore, call = text.index("restore_model_from_cpu(0)"), text.rindex("super()._compute_old_log_prob")
    assert restore < call < text.rindex("restore_model_from_cpu")


def test_order_of_a_step():
    text = source(PPOTrainer._step_once)
    order = ["_balance_batch", "_compute_old_log_prob", "_compute_ref_log_prob", "_compute_advantage", "_update_actor"]
    places = [text.index(f"self.{name}(") for name in order]
    assert places == sorted(places)


def test_the_advantage_reads_rewards_again_after_our_bonus():
    text = source(PPOTrainer._compute_advantage)
    assert '"rm_scores"' in text and "tq.kv_batch_get" in text and "compute_advantage_for_multi_trajectories" in text


def test_the_mode_is_read_from_the_config_in_init():
    text = source(PPOTrainer.__init__)
    assert "self.trainer_mode = self.config.trainer.v1.trainer_mode" in text
    assert 'self.trainer_mode == "sync"' in source(PPOTrainer._build_replay_buffer)


def test_workers_and_dispatch():
    assert issubclass(DetachActorWorker, ActorRolloutRefWorker)
    assert "self.actor = self.actor_worker_cls" in source(ActorRolloutRefWorker.init_model)
    assert "_query_dispatch_info" in source(PPOTrainer._balance_batch)


def test_engine():
    assert parameters(FSDPEngineWithLMHead.prepare_model_inputs) == ["self", "micro_batch"]
    text = source(FSDPEngine.__init__) + source(FSDPEngine._init_device_mesh) + source(FSDPEngine._build_fsdp_module)
    for name in ("use_remove_padding", "ulysses_parallel_group", "use_ulysses_sp", "_autocast_dtype", "self.scaler"):
        assert name in text, name
    assert "use_cache=False" in source(FSDPEngineWithLMHead.forward_step)
    for key in ("use_remove_padding", "use_fused_kernels"):
        assert f'key="{key}"' in source(FSDPEngineWithLMHead.prepare_model_inputs)
    assert 'micro_batch["temperature"]' in source(FSDPEngineWithLMHead.prepare_model_inputs)


def test_reward_manager():
    assert parameters(NaiveRewardManager.__init__) == [
        "self", "config", "tokenizer", "compute_score", "reward_router_address", "reward_model_tokenizer",
    ]  # fmt: skip
    assert parameters(RewardManagerBase.run_single) == ["self", "data"]
    text = source(NaiveRewardManager.run_single)
    assert "self.is_async_reward_score" in text and '"reward_extra_info"' in text and "data[-1:]" in text


def test_transfer_queue():
    assert parameters(transfer_queue.kv_batch_get) == ["keys", "partition_id", "select_fields"]
    assert parameters(transfer_queue.kv_batch_put)[:4] == ["keys", "partition_id", "fields", "tags"]
    assert parameters(transfer_queue.kv_clear) == ["keys", "partition_id"]
    assert parameters(KVBatchMeta)[:5] == ["keys", "tags", "partition_id", "fields", "extra_info"]
    assert parameters(tu.index_select_tensor_dict) == ["batch", "indices"]


def test_padding_rows_carry_their_tag():
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template, upsample_batch_to_divisible_size

    assert "is_padding=True" in source(construct_minimal_padding_template)
    assert "pad_uid" in source(upsample_batch_to_divisible_size)


def test_validation_and_entry_points():
    from verl.trainer import main_ppo
    from verl.utils import config

    assert config.validate_config._verl_grail and main_ppo.run_ppo._verl_grail
    assert parameters(inspect.unwrap(config.validate_config)) == ["config", "use_reference_policy", "use_critic"]
    assert parameters(inspect.unwrap(main_ppo.run_ppo)) == ["config", "task_runner_class"]
    assert set(OUR_MODES) <= set(trainers.trainer_base.TRAINER_REGISTRY)


def test_the_fully_async_trainer_goes_through_run_ppo():
    from pathlib import Path

    import verl

    main = Path(verl.__file__).parent / "experimental/fully_async_policy/fully_async_main.py"
    assert "from verl.trainer.main_ppo import run_ppo" in main.read_text()


def test_fsdp1_private_reshard():
    from torch.distributed.fsdp._flat_param import FlatParamHandle
    from torch.distributed.fsdp._runtime_utils import _reshard

    assert parameters(_reshard) == ["state", "handle", "free_unsharded_flat_param"]
    assert isinstance(FlatParamHandle.uses_sharded_strategy, property)
