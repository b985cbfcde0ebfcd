"""The registered estimators against verl's own functions."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from verl_grail.config import BASE_ESTIMATORS, BASES_WITH_STD, ConfigError, GrailConfig, parse_section
from verl_grail.plugin.estimators import Handover, Sessions, hand_over

CONFIG = OmegaConf.create({"gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": True, "adv_estimator": "grail"})
REFUSED = sorted({e.value for e in core_algos.AdvantageEstimator} - set(BASE_ESTIMATORS))


def _batch(seed=0):
    g = torch.Generator().manual_seed(seed)
    mask = torch.ones(8, 6, dtype=torch.int64)
    for i in range(8):
        mask[i, int(torch.randint(3, 7, (1,), generator=g)) :] = 0
    rewards = torch.zeros(8, 6)
    last = mask.sum(1) - 1
    rewards[torch.arange(8), last] = torch.rand(8, generator=g).round(decimals=1)
    return rewards, mask, np.array(["a"] * 4 + ["b"] * 4, dtype=object)


KEYS = [f"{u}_{s}_0" for u in "ab" for s in range(4)]


def _call(section, weights, batch, keys=None, name="grail", padding=None):
    rewards, mask, index = batch
    padding = torch.zeros(len(weights), dtype=torch.bool) if padding is None else padding
    handover = Handover(weights, Sessions.from_keys(keys or KEYS), section, padding)
    with hand_over(handover):
        return core_algos.get_adv_estimator_fn(name)(
            token_level_rewards=rewards, response_mask=mask, config=CONFIG, index=index
        )


@pytest.mark.parametrize("name", ["grail", "oar_g"])
@pytest.mark.parametrize("base", BASE_ESTIMATORS)
@pytest.mark.parametrize("norm", [False, True])
def test_weights_of_one_return_the_bases_tensor_bit_for_bit(name, base, norm):
    if norm and base not in BASES_WITH_STD:
        with pytest.raises(ConfigError, match=rf"norm_adv_by_std=True has no effect on .*base_estimator={base}"):
            parse_section(GrailConfig, {"base_estimator": base, "norm_adv_by_std": norm})
        return
    section = parse_section(GrailConfig, {"base_estimator": base, "norm_adv_by_std": norm})
    batch = _batch()
    got, returns = _call(section, torch.ones(8, 6), batch, name=name)
    kwargs = {"norm_adv_by_std_in_grpo": norm} if base in ("grpo", "grpo_vectorized") else {}
    config = OmegaConf.merge(CONFIG, {"norm_adv_by_std_in_grpo": norm})
    want, want_returns = core_algos.get_adv_estimator_fn(base)(
        token_level_rewards=batch[0], response_mask=batch[1], index=batch[2], config=config, **kwargs
    )
    assert torch.equal(got, want) and torch.equal(returns, want_returns)
    assert CONFIG.norm_adv_by_std_in_grpo is True  # verl's own config is left as it is


def test_the_default_base_is_dr_grpo():
    rewards, mask, index = _batch()
    got, _ = _call(parse_section(GrailConfig, None), torch.ones(8, 6), (rewards, mask, index))
    scores = rewards.sum(1)
    want = torch.cat([scores[:4] - scores[:4].mean(), scores[4:] - scores[4:].mean()])
    torch.testing.assert_close(got, want.unsqueeze(1) * mask)


def test_weights_multiply():
    section, batch = parse_section(GrailConfig, None), _batch()
    weights = torch.rand(8, 6) + 0.5
    ones, _ = _call(section, torch.ones(8, 6), batch)
    got, returns = _call(section, weights, batch)
    assert torch.equal(got, ones * weights) and torch.equal(returns, ones)


@pytest.mark.parametrize("base", REFUSED)
def test_other_bases_are_refused_by_name(base):
    with pytest.raises(ConfigError, match=rf"algorithm.grail.base_estimator='{base}'"):
        parse_section(GrailConfig, {"base_estimator": base})


@pytest.mark.parametrize("norm", [False, True])
def test_multi_output_sessions_are_treated_as_verl_treats_them_for_grpo(norm):
    keys = ["a_0_0", "a_0_1", "a_1_0", "a_2_0", "a_2_1", "a_2_2", "b_0_0", "b_1_0"]
    rewards, mask, _ = _batch(1)
    index = np.array([k[0] for k in keys], dtype=object)
    got, _ = _call(
        parse_section(GrailConfig, {"norm_adv_by_std": norm}), torch.ones(8, 6), (rewards, mask, index), keys
    )
    data = DataProto.from_dict(
        tensors={"token_level_rewards": rewards, "response_mask": mask}, non_tensors={"uid": index}
    )
    want = compute_advantage_for_multi_trajectories(data, keys, "grpo", norm_adv_by_std_in_grpo=norm, config=CONFIG)
    assert torch.equal(got, want.batch["advantages"])


@pytest.mark.parametrize("base", BASE_ESTIMATORS)
@pytest.mark.parametrize("pads", [1, 2])
def test_padding_rows_get_zeros_and_change_nothing_for_the_others(base, pads):
    section = parse_section(GrailConfig, {"base_estimator": base})
    rewards, mask, index = _batch()
    plain, _ = _call(section, torch.ones(8, 6), (rewards, mask, index))
    padded = (
        torch.cat([rewards, torch.zeros(pads, 6)]),
        torch.cat([mask, torch.zeros(pads, 6, dtype=torch.int64)]),
        np.append(index, np.array(["pad"] * pads, dtype=object)),
    )
    keys = [*KEYS, *[f"pad_{i}_0" for i in range(pads)]]
    padding = torch.tensor([False] * 8 + [True] * pads)
    got, returns = _call(section, torch.ones(8 + pads, 6), padded, keys, padding=padding)
    assert torch.equal(got[:8], plain) and (got[8:] == 0).all() and torch.isfinite(returns).all()


@pytest.mark.parametrize("name", ["grail", "oar_g"])
def test_without_a_signal_pass_it_names_the_setting(name):
    rewards, mask, index = _batch()
    with pytest.raises(ConfigError, match=r"trainer.v1.trainer_mode to grail_sync"):
        core_algos.get_adv_estimator_fn(name)(
            token_level_rewards=rewards, response_mask=mask, config=CONFIG, index=index
        )


def test_weights_of_another_batch_are_refused():
    with pytest.raises(RuntimeError, match="shape"):
        _call(parse_section(GrailConfig, None), torch.ones(8, 5), _batch())
