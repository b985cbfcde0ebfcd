"""Config sections and start-up checks: every refusal names the key."""

import pytest
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from verl_grail.config import (
    ConfigError,
    GarConfig,
    GrailConfig,
    OarGConfig,
    SignalsConfig,
    load_settings,
    parse_section,
)
from verl_grail.plugin.startup import check_run

BASE = [
    "algorithm.adv_estimator=grail",
    "trainer.v1.trainer_mode=grail_sync",
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
]


@pytest.fixture(scope="module")
def run_config():
    def make(*overrides, base=BASE):
        return compose("ppo_trainer", overrides=[*base, *overrides])

    with initialize_config_module("verl.trainer.config", version_base=None):
        yield make


@pytest.mark.parametrize(
    "cls,values,message",
    [
        (GrailConfig, {"w_mni": 1}, r"algorithm\.grail\.w_mni is unknown"),
        (GrailConfig, {"w_min": "low"}, r"algorithm\.grail\.w_min='low'"),
        (GrailConfig, {"w_min": 6.0, "w_max": 5.0}, r"algorithm\.grail\.w_min=6\.0"),
        (GrailConfig, {"w_mean": 9.0}, r"algorithm\.grail\.w_mean=9\.0"),
        (GrailConfig, {"sigma_w": -1}, r"algorithm\.grail\.sigma_w=-1"),
        (GrailConfig, {"sigma_w": float("nan")}, r"algorithm\.grail\.sigma_w=nan"),
        (GrailConfig, {"rollouts": "some"}, r"algorithm\.grail\.rollouts='some' is not one of: wrong, correct, all"),
        (GrailConfig, {"leaf": "head"}, r"algorithm\.grail\.leaf='head'"),
        (GrailConfig, {"box": "middle"}, r"algorithm\.grail\.box='middle'"),
        (GrailConfig, {"stats": "some"}, r"algorithm\.grail\.stats='some'"),
        (GrailConfig, {"alignment": "left"}, r"algorithm\.grail\.alignment='left'"),
        (GrailConfig, {"reading": "mine"}, r"algorithm\.grail\.reading='mine'"),
        (GrailConfig, {"select_by": "luck"}, r"algorithm\.grail\.select_by='luck'"),
        (GrailConfig, {"delimiter_weight": "w_max"}, r"algorithm\.grail\.delimiter_weight='w_max'"),
        (GrailConfig, {"mask_truncated": "perhaps"}, r"algorithm\.grail\.mask_truncated='perhaps'"),
        (GrailConfig, {"rule": "math:sqrt", "sigma_w": 0.1}, r"algorithm\.grail\.sigma_w is not read while .*\.rule"),
        (GrailConfig, {"rule": "math:sqrt", "w_max": 9.0}, r"algorithm\.grail\.w_max is not read while .*\.rule"),
        (GrailConfig, {"saliency": "gradient"}, r"algorithm\.grail\.saliency='gradient' is not one of: gradient_act"),
        (GrailConfig, {"saliency": "integrated_gradients", "ig_steps": 0}, r"algorithm\.grail\.ig_steps=0 must lie"),
        (GrailConfig, {"ig_steps": 4}, r"algorithm\.grail\.ig_steps is not read while algorithm\.grail\.saliency=grad"),
        (GrailConfig, {"rule": "mine.py:f"}, r"algorithm\.grail\.rule='mine\.py:f' .* absolute"),
        (GrailConfig, [1, 2], r"algorithm\.grail must be a mapping"),
        (OarGConfig, {"quantile": 1.5}, r"algorithm\.oar_g\.quantile=1\.5"),
        (OarGConfig, {"noise_std": -1.0}, r"algorithm\.oar_g\.noise_std=-1\.0"),
        (OarGConfig, {"base_estimator": "gae"}, r"algorithm\.oar_g\.base_estimator='gae'"),
        (GarConfig, {"beta": -0.5}, r"reward\.gar\.beta=-0\.5"),
        (GarConfig, {"aux_mode": "aux_max"}, r"reward\.gar\.aux_mode=aux_max needs reward\.gar\.aux_solution_key"),
        (GarConfig, {"length_min": 600}, r"reward\.gar\.length_min=600"),
        (GarConfig, {"think_open": ""}, r"reward\.gar\.think_open"),
        (GarConfig, {"aux_solution_key": "rolled"}, r"reward\.gar\.aux_solution_key=rolled is not read under"),
        (GarConfig, {"extra_keys": ["acc"]}, r"reward\.gar\.extra_keys=\['acc'\]"),
        (GarConfig, {"length_min": 10}, r"reward\.gar\.length_min is not read while reward\.gar\.length_penalty=0"),
        (GarConfig, {"format_penalty": 0.2, "strict_format": False}, r"reward\.gar\.format_penalty is not read while"),
        (GarConfig, {"max_solutions": 0}, r"reward\.gar\.max_solutions=0"),
        (GarConfig, {"signal": "hessian"}, r"reward\.gar\.signal='hessian'"),
        (SignalsConfig, {"head_chunk_tokens": 0}, r"algorithm\.signals\.head_chunk_tokens=0"),
    ],
)
def test_wrong_values_name_the_full_key(cls, values, message):
    with pytest.raises(ConfigError, match=message):
        parse_section(cls, values)


