"""Runs on replayed rollouts (verl's rollout skip), which take sampling out of the comparison."""

from __future__ import annotations

import pytest

SAME_NAMES = ["trainer.project_name=replay", "trainer.experiment_name=replay"]
NO_STD = "algorithm.norm_adv_by_std_in_grpo=False"
ONES = [f"+algorithm.grail.{k}=1.0" for k in ("w_mean", "w_min", "w_max")]


def _skip(cache) -> list[str]:
    skip = "skip.rollout_tq"
    return [*SAME_NAMES, f"{skip}.enable=True", f"{skip}.dump_dir={cache}", f"{skip}.steps=[1,2,3]"]


def _comparable(metrics: dict[str, float]) -> dict[str, float]:
    """Everything but times, throughput, memory, our own names, and the age of rollouts, which a replay renumbers."""
    ours = ("grail/", "gar/", "reward/rows/", "reward/graded_rate", "reward/correct_rate")
    left_out = ("timing", "perf/", "training/off_policy/", *ours)
    return {k: v for k, v in metrics.items() if not k.startswith(left_out) and "/perf/" not in k}


def _assert_same(a: dict[str, float], b: dict[str, float]) -> None:
    a, b = _comparable(a), _comparable(b)
    assert a.keys() == b.keys() and len(a) > 40
    for key, value in a.items():
        assert b[key] == pytest.approx(value, abs=1e-6, rel=1e-6), key


@pytest.fixture(scope="module")
def grpo(verl, tmp_path_factory):
    """verl's own GRPO under its own trainer: once to fill the cache, then twice on the replayed rollouts."""
    cache = tmp_path_factory.mktemp("cache")
    options = ["algorithm.adv_estimator=grpo", NO_STD, *_skip(cache)]
    verl("grpo", options, mode="sync")
    return cache, options, *[verl(f"grpo_again_{i}", options, mode="sync") for i in range(2)]


def test_grpo_reproduces_itself(grpo):
    _, _, once, again = grpo
    for step in (1, 2):
        _assert_same(once.metrics[step], again.metrics[step])


def test_our_mode_without_a_signal_is_verls_own_run(grpo, verl):
    _, options, _, again = grpo
    ours = verl("no_signal", options, mode="grail_sync")
    for step in (1, 2):
        _assert_same(again.metrics[step], ours.metrics[step])
        assert not any(k.startswith(("grail/", "timing_s/signal")) for k in ours.metrics[step])


def test_grail_with_all_weights_one_is_grpo(grpo, verl):
    cache, _, _, again = grpo
    options = ["algorithm.adv_estimator=grail", "+algorithm.grail.rollouts=all", *ONES, *_skip(cache)]
    ours = verl("ones", options, mode="grail_sync")
    for step in (1, 2):
        _assert_same(again.metrics[step], ours.metrics[step])
        assert ours.metrics[step]["grail/rows/weighted"] > 0
    weighted = verl("weighted", ["algorithm.adv_estimator=grail", "+algorithm.grail.rollouts=all", *_skip(cache)])
    with pytest.raises(AssertionError):  # the comparison does notice weights
        _assert_same(again.metrics[1], weighted.metrics[1])


def test_a_resumed_run_continues_with_the_same_numbers(verl, tmp_path):
    options = ["algorithm.adv_estimator=grail", "reward.reward_manager.name=gar", "+algorithm.grail.rollouts=all"]
    options += [*_skip(tmp_path / "cache"), "trainer.save_freq=1", f"trainer.default_local_dir={tmp_path}/checkpoints"]
    straight = verl("straight", options, steps=3)
    resume = ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={tmp_path}/checkpoints/global_step_2"]
    resumed = verl("resumed", [*options, *resume], steps=3)
    assert sorted(resumed.metrics) == [3]
    ours = [k for k in straight.metrics[3] if k.startswith(("grail/", "gar/"))]
    assert len(ours) > 20
    for key in ours:
        assert resumed.metrics[3][key] == pytest.approx(straight.metrics[3][key], abs=1e-5), key
    for key, value in _comparable(straight.metrics[3]).items():
        assert resumed.metrics[3][key] == pytest.approx(value, abs=1e-5, rel=1e-5), key
