"""``+method=NAME`` in verl's own entry point: what it sets, and that everything can be overridden."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from verl_grail import methods
from verl_grail.config import load_settings, parse_section
from verl_grail.methods import SECTIONS, declared
from verl_grail.plugin.startup import check_run

NAMES = sorted(p.stem for p in (Path(methods.__file__).parent / "method").glob("*.yaml"))
SIZES = {
    "dp": [
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    ],
    "megatron": [
        "model_engine=megatron",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    ],
}


@pytest.fixture(scope="module")
def run():
    with initialize_config_module("verl.trainer.config", version_base=None):
        yield lambda *overrides: compose("ppo_trainer", overrides=list(overrides))


@pytest.mark.parametrize("engine", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_every_method_passes_the_checks_on_both_engines(run, name, engine):
    config = run(
        f"+method={name}", *SIZES[engine], "algorithm.adv_estimator=grpo" if name == "gar_reward" else "data.seed=1"
    )
    settings = check_run(config)
    ours = {"grail", "oar_g", "grail_gar", "gar_grpo", "gar_reinforce_pp", "gar_reward"}
    assert settings.active == (name in ours) == config.trainer.v1.trainer_mode.startswith("grail_")
    assert (settings.gar is not None) == ("gar" in name.split("_"))
    assert (settings.grail is not None) == ("grail" in name.split("_"))


@pytest.mark.parametrize(
    ("name", "override", "key", "value"),
    [
        ("grail", "algorithm.grail.leaf=middle", "algorithm.grail.leaf", "middle"),
        ("grail", "algorithm.grail.rollouts=all", "algorithm.grail.rollouts", "all"),
        ("grail", "algorithm.grail.reading=authors_code", "algorithm.grail.reading", "authors_code"),
        ("grail", "trainer.v1.trainer_mode=grail_separate_async", "trainer.v1.trainer_mode", "grail_separate_async"),
        (
            "grail",
            "actor_rollout_ref.actor.loss_agg_mode=token-mean",
            "actor_rollout_ref.actor.loss_agg_mode",
            "token-mean",
        ),
        ("gar_grpo", "reward.gar.signal=raw_gradient", "reward.gar.signal", "raw_gradient"),
        ("oar_g", "algorithm.oar_g.noise_std=0.01", "algorithm.oar_g.noise_std", 0.01),
        ("grail_gar", "algorithm.signals.head_chunk_tokens=128", "algorithm.signals.head_chunk_tokens", 128),
    ],
)
def test_an_ablation_is_one_override(run, name, override, key, value):
    config = run(f"+method={name}", *SIZES["dp"], override)
    assert OmegaConf.select(config, key) == value
    check_run(config)


def test_defaults_are_those_of_the_dataclasses(run):
    """Nothing of our sections is written in the YAML: a method with no override reads as an empty section does."""
    for name in ("grail", "oar_g", "grail_gar"):
        settings = load_settings(run(f"+method={name}", *SIZES["dp"]))
        for section in (settings.grail, settings.oar_g, settings.gar, settings.signals, settings.answers):
            if section is not None:
                assert section == parse_section(type(section), None)
    for cls in SECTIONS.values():
        assert parse_section(cls, declared(cls)) == parse_section(cls, None)


def test_the_divisor_of_dr_grpo_follows_the_response_length(run):
    config = run("+method=dr_grpo", "data.max_response_length=77")
    assert config.actor_rollout_ref.actor.loss_scale_factor == 77