def test_readings_and_single_overrides():
    paper, code = parse_section(GrailConfig, None), parse_section(GrailConfig, {"reading": "authors_code"})
    keys = ("alignment", "box", "stats", "correct_unselected")
    assert [getattr(paper, k) for k in keys] == ["token", "last", "reasoning", False]
    assert [getattr(code, k) for k in keys] == ["predictor", "first", "all", True]
    mixed = parse_section(GrailConfig, {"reading": "authors_code", "box": "last"})
    assert (mixed.box, mixed.alignment) == ("last", "predictor")
    gar = parse_section(GarConfig, {"reading": "authors_code"})
    assert (gar.format_penalty, gar.length_penalty, gar.single) == (0.6, 0.5, "plain")
    gar = parse_section(GarConfig, None)
    assert (gar.format_penalty, gar.length_penalty, gar.single) == (0.1, 0.0, "zero")


def test_published_defaults():
    g, r, o = parse_section(GrailConfig, None), parse_section(GarConfig, None), parse_section(OarGConfig, None)
    assert (g.w_mean, g.sigma_w, g.w_min, g.w_max, g.rollouts) == (1.0, 0.5, 0.5, 5.0, "wrong")
    assert (r.base_reward, r.beta) == (1.0, 0.5)
    assert (o.noise_std, o.quantile, o.floor, o.boost) == (1e-3, 0.4, 0.1, 2.0)


def test_sections_are_read_from_a_verl_config(run_config):
    config = run_config(
        "+algorithm.grail.rollouts=all", "+algorithm.grail.w_max=3", "+algorithm.signals.head_chunk_tokens=64"
    )
    settings = check_run(config)
    assert (settings.grail.rollouts, settings.grail.w_max, settings.signals.head_chunk_tokens) == ("all", 3.0, 64)
    assert settings.gar is None and settings.active


def test_interpolated_values_are_validated_resolved(run_config):
    config = run_config("+algorithm.grail.w_max=${algorithm.kl_ctrl.kl_coef}", "algorithm.kl_ctrl.kl_coef=-2")
    with pytest.raises(ConfigError, match=r"algorithm\.grail\.w_max=-2"):
        check_run(config)


