"""Start-up checks: a setting that cannot be honoured fails before any worker is started, with the key and the mend.

verl resolves estimator and reward manager by name only, so under a stock trainer mode ``grail`` would fail at the
first step, and ``gar`` would quietly pay no bonus. The checks therefore run inside
``verl.utils.config.validate_config`` (called by main_ppo, by the legacy main_ppo_v0 and by one_step_off_policy) and,
for the fully-async trainer, which does not validate, inside ``verl.trainer.main_ppo.run_ppo``. The reward manager
repeats them in its workers.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_grail.config import MODE_KEY, OUR_MODES, STOCK_MODES, ConfigError, Settings, load_settings

logger = logging.getLogger(__name__)


def _get(config: DictConfig, key: str, default: Any = None) -> Any:
    value = OmegaConf.select(config, key, default=default)
    return default if value is None else value


def _asked_by(settings: Settings) -> str:
    if settings.grail:
        return "algorithm.adv_estimator=grail"
    if settings.oar_g:
        return "algorithm.adv_estimator=oar_g"
    return "reward.reward_manager.name=gar"


def _check_trainer(config: DictConfig, settings: Settings) -> None:
    asked = _asked_by(settings)
    if OmegaConf.select(config, "async_training") is not None:
        raise ConfigError(
            f"{asked} does not run under the fully-async trainer: start python -m verl.trainer.main_ppo with "
            "trainer.v1.trainer_mode=grail_separate_async"
        )
    if OmegaConf.select(config, "rollout.nnodes") is not None:
        raise ConfigError(
            f"{asked} does not run under the one-step-off trainer: start python -m verl.trainer.main_ppo with "
            "trainer.v1.trainer_mode=grail_separate_async"
        )
    if not _get(config, "trainer.use_v1", True):
        raise ConfigError(
            f"{asked} does not run under the legacy trainer: set trainer.use_v1=True and "
            "trainer.v1.trainer_mode=grail_sync"
        )
    mode = _get(config, MODE_KEY) or _get(config, "trainer.v1.trainer_mode")
    if mode not in OUR_MODES:
        mend = f"grail_{mode}" if mode in STOCK_MODES else "one of " + ", ".join(OUR_MODES)
        raise ConfigError(
            f"{asked} needs the signals of the live policy, which trainer.v1.trainer_mode={mode} does not compute: set "
            f"trainer.v1.trainer_mode={mend}"
        )


def _check_actor(config: DictConfig) -> None:
    strategy = _get(config, "actor_rollout_ref.actor.strategy")
    if strategy == "megatron":
        _check_megatron(config)
    elif strategy not in ("fsdp", "fsdp2"):
        raise ConfigError(
            f"actor_rollout_ref.actor.strategy={strategy} is not supported: set it to fsdp2, fsdp or megatron"
        )
    refused = {
        "actor_rollout_ref.model.use_fused_kernels": "the fused kernels never call the output layer, where the signals "
        "are taken; our pass does not materialise the logits either, so set it to False",
        "actor_rollout_ref.model.enable_activation_offload": "verl then checkpoints with reentry, which cannot take "
        "gradients with respect to activations; set it to False",
        "actor_rollout_ref.actor.fsdp_config.qat.enable": "a fake-quantised output layer has no closed-form gradient "
        "here; set it to False",
    }
    for key, why in refused.items():
        if _get(config, key, False):
            raise ConfigError(f"{key}=True: {why}")
    dynamic = _get(config, "actor_rollout_ref.actor.use_dynamic_bsz", False)
    dead = "backward_micro_batch_size_per_gpu" if dynamic else "backward_max_token_len_per_gpu"
    if OmegaConf.select(config, f"algorithm.signals.{dead}") is not None:
        raise ConfigError(
            f"algorithm.signals.{dead} is not read under actor_rollout_ref.actor.use_dynamic_bsz={dynamic}: drop it"
        )
    if dynamic:
        _check_token_budgets(config)
    else:
        for key in (
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
        ):
            if OmegaConf.select(config, key) is None:
                raise ConfigError(f"{key} is not set: the signal pass takes the size of its micro-batches from it")
    dtype = _get(config, "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype")
    if dtype in ("fp16", "float16"):
        raise ConfigError(
            f"actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype={dtype} underflows answer-loss gradients:"
            " set it to bf16 or fp32"
        )
    if _get(config, "actor_rollout_ref.rollout.temperature", 1.0) <= 0:
        raise ConfigError("actor_rollout_ref.rollout.temperature must be above 0: the answer loss divides by it")


def recomputes(config: Any) -> bool:
    """Whether the actor's training recomputes activations in its backward."""
    if _get(config, "actor_rollout_ref.actor.strategy") == "megatron":
        return bool(_get(config, "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity"))
    return bool(_get(config, "actor_rollout_ref.model.enable_gradient_checkpointing", False))


