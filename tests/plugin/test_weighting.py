"""Which rows are selected, what becomes of each, and the metrics that say so."""

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from tests.plugin.rows import BYTES, make_rows
from verl_grail.config import GrailConfig, OarGConfig, parse_section
from verl_grail.core.answers import AnswerPolicy
from verl_grail.core.grail import RowOutcome
from verl_grail.plugin.weighting import noise_key, plan_weighting, scale_ratio, weigh_grail, weigh_oar_g

ALGORITHM = OmegaConf.create({"gamma": 1.0, "norm_adv_by_std_in_grpo": True})
WEIGHTED, UNSELECTED, NO_ANSWER, ZERO, PADDING = (
    int(RowOutcome.WEIGHTED),
    int(RowOutcome.UNSELECTED),
    int(RowOutcome.NO_ANSWER),
    int(RowOutcome.ZERO_ADVANTAGE),
    int(RowOutcome.PADDING),
)
RIGHT, WRONG, NONE = r"2 + 3 is \boxed{5}.", r"2 + 3 is \boxed{6}.", "2 + 3 is 5."


def rows():
    return make_rows(
        [
            {"key": "a_0_0", "text": RIGHT, "reward": 1.0, "info": {"acc": 1.0}},
            {"key": "a_1_0", "text": WRONG, "reward": 0.0, "info": {"acc": 0.0}},
            {"key": "a_2_0", "text": NONE, "reward": 0.0, "info": {"acc": 0.0}},
            {"key": "b_0_0", "text": WRONG, "reward": 0.0, "info": {"acc": 0.0}},  # zero-advantage group
            {"key": "b_1_0", "text": WRONG, "reward": 0.0, "info": {"acc": 0.0}},
            {"key": "c_0_0", "text": RIGHT, "reward": 1.0, "info": {"acc": 1.0}},  # all pass
            {"key": "c_1_0", "text": RIGHT, "reward": 1.0, "info": {"acc": 1.0}},
            {"key": "pad_0_0", "text": "x", "padding": True},
        ]
    )


def plan(section=None, cls=GrailConfig, data=None, **kwargs):
    return plan_weighting(data or rows(), parse_section(cls, section), BYTES, ALGORITHM, **kwargs)


def test_wrong_rollouts_by_default():
    got = plan().outcome.tolist()
    assert got == [UNSELECTED, WEIGHTED, NO_ANSWER, ZERO, ZERO, UNSELECTED, UNSELECTED, PADDING]


def test_correct_and_all():
    assert plan({"rollouts": "correct"}).outcome.tolist()[:3] == [WEIGHTED, UNSELECTED, UNSELECTED]
    got = plan({"rollouts": "all"}).outcome.tolist()
    assert got == [WEIGHTED, WEIGHTED, NO_ANSWER, ZERO, ZERO, ZERO, ZERO, PADDING]


def test_selection_by_advantage_takes_in_all_correct_groups():
    got = plan({"select_by": "advantage", "skip_zero_advantage": False}).outcome.tolist()
    assert got == [UNSELECTED, WEIGHTED, NO_ANSWER, WEIGHTED, WEIGHTED, WEIGHTED, WEIGHTED, PADDING]


def test_zero_advantage_rows_are_kept_where_the_advantage_may_still_change():
    assert plan({"rollouts": "all"}, advantage_is_final=False).outcome.tolist()[3:7] == [WEIGHTED] * 4
    assert plan({"rollouts": "all", "skip_zero_advantage": False}).outcome.tolist()[3:7] == [WEIGHTED] * 4
    # GAR may still change group c, and nothing else
    got = plan({"rollouts": "all"}, bonus_groups=frozenset("c")).outcome.tolist()
    assert got[3:7] == [ZERO, ZERO, WEIGHTED, WEIGHTED]
    # under a base that whitens over the batch, one group's bonus moves every advantage
    section = {"rollouts": "all", "base_estimator": "reinforce_plus_plus"}
    assert ZERO not in plan(section, bonus_groups=frozenset("c")).outcome.tolist()


def test_verdict_falls_back_to_the_score():
    data = rows()
    data.info = [{} for _ in data.keys]
    assert plan(data=data).outcome.tolist() == plan().outcome.tolist()


@pytest.mark.parametrize(
    "acc,correct",
    [(True, True), (np.bool_(False), False), (0, False), (0.5, True), (None, True), ("yes", True), ([1], True)],
)
def test_odd_verdicts_fall_back_to_the_score(acc, correct):
    data = make_rows([{"key": "a_0_0", "text": RIGHT, "reward": 1.0, "info": {"acc": acc}}])
    assert data.correct.tolist() == [correct]


def test_a_box_in_a_tools_output_is_no_answer():
    data = make_rows(
        [
            {"key": "a_0_0", "text": WRONG, "reward": 0.0},
            {"key": "a_1_0", "text": RIGHT, "reward": 1.0},
        ]
    )
    data.response_mask[0, 4:] = 0
    assert plan(data=data).outcome.tolist() == [NO_ANSWER, UNSELECTED]