@pytest.mark.parametrize(
    "overrides,message",
    [
        (["trainer.v1.trainer_mode=sync"], r"set trainer\.v1\.trainer_mode=grail_sync"),
        (["trainer.v1.trainer_mode=colocate_async"], r"set trainer\.v1\.trainer_mode=grail_colocate_async"),
        (["trainer.v1.trainer_mode=separate_async"], r"set trainer\.v1\.trainer_mode=grail_separate_async"),
        (["trainer.use_v1=False"], r"set trainer\.use_v1=True"),
        (["+async_training.trigger_parameter_sync_step=4"], r"grail_separate_async"),
        (
            ["+algorithm.signals.backward_max_token_len_per_gpu=9"],
            r"algorithm\.signals\.backward_max_token_len_per_gpu is not read",
        ),
        (
            ["+algorithm.signals.backward_micro_batch_size_per_gpu=9", "actor_rollout_ref.actor.use_dynamic_bsz=True"],
            r"algorithm\.signals\.backward_micro_batch_size_per_gpu is not read",
        ),
        (
            ["+algorithm.signals.recompute=False", "actor_rollout_ref.model.enable_gradient_checkpointing=False"],
            r"recompute=False is not read while training recomputes nothing",
        ),
        (
            ["+algorithm.signals.recompute=False", "algorithm.adv_estimator=grpo", "reward.reward_manager.name=gar"],
            r"recompute=False is not read in a pass without a backward",
        ),
        (
            [
                "actor_rollout_ref.actor.use_dynamic_bsz=True",
                "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=600",
                "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=2",
                "data.max_response_length=800",
            ],
            r"ppo_max_token_len_per_gpu=600 cannot hold .* = 1312 tokens over 2 ranks: set it to 656 or more",
        ),
        (["+rollout.nnodes=1"], r"one-step-off trainer"),
        (
            ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null"],
            r"actor_rollout_ref\.actor\.ppo_micro_batch_size_per_gpu is not set",
        ),
        (
            ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=null"],
            r"actor_rollout_ref\.rollout\.log_prob_micro_batch_size_per_gpu is not set",
        ),
        (["actor_rollout_ref.model.use_fused_kernels=True"], r"actor_rollout_ref\.model\.use_fused_kernels=True"),
        (["actor_rollout_ref.model.enable_activation_offload=True"], r"enable_activation_offload=True"),
        (["+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp16"], r"param_dtype=fp16"),
        (["actor_rollout_ref.rollout.temperature=0"], r"actor_rollout_ref\.rollout\.temperature"),
        (
            ["+algorithm.grail.select_by=advantage", "algorithm.use_kl_in_reward=True"],
            r"algorithm\.use_kl_in_reward=True",
        ),
        (
            ["+algorithm.grail.select_by=advantage", "algorithm.rollout_correction.rollout_rs=token_k1"],
            r"algorithm\.rollout_correction\.rollout_rs=token_k1",
        ),
        (["+algorithm.grail.nonsense=1"], r"algorithm\.grail\.nonsense is unknown"),
        (["actor_rollout_ref.actor.strategy=veomni"], r"actor_rollout_ref\.actor\.strategy=veomni"),
        (["reward.reward_manager.name=gar", "reward.reward_model.enable=True"], r"reward\.reward_model\.enable=True"),
        (
            ["reward.reward_manager.name=gar", "algorithm.filter_groups.enable=True"],
            r"algorithm\.filter_groups\.enable=True",
        ),
        (
            ["reward.reward_manager.name=gar", "reward.reward_manager.source=importlib"],
            r"reward\.reward_manager\.source",
        ),
    ],
)
def test_runs_that_cannot_be_honoured_fail_naming_the_key(run_config, overrides, message):
    config = run_config(*overrides)
    with pytest.raises(ConfigError, match=message):
        check_run(config)


MEGATRON = "actor_rollout_ref.actor.megatron"