def _check_recompute(config: DictConfig, settings: Settings) -> None:
    if settings.signals.recompute:
        return
    if settings.weighting is None:
        raise ConfigError(
            "algorithm.signals.recompute=False is not read in a pass without a backward: drop it, or set "
            "algorithm.adv_estimator to grail or oar_g"
        )
    if not recomputes(config):
        raise ConfigError(
            "algorithm.signals.recompute=False is not read while training recomputes nothing "
            "(actor_rollout_ref.model.enable_gradient_checkpointing, or Megatron's recompute_granularity): drop it"
        )


def sequence_ranks(config: DictConfig) -> int:
    """Ranks that share a sequence: verl's token budgets are for each of them."""
    places = (
        "fsdp_config.ulysses_sequence_parallel_size",
        "ulysses_sequence_parallel_size",  # its old place
        "megatron.context_parallel_size",
    )
    return max(int(_get(config, f"actor_rollout_ref.actor.{place}", 1)) for place in places)


def _check_token_budgets(config: DictConfig) -> None:
    """verl asserts it at the first row that does not fit, hours into a run."""
    actor = "actor_rollout_ref.actor"
    longest = _get(config, "data.max_prompt_length", 0) + _get(config, "data.max_response_length", 0)
    ranks = sequence_ranks(config)
    for key in (f"{actor}.ppo_max_token_len_per_gpu", "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu"):
        budget = _get(config, key)
        if budget is not None and budget * ranks < longest:
            raise ConfigError(
                f"{key}={budget} cannot hold a row of data.max_prompt_length + data.max_response_length = {longest} "
                f"tokens over {ranks} ranks: set it to {-(-longest // ranks)} or more"
            )


def _check_megatron(config: DictConfig) -> None:
    """What the pass on verl's Megatron engine cannot honour; each would be wrong without a word."""
    actor = "actor_rollout_ref.actor"
    refused = {
        f"{actor}.megatron.dynamic_context_parallel": "its micro-batches are scheduled per step over all data-parallel "
        "ranks, and the signal pass plans its own; set it to False",
        "actor_rollout_ref.model.mtp.enable": "multi-token prediction calls the embeddings and the output layer "
        "again; set it to False",
        f"{actor}.megatron.use_megatron_fsdp": "its parameters are sharded in a way the pass was never tried "
        "with; set it to False",
        f"{actor}.megatron.override_transformer_config.enable_cuda_graph": "replayed graphs do not call the hooks that "
        "the signals are taken with; set it to False",
    }
    for key, why in refused.items():
        if _get(config, key, False):
            raise ConfigError(f"{key}=True: {why}")
    graphs = _get(config, f"{actor}.megatron.override_transformer_config.cuda_graph_impl", "none")
    if graphs != "none":
        raise ConfigError(
            f"{actor}.megatron.override_transformer_config.cuda_graph_impl={graphs}: replayed graphs do not call the "
            "hooks that the signals are taken with; set it to none"
        )
    if not _get(config, f"{actor}.megatron.use_remove_padding", True):
        raise ConfigError(
            f"{actor}.megatron.use_remove_padding=False: the signal pass works on packed sequences; set it to True"
        )
    mode = _get(config, f"{actor}.megatron.router_replay.mode", "disabled")
    if mode != "disabled":
        raise ConfigError(
            f"{actor}.megatron.router_replay.mode={mode}: routes are recorded and replayed in verl's own log-prob "
            "pass, whose place the signal pass takes; set it to disabled"
        )
    dtype = _get(config, f"{actor}.megatron.dtype", "bfloat16")
    if dtype in ("fp16", "float16"):
        raise ConfigError(f"{actor}.megatron.dtype={dtype} underflows answer-loss gradients: set it to bfloat16")
    # megatron-core and mbridge are not dependencies: most runs do not need them
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        raise ConfigError(
            f"{actor}.strategy=megatron needs megatron-core, which is not installed: pip install 'verl-grail[megatron]'"
        )


def _check_weighting(config: DictConfig, settings: Settings) -> None:
    section = settings.weighting
    if section is None:
        return
    strategy = _get(config, "actor_rollout_ref.actor.strategy")
    if settings.grail and settings.grail.saliency == "integrated_gradients" and strategy == "megatron":
        raise ConfigError(
            "algorithm.grail.saliency=integrated_gradients: the pass on Megatron takes gradients at the leaf alone; "
            "set it to gradient_activation, or actor_rollout_ref.actor.strategy to fsdp2"
        )
    changes_advantage = {
        "algorithm.use_kl_in_reward": _get(config, "algorithm.use_kl_in_reward", False),
        "algorithm.rollout_correction.rollout_rs": _get(config, "algorithm.rollout_correction.rollout_rs"),
    }
    for key, value in changes_advantage.items():
        if value and section.select_by == "advantage":
            raise ConfigError(
                f"{section.key}.select_by=advantage must know the advantage before the log-prob pass, but {key}={value}"
                f" changes it afterwards: set {section.key}.select_by=verdict"
            )
    if section.base_estimator in ("grpo", "grpo_vectorized", "grpo_passk"):
        logger.info(
            "%s: base advantage %s, divided by the group's standard deviation: %s (%s.norm_adv_by_std; "
            "algorithm.norm_adv_by_std_in_grpo is for verl's own grpo only)",
            section.key,
            section.base_estimator,
            section.norm_adv_by_std,
            section.key,
        )


