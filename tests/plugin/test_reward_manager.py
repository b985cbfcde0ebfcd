"""The gar manager on single rollouts: verdicts, formats, penalties, verifiers that fail or hang."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from verl import DataProto
from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

from tests.plugin.rows import TOKENIZER, encode
from verl_grail.config import GAR_REWARD_KEYS, ConfigError

GOOD = "<think>3 * 2 = 6</think>\n\\boxed{6}"
BROKEN = "3 * 2 = 6\n\\boxed{6}"
KEYS = set(GAR_REWARD_KEYS)


def verifier(solution_str, ground_truth, **_):
    return {"score": float(f"boxed{{{ground_truth}}}" in solution_str), "note": np.float32(3.0)}


def manager(compute_score=verifier, **gar):
    overrides = [
        "algorithm.adv_estimator=grpo", "reward.reward_manager.name=gar", "trainer.v1.trainer_mode=grail_sync",
        "actor_rollout_ref.actor.strategy=fsdp2", "actor_rollout_ref.actor.use_dynamic_bsz=True",
        *[f"+reward.gar.{k}={v}" for k, v in gar.items()],
    ]  # fmt: skip
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    return get_reward_manager_cls("gar")(config, TOKENIZER, compute_score)


def score(m, text, gold="6", pad=3, solution=GOOD):
    ids = [*encode(text), TOKENIZER.eos_token_id]
    responses = torch.tensor([ids + [0] * pad])
    mask = torch.tensor([[1, 1] + [1] * len(ids) + [0] * pad])
    cell = np.empty(1, dtype=object)
    cell[0] = solution
    data = DataProto.from_dict(
        tensors={"responses": responses, "attention_mask": mask, "prompts": torch.ones(1, 2, dtype=torch.int64)},
        non_tensors={
            "data_source": np.array(["t"], dtype=object),
            "reward_model": np.array([{"ground_truth": gold}], dtype=object),
            "extra_info": np.array([{}], dtype=object),
            "expert_solution": cell,
        },
    )
    return m.loop.run_until_complete(m.run_single(data))  # verl builds a manager inside its worker's loop


def test_pass():
    out = score(manager(), GOOD)
    info = out["reward_extra_info"]
    assert out["reward_score"] == 1.0 and info["gar_outcome"] == "pass" and info["acc"] == info["gar_pass"] == 1.0
    ids = encode(GOOD)
    assert TOKENIZER.decode(ids[info["gar_span_start"] : info["gar_span_end"]]) == "3 * 2 = 6"


def test_wrong_answer_gets_no_base_reward():
    out = score(manager(), GOOD, gold="7")
    assert out["reward_score"] == 0.0 and out["reward_extra_info"]["gar_outcome"] == "wrong"


@pytest.mark.parametrize("reading,penalty", [("paper", -0.1), ("authors_code", -0.6)])
def test_broken_format_cannot_pass(reading, penalty):
    out = score(manager(reading=reading), BROKEN)
    info = out["reward_extra_info"]
    assert out["reward_score"] == pytest.approx(penalty) and info["gar_format_penalty"] == pytest.approx(penalty)
    assert info["acc"] == 1.0 and info["gar_pass"] == 0.0 and info["gar_outcome"] == "format_broken"


def test_without_a_strict_format_the_response_is_the_span():
    out = score(manager(strict_format=False), BROKEN)
    info = out["reward_extra_info"]
    assert out["reward_score"] == 1.0 and (info["gar_span_start"], info["gar_span_end"]) == (0, len(encode(BROKEN)) + 1)


def test_whole_response_span():
    info = score(manager(span="response"), GOOD)["reward_extra_info"]
    assert (info["gar_span_start"], info["gar_span_end"]) == (0, len(encode(GOOD)) + 1)


def test_short_thinking_is_penalised_in_the_authors_reading():
    out = score(manager(reading="authors_code"), GOOD)
    assert out["reward_extra_info"]["gar_length_penalty"] == -0.5 and out["reward_score"] == 0.5
    out = score(manager(reading="authors_code", length_min=1), GOOD, solution=[GOOD])
    assert out["reward_score"] == 1.0
    assert score(manager(reading="authors_code"), GOOD, solution=None)["reward_score"] == 1.0


def test_no_outcome_reward():
    assert score(manager(outcome_reward=False), GOOD)["reward_score"] == 0.0


def named(outcome, graded=1.0, score=0.0):
    return lambda **_: {"score": score, "acc": score, "outcome": outcome, "graded": graded, "rule": "", "pred": "7"}


@pytest.mark.parametrize(
    ("verifier", "gar_outcome", "reward", "graded"),
    [
        (named("correct", score=1.0), "pass", 1.0, 1.0),
        (named("wrong"), "wrong", 0.0, 1.0),
        (named("no_answer"), "wrong", 0.0, 1.0),
        (named("timeout"), "verify_timeout", 0.0, 1.0),
        (named("crashed"), "verify_error", 0.0, 1.0),
        (named("unparseable_gold", graded=0.0), "ungraded", 0.0, 0.0),
    ],
)
def test_named_results_of_a_verifier_are_kept(verifier, gar_outcome, reward, graded):
    out = score(manager(verifier), GOOD)
    info = out["reward_extra_info"]
    assert (info["gar_outcome"], out["reward_score"], info["graded"]) == (gar_outcome, reward, graded)
    assert info["outcome"] == verifier()["outcome"] and set(info) == KEYS


def test_the_shipped_grader_under_the_manager():
    """Killable workers and named results, through verl's own loader."""
    import functools
    import importlib.util
    from pathlib import Path

    spec = importlib.util.spec_from_file_location("m", Path(__file__).parents[2] / "reward_fns/math_boxed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    m = manager(functools.partial(module.compute_score, seconds=1.0, workers=1))
    for answer, gold, outcome in (
        ("1+x", "x+1", "correct"),
        ("5+5^{5^{5^{5^{5}}}}", "7", "timeout"),
        ("2+x", "x+1", "wrong"),
        ("7", "\\begin{foo}", "unparseable_gold"),
    ):
        info = score(m, f"<think>so</think> \\boxed{{{answer}}}", gold=gold)["reward_extra_info"]
        assert info["outcome"] == outcome and info["graded"] == float(outcome != "unparseable_gold")


def hang(**_):
    time.sleep(5)


def test_waiting_for_a_place_does_not_count_as_verification(monkeypatch):
    def slow(**_):
        time.sleep(0.1)
        return 1.0

    m = manager(slow, verify_timeout_s=0.8)

    async def many():
        return await asyncio.gather(*[m.compute_score(solution_str="x") for _ in range(30)])

    verdicts = m.loop.run_until_complete(many())
    assert {v["gar_verified"] for v in verdicts} == {"verified"}


def crash(**_):
    raise ValueError("no")


async def slow_coroutine(**_):
    await asyncio.sleep(5)


@pytest.mark.parametrize(
    "bad,outcome", [(hang, "verify_timeout"), (slow_coroutine, "verify_timeout"), (crash, "verify_error")]
)
def test_a_verifier_that_hangs_or_raises_costs_one_sample(bad, outcome):
    start = time.monotonic()
    out = score(manager(bad, verify_timeout_s=0.2), GOOD)
    assert time.monotonic() - start < 4
    assert out["reward_score"] == 0.0 and out["reward_extra_info"]["gar_outcome"] == outcome
    assert out["reward_extra_info"]["gar_pass"] == 0.0


@pytest.mark.parametrize(
    "result", [float("nan"), {"score": float("nan")}, {"score": 1.0, "acc": None}, {"acc": 1}, "yes", None]
)
def test_odd_verifier_results_are_counted(result):
    out = score(manager(lambda **_: result), GOOD)
    assert np.isfinite(out["reward_score"]) and out["reward_extra_info"]["gar_outcome"] in (
        "wrong",
        "verify_error",
        "pass",
    )
    assert all(isinstance(v, (int, float, str)) and v == v for v in out["reward_extra_info"].values())


def test_keys_are_the_same_on_every_sample_and_flat():
    outs = [
        score(manager(), GOOD), score(manager(), GOOD, gold="7"), score(manager(), BROKEN), score(manager(crash), GOOD),
        score(manager(hang, verify_timeout_s=0.1), GOOD), score(manager(), ""), score(manager(), "<think>x"),
    ]  # fmt: skip
    for out in outs:
        assert set(out["reward_extra_info"]) == KEYS
        assert all(isinstance(v, (int, float, str)) for v in out["reward_extra_info"].values())
    kept = score(manager(extra_keys="[note,absent]"), GOOD)["reward_extra_info"]
    assert (kept["note"], kept["absent"]) == (3.0, 0.0)


def test_the_manager_refuses_a_trainer_that_would_pay_no_bonus():
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer", overrides=["reward.reward_manager.name=gar", "actor_rollout_ref.actor.strategy=fsdp2"]
        )
    with pytest.raises(ConfigError, match="grail_sync"):
        get_reward_manager_cls("gar")(config, TOKENIZER, verifier)