@pytest.mark.parametrize(
    "overrides,message",
    [
        ([f"{MEGATRON}.dynamic_context_parallel=True"], r"actor\.megatron\.dynamic_context_parallel=True"),
        (["actor_rollout_ref.model.mtp.enable=True"], r"actor_rollout_ref\.model\.mtp\.enable=True"),
        ([f"+{MEGATRON}.override_transformer_config.enable_cuda_graph=True"], r"enable_cuda_graph=True"),
        ([f"+{MEGATRON}.override_transformer_config.cuda_graph_impl=local"], r"cuda_graph_impl=local"),
        ([f"{MEGATRON}.use_remove_padding=False"], r"actor\.megatron\.use_remove_padding=False"),
        ([f"{MEGATRON}.router_replay.mode=R2"], r"actor\.megatron\.router_replay\.mode=R2"),
        ([f"{MEGATRON}.dtype=float16"], r"actor\.megatron\.dtype=float16 underflows"),
        (["actor_rollout_ref.model.use_fused_kernels=True"], r"actor_rollout_ref\.model\.use_fused_kernels=True"),
        (
            ["+algorithm.grail.saliency=integrated_gradients"],
            r"algorithm\.grail\.saliency=integrated_gradients: .* set it to gradient_activation, or .* fsdp2",
        ),
    ],
)
def test_megatron_runs_that_cannot_be_honoured(run_config, overrides, message):
    megatron = ["model_engine=megatron", "actor_rollout_ref.actor.strategy=megatron"]
    check_run(run_config(*megatron))
    with pytest.raises(ConfigError, match=message):
        check_run(run_config(*megatron, *overrides))


def test_megatron_needs_its_package(run_config, monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None)
    with pytest.raises(ConfigError, match=r"strategy=megatron needs megatron-core"):
        check_run(run_config("model_engine=megatron", "actor_rollout_ref.actor.strategy=megatron"))


def test_token_budgets_count_the_context_parallel_ranks(run_config):
    from verl_grail.plugin.passes import pass_limits

    config = run_config(
        "model_engine=megatron",
        "actor_rollout_ref.actor.strategy=megatron",
        f"{MEGATRON}.context_parallel_size=2",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=300",
        "data.max_prompt_length=80",
        "data.max_response_length=120",
    )
    forward, backward = pass_limits(config, check_run(config))
    assert (forward.tokens, backward.tokens) == (600, 200)


FUNCTION = "reward.custom_reward_function.path=reward_fns/"
KWARGS = "reward.custom_reward_function.reward_kwargs"


@pytest.mark.parametrize(
    "overrides,message",
    [
        ([FUNCTION + "math_boxed.py", f"+{KWARGS}.severl=set"], r"reward_kwargs: severl is unknown"),
        ([FUNCTION + "math_boxed.py", f"+{KWARGS}.several=all"], r"reward_kwargs: several='all'"),
        ([FUNCTION + "math_boxed.py", f"+{KWARGS}.workers=two"], r"reward_kwargs: .*'<' not supported"),
        ([FUNCTION + "math_boxed.py", f"+{KWARGS}.locator=nowhere:f"], r"reward_kwargs: locator='nowhere:f' cannot"),
        ([FUNCTION + "boxed_number.py", f"+{KWARGS}.several=set"], r"boxed_number\.py has no settings"),
        ([FUNCTION + "strict_format.py", f"+{KWARGS}.reading=authors_code"], r"reward_kwargs: length_penalty counts"),
        ([FUNCTION + "math_boxed.py", f"+{KWARGS}.several=set"], r"algorithm\.answers\.several=one .* \(several=set\)"),
        ([FUNCTION + "math_boxed.py", "+algorithm.answers.several=set"], r"algorithm\.answers\.several=set"),
        ([FUNCTION + "boxed_number.py", "+algorithm.answers.locator=answer_tag"], r"algorithm\.answers\.locator"),
        (["+algorithm.answers.locator=regex"], r"algorithm\.answers\.pattern goes with locator=regex"),
        (["+algorithm.answers.thinking=maybe"], r"algorithm\.answers\.thinking='maybe'"),
        (["+algorithm.answers.which=first"], r"algorithm\.answers\.which is unknown"),
    ],
)
def test_answers_and_graders_that_do_not_fit(run_config, overrides, message):
    with pytest.raises(ConfigError, match=message):
        check_run(run_config(*overrides))