def _check_gar(config: DictConfig, settings: Settings) -> None:
    if settings.gar is None:
        return
    if _get(config, "reward.reward_manager.source", "register") != "register":
        raise ConfigError("reward.reward_manager.source must be register for reward.reward_manager.name=gar")
    if _get(config, "reward.reward_model.enable", False):
        raise ConfigError(
            "reward.reward_model.enable=True bypasses the reward manager, so gar would find no verdicts: set it to "
            "False and verify with reward.custom_reward_function"
        )
    if _get(config, "algorithm.filter_groups.enable", False):
        raise ConfigError(
            "algorithm.filter_groups.enable=True evicts groups whose rollouts all pass before GAR's bonus can tell "
            "them apart: set it to False"
        )


_GRADERS = ("math_boxed.py", "strict_format.py", "boxed_number.py")
_KWARGS = "reward.custom_reward_function.reward_kwargs"


def _check_reward_function(config: DictConfig, settings: Settings) -> None:
    """Settings of our own reward functions, and that they grade the answer whose tokens are weighted."""
    path = Path(str(_get(config, "reward.custom_reward_function.path", "")))
    if path.name not in _GRADERS or path.parent.name != "reward_fns":
        return
    # this module is imported with verl, in every process; the graders are not needed in most
    from verl_grail.core.answers import AnswerPolicy
    from verl_grail.grading.options import make_grader
    from verl_grail.grading.strict import split_options

    node = OmegaConf.select(config, _KWARGS)
    kwargs = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else {}
    assert isinstance(kwargs, dict)
    policy = AnswerPolicy()
    if path.name != "boxed_number.py":
        try:
            options = split_options(kwargs)[2] if path.name == "strict_format.py" else kwargs
            policy = make_grader(options).answers
        except (ValueError, TypeError) as e:
            raise ConfigError(f"{_KWARGS}: {e}") from e
    elif kwargs:
        raise ConfigError(f"{_KWARGS}={kwargs}: {path.name} has no settings; reward_fns/math_boxed.py has")
    if settings.weighting is None:
        return
    # which candidate counts is the method's own setting: the published code of GRAIL weighs the first, grades the last
    theirs, ours = asdict(replace(policy, which="last")), asdict(settings.answers.policy())
    for name in ours:
        if theirs[name] != ours[name]:
            raise ConfigError(
                f"algorithm.answers.{name}={ours[name]} weighs the tokens of one answer and {path.name} grades another "
                f"({name}={theirs[name]}): set +{_KWARGS}.answers='${{algorithm.answers}}' with "
                "reward_fns/math_boxed.py, or the same value on both sides"
            )


def _warn_unread(config: DictConfig, settings: Settings) -> None:
    read = {
        "algorithm.grail": settings.grail is not None,
        "algorithm.oar_g": settings.oar_g is not None,
        "reward.gar": settings.gar is not None,
        "algorithm.signals": settings.active,
        "algorithm.answers": settings.weighting is not None,
    }
    switch = {
        "algorithm.grail": "algorithm.adv_estimator=grail",
        "algorithm.oar_g": "algorithm.adv_estimator=oar_g",
        "reward.gar": "reward.reward_manager.name=gar",
        "algorithm.signals": "one of the methods",
        "algorithm.answers": "algorithm.adv_estimator=grail or oar_g",
    }
    for key, used in read.items():
        if not used and OmegaConf.select(config, key):
            logger.warning("%s is set but not read: it takes %s", key, switch[key])


def check_run(config: DictConfig) -> Settings:
    """Check a composed run config; returns its settings.

    Raises:
        ConfigError: naming the config key and the mend.
    """
    settings = load_settings(config)
    _warn_unread(config, settings)
    if settings.active:
        _check_trainer(config, settings)
        _check_actor(config)
        _check_recompute(config, settings)
        _check_weighting(config, settings)
        _check_gar(config, settings)
    _check_reward_function(config, settings)
    return settings


def _checked(function, config_of):
    if getattr(function, "_verl_grail", False):
        return function

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        check_run(config_of(*args, **kwargs))
        return function(*args, **kwargs)

    wrapper._verl_grail = True
    return wrapper


def wrap_validate_config(module) -> None:
    """Check in ``verl.utils.config.validate_config(config, use_reference_policy, use_critic)``."""
    module.validate_config = _checked(module.validate_config, lambda config, *a, **k: config)


def wrap_run_ppo(module) -> None:
    """Check in ``verl.trainer.main_ppo.run_ppo(config, task_runner_class)``, where the fully-async trainer passes."""
    module.run_ppo = _checked(module.run_ppo, lambda config, *a, **k: config)