def test_grail_weights_and_metrics():
    data = rows()
    p = plan({"rollouts": "all"}, data=data)
    torch.manual_seed(0)
    saliency = torch.rand(data.response_mask.shape)
    done = weigh_grail(data, p, parse_section(GrailConfig, {"rollouts": "all"}), saliency)
    assert (done.weights[2:] == 1).all() and not (done.weights[0] == 1).all()
    m = done.metrics
    assert m["grail/answer_found_rate"] == pytest.approx(6 / 7)
    assert m["grail/rows/weighted"] == 2 and m["grail/rows/zero_advantage"] == 4 and m["grail/rows/no_answer"] == 1
    assert m["grail/rows_skipped"] == 5
    assert m["grail/fallback_rate"] == pytest.approx(1 / 3)  # asked for 3: two weighted, one without an answer
    live = done.weights[:2][data.response_mask[:2].bool()]
    assert m["grail/weight_mean"] == pytest.approx(live.mean().item())
    assert m["grail/weight_std"] == pytest.approx(live.std(unbiased=False).item())
    s = saliency[:2][p.regions.reasoning[:2]]
    assert m["grail/grad_norm_p10"] == pytest.approx(torch.quantile(s, 0.1).item(), rel=1e-5)
    assert 0 <= m["grail/clip_frac_min"] <= 1 and 0 <= m["grail/clip_frac_max"] <= 1


def test_one_bad_row_is_counted_and_costs_nothing_else():
    data = rows()
    p = plan({"rollouts": "all"}, data=data)
    saliency = torch.rand(data.response_mask.shape)
    saliency[1] = float("nan")
    done = weigh_grail(data, p, parse_section(GrailConfig, {"rollouts": "all"}), saliency)
    assert done.outcome[1] == RowOutcome.NON_FINITE and done.metrics["grail/rows/non_finite"] == 1
    assert torch.isfinite(done.weights).all() and done.outcome[0] == RowOutcome.WEIGHTED


def test_a_whole_batch_of_constant_saliency_is_an_error():
    data = rows()
    p = plan({"rollouts": "all"}, data=data)
    with pytest.raises(RuntimeError, match="saliency of every selected rollout is constant"):
        weigh_grail(data, p, parse_section(GrailConfig, {"rollouts": "all"}), torch.zeros(data.response_mask.shape))


def test_oar_g_outcomes():
    data = rows()
    p = plan(cls=OarGConfig, data=data)
    signal = torch.rand(data.response_mask.shape)
    signal[1] = float("inf")
    done = weigh_oar_g(data, p, parse_section(OarGConfig, None), signal)
    assert done.outcome.tolist()[:3] == [WEIGHTED, int(RowOutcome.NON_FINITE), NO_ANSWER]
    assert done.weights[0][data.response_mask[0].bool()].sum().item() == pytest.approx(
        data.response_mask[0].sum().item(), rel=1e-5
    )


def test_oar_g_with_nothing_before_the_answer():
    data = make_rows(
        [{"key": "a_0_0", "text": r"\boxed{6}.", "reward": 0.0}, {"key": "a_1_0", "text": RIGHT, "reward": 1.0}]
    )
    done = weigh_oar_g(
        data, plan(cls=OarGConfig, data=data), parse_section(OarGConfig, None), torch.rand(data.response_mask.shape)
    )
    assert done.outcome.tolist() == [int(RowOutcome.NO_SCORED_TOKENS), WEIGHTED] and (done.weights[0] == 1).all()


def test_noise_key_is_a_function_of_the_content():
    assert noise_key([1, 2, 3]) == noise_key([1, 2, 3]) != noise_key([1, 2, 4])


def test_scale_ratio():
    base, mask = torch.tensor([[1.0, -1.0, 9.0]]), torch.tensor([[1, 1, 0]])
    assert scale_ratio(base, torch.tensor([[2.0, 0.5, 7.0]]), mask) == pytest.approx(1.25)
    assert scale_ratio(torch.zeros(1, 3), torch.ones(1, 3), mask) == 1.0


def test_truncated_completions():
    data = make_rows([{"key": "a_0_0", "text": "abcdefgh"}, {"key": "a_1_0", "text": "ab"}])
    limit = len(data.responses[0])
    assert data.truncated(limit, None, frozenset([1])).tolist() == [True, False]
    assert data.truncated(limit, None, frozenset([data.responses[0][-1]])).tolist() == [False, False]
    # cut by the context length before the response limit
    assert data.truncated(10 * limit, len(data.prompts[0]) + limit, frozenset([1])).tolist() == [True, False]


def test_rows_without_a_verdict_are_no_wrong_rows():
    """Base estimators that whiten over the batch must not see their zeros either."""
    data = rows()
    data.info[0] = {"graded": 0.0, "outcome": "unparseable_gold", "acc": 0.0}
    got = plan({"rollouts": "all", "base_estimator": "reinforce_plus_plus"}, data=data).outcome.tolist()
    assert got[0] == int(RowOutcome.UNGRADED) and got[1] == WEIGHTED


def test_the_answer_is_the_policys():
    data = make_rows(
        [
            {"key": "a_0_0", "text": r"\boxed{5}, \boxed{6}", "reward": 0.0},
            {"key": "a_1_0", "text": RIGHT, "reward": 1.0},
        ]
    )
    last = plan(data=data).spans[0]
    both = plan(data=data, policy=AnswerPolicy(several="set")).spans[0]
    assert len(last.contents) == 1 and len(both.contents) == 2 and both.start < last.start and both.end == last.end
    assert plan(data=data, policy=AnswerPolicy(locator="answer_tag")).spans == [None, None]
