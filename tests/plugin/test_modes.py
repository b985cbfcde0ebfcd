"""Each of our modes behaves as the stock mode it extends: sync step, buffer class, resume, rollout skip."""

from __future__ import annotations

import pytest
from hydra import compose, initialize_config_module
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.skip.rollout_skip import RolloutTqSkip

from verl_grail.config import OUR_MODES, STOCK_MODES
from verl_grail.plugin.trainer import SignalTrainer

COMMON = [
    "actor_rollout_ref.actor.strategy=fsdp2",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.nnodes=1",
    "actor_rollout_ref.rollout.n_gpus_per_node=1",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=nccl",
    "trainer.v1.separate_async.parameter_sync_step=2",
    "critic.enable=False",
    "skip.rollout_tq.enable=True",
]


def build(mode: str, *overrides: str):
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*COMMON, f"trainer.v1.trainer_mode={mode}", *overrides])
    return get_trainer_cls(mode)(config)


@pytest.mark.parametrize("stock", STOCK_MODES)
@pytest.mark.parametrize("estimator", ["grpo", "grail"])
def test_parity(stock, estimator):
    theirs = build(stock, "algorithm.adv_estimator=grpo")
    ours = build(f"grail_{stock}", f"algorithm.adv_estimator={estimator}")
    assert isinstance(ours, get_trainer_cls(stock)) and isinstance(ours, SignalTrainer)
    assert ours.trainer_mode == theirs.trainer_mode == stock
    assert ours.parameter_sync_step == theirs.parameter_sync_step == (2 if stock == "separate_async" else 1)
    assert type(ours.replay_buffer) is type(theirs.replay_buffer)
    assert ours.replay_buffer.trainer_mode == theirs.replay_buffer.trainer_mode
    assert ours.replay_buffer.trainer_config == theirs.replay_buffer.trainer_config
    skips = [RolloutTqSkip(t.config.skip.rollout_tq, t.config) for t in (ours, theirs)]
    assert skips[0].parameter_sync_step == skips[1].parameter_sync_step == ours.parameter_sync_step
    assert ours.settings.active == (estimator == "grail")


@pytest.mark.parametrize("stock", STOCK_MODES)
def test_resume_restores_the_queue_exactly_where_the_stock_mode_does(stock, tmp_path, monkeypatch):
    """verl saves and loads TransferQueue for asynchronous modes only, by comparing the mode's name with "sync"."""
    from types import SimpleNamespace

    from verl.trainer.ppo.v1 import trainer_base

    loaded = []
    (tmp_path / "global_step_3/transfer_queue").mkdir(parents=True)
    monkeypatch.setattr(trainer_base.tq, "load_checkpoint", loaded.append)
    monkeypatch.setattr(trainer_base, "_count_tq_prompt_groups", lambda *a: 5)
    trainer = build(
        f"grail_{stock}", "algorithm.adv_estimator=grail", "trainer.resume_mode=resume_path",
        f"trainer.resume_from_path={tmp_path}/global_step_3",
    )  # fmt: skip
    trainer.actor_rollout_wg = SimpleNamespace(load_checkpoint=lambda **k: None)
    trainer.use_critic = False
    trainer._load_checkpoint()
    assert trainer.global_steps == 3 and bool(loaded) == (stock != "sync")


def test_every_stock_mode_has_one_of_ours():
    assert set(OUR_MODES.values()) == set(STOCK_MODES)


def test_signal_workers_replace_the_actors_only(monkeypatch):
    from verl.trainer.ppo.utils import Role

    from verl_grail.plugin.workers import SignalActorRolloutRefWorker, SignalDetachActorWorker

    for mode, worker in (
        ("grail_sync", SignalActorRolloutRefWorker),
        ("grail_separate_async", SignalDetachActorWorker),
    ):
        trainer = build(mode, "algorithm.adv_estimator=grail")
        trainer._init_resource_pool_mgr()
        roles = {r: c.__ray_metadata__.modified_class for r, c in trainer.role_worker_mapping.items()}
        assert issubclass(roles[Role.ActorRollout], worker)
        idle = build(mode, "algorithm.adv_estimator=grpo")
        idle._init_resource_pool_mgr()
        assert not any(
            "Signal" in c.__ray_metadata__.modified_class.__name__ for c in idle.role_worker_mapping.values()
        )


@pytest.mark.parametrize("key,name", [("solution_key", "worked"), ("aux_solution_key", "rolled")])
def test_a_solution_column_that_the_data_lacks_fails_at_start_up(monkeypatch, key, name):
    from types import SimpleNamespace

    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from verl_grail.config import ConfigError

    def load(self):
        self.train_dataset = SimpleNamespace(dataframe=SimpleNamespace(column_names=["prompt", "expert_solution"]))

    monkeypatch.setattr(PPOTrainer, "_init_dataloader", load)
    gar = ["algorithm.adv_estimator=grpo", "reward.reward_manager.name=gar"]
    extra = ["+reward.gar.aux_mode=aux_max"] if key.startswith("aux") else []
    build("grail_sync", *gar)._init_dataloader()
    with pytest.raises(ConfigError, match=rf"reward\.gar\.{key}={name}: data\.train_files has no such column"):
        build("grail_sync", *gar, f"+reward.gar.{key}={name}", *extra)._init_dataloader()