def test_one_policy_for_weights_and_verdict(run_config):
    shared = [FUNCTION + "math_boxed.py", "+algorithm.answers.several=set", "+algorithm.grail.box=first"]
    settings = check_run(run_config(*shared, f"+{KWARGS}.answers=${{algorithm.answers}}", f"+{KWARGS}.percent=strict"))
    assert settings.answers.policy("first").several == "set"
    check_run(run_config(*shared, f"+{KWARGS}.several=set"))
    # without weights there is nothing to disagree with, and a user's own file is the user's
    check_run(run_config(FUNCTION + "math_boxed.py", f"+{KWARGS}.several=set", "algorithm.adv_estimator=grpo"))
    check_run(run_config("reward.custom_reward_function.path=mine/math_boxed.py", f"+{KWARGS}.anything=1"))


@pytest.mark.parametrize("mode", ["sync", "colocate_async", "separate_async"])
def test_gar_alone_needs_our_modes_too(run_config, mode):
    gar = ["algorithm.adv_estimator=grpo", "reward.reward_manager.name=gar"]
    with pytest.raises(
        ConfigError, match=rf"reward\.reward_manager\.name=gar needs .* set trainer\.v1\.trainer_mode=grail_{mode}"
    ):
        check_run(run_config(*gar, f"trainer.v1.trainer_mode={mode}"))
    assert check_run(run_config(*gar, f"trainer.v1.trainer_mode=grail_{mode}")).gar


def test_validate_config_and_run_ppo_run_the_checks(run_config):
    import verl.trainer.main_ppo as main_ppo
    from verl.utils.config import validate_config

    config = run_config("trainer.v1.trainer_mode=sync")
    for call in (
        lambda: validate_config(config=config, use_reference_policy=False, use_critic=False),
        lambda: main_ppo.validate_config(config, False, False),
        lambda: main_ppo.run_ppo(config, None),
    ):
        with pytest.raises(ConfigError, match="grail_sync"):
            call()


def test_no_signal_asked_for(run_config):
    settings = load_settings(run_config("algorithm.adv_estimator=grpo"))
    assert not settings.active
    check_run(run_config("algorithm.adv_estimator=grpo", "trainer.v1.trainer_mode=sync", "trainer.use_v1=False"))


def test_a_section_that_nothing_reads_is_reported(run_config, caplog):
    check_run(run_config("algorithm.adv_estimator=grpo", "+algorithm.grail.w_max=3"))
    assert "algorithm.grail is set but not read: it takes algorithm.adv_estimator=grail" in caplog.text


def test_the_command_line_needs_a_plus_sign_and_nothing_else(run_config):
    assert OmegaConf.select(run_config("+algorithm.grail.w_max=3"), "algorithm.grail.w_max") == 3


@pytest.mark.parametrize("old", [False, True])
def test_token_budgets_count_the_ranks_that_share_a_sequence(run_config, old):
    from verl_grail.plugin.passes import pass_limits

    key = "actor_rollout_ref.actor" + ("" if old else ".fsdp_config") + ".ulysses_sequence_parallel_size=2"
    config = run_config(
        "actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=100",
        "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=300", key,
        "data.max_prompt_length=80", "data.max_response_length=120",
    )  # fmt: skip
    forward, backward = pass_limits(config, check_run(config))
    assert (forward.tokens, backward.tokens) == (600, 200)
    config = run_config("+algorithm.signals.backward_micro_batch_size_per_gpu=2")
    forward, backward = pass_limits(config, check_run(config))
    assert (forward.rows, backward.rows) == (4, 2)


@pytest.mark.parametrize(
    "overrides,steps",
    [([], 0), (["saliency=integrated_gradients"], 8), (["saliency=integrated_gradients", "ig_steps=3"], 3)],
)
def test_the_pass_is_asked_for_a_path_only_if_it_is_taken(run_config, overrides, steps):
    from verl_grail.plugin.passes import SignalRunner
    from verl_grail.signals.schedule import Schedule

    config = run_config(*(f"+algorithm.grail.{o}" for o in overrides))
    runner = SignalRunner(None, 1, config, check_run(config))
    request = runner._request(Schedule([0], [0], 0, 1), step=0, log_probs=True, vectors=False)
    assert (request.ig_steps, request.method, request.n_backward) == (steps, "grail", 1)
