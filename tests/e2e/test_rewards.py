"""verl's whole trainer with reward_fns/math_boxed.py: a verifier that hangs, and golds that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.hanging_grader import unreadable

BOTH = ["algorithm.adv_estimator=grail", "reward.reward_manager.name=gar", "+reward.gar.strict_format=False"]
GRADER = f"reward.custom_reward_function.path={Path(__file__).with_name('hanging_grader.py')}"
KWARGS = "+reward.custom_reward_function.reward_kwargs"
HANG_EVERY = 10
SECONDS = 1.0


@pytest.fixture(scope="module")
def calm(verl):
    """The same run with nothing that hangs, golds that cannot be read (every seventh), and two reward workers."""
    settings = [f"{KWARGS}.seconds={SECONDS}", f"{KWARGS}.spoil_every=7", "reward.num_workers=2"]
    return verl("calm", [*BOTH, GRADER, *settings], steps=3)


@pytest.fixture(scope="module")
def hanging(verl):
    """Ten percent of the responses hang the verifier."""
    return verl("hanging", [*BOTH, GRADER, f"{KWARGS}.seconds={SECONDS}", f"{KWARGS}.hang_every={HANG_EVERY}"], steps=3)


def test_hung_verifications_are_counted_and_lose_nothing(hanging):
    total = 0
    for step in (1, 2, 3):
        rollouts, m = hanging.rollouts(step), hanging.metrics[step]
        hung = [r for r in rollouts if r["outcome"] == "timeout"]
        total += len(hung)
        assert len(rollouts) == 32
        assert m["reward/rows/timeout"] == m["gar/rows/verify_timeout"] == len(hung)
        assert all(r["score"] <= 0 and r["gar_cosine"] is None for r in hung)
        assert sum(v for k, v in m.items() if k.startswith("reward/rows/")) == 32
        assert m["reward/correct_rate"] == pytest.approx(sum(r["acc"] for r in rollouts) / 32)
    assert total == 3 * 32 // HANG_EVERY
    assert "reward/rows/timeout" in hanging.log


def test_hung_verifications_do_not_hold_up_the_step(calm, hanging):
    """Work that hangs costs its deadline on one of several workers, while other rollouts are still generated."""
    for step in (2, 3):
        hung = hanging.metrics[step]["reward/rows/timeout"]
        waited = hanging.metrics[step]["timing_s/step"] - calm.metrics[step]["timing_s/step"]
        print(f"step {step}: {hung:.0f} of 32 hung, {waited:+.1f} s against the calm run")
        assert waited < hung * SECONDS + 10


def test_rows_without_a_readable_gold_are_dropped_from_rewards_and_loss(calm):
    dropped = 0
    for step in (1, 2, 3):
        rollouts, m = calm.rollouts(step), calm.metrics[step]
        spoiled = [r for r in rollouts if unreadable(str(r["gts"]), 7)]
        graded = [r for r in rollouts if not unreadable(str(r["gts"]), 7)]
        dropped += len(spoiled)
        assert m["reward/rows/unparseable_gold"] == m["gar/rows/ungraded"] == len(spoiled)
        assert m["reward/graded_rate"] == pytest.approx(1 - len(spoiled) / 32)
        for r in spoiled:
            assert (r["outcome"], r["grail_outcome"], set(r["advantages"])) == ("unparseable_gold", "ungraded", {0.0})
        assert m["critic/score/mean"] == pytest.approx(sum(r["score"] for r in graded) / len(graded), abs=1e-5)
    assert dropped > 0
