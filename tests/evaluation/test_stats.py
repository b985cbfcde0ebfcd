"""pass@k against its published definition and enumeration; bootstrap intervals against formulas and their coverage."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from verl_grail.evaluation.stats import bootstrap_interval, mean_or_none, pass_at_k, spread


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n):
    for c in range(n + 1):
        samples = [1] * c + [0] * (n - c)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(samples, k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)


def test_pass_at_k_by_hand():
    assert pass_at_k(4, 1, 2) == 0.5
    assert pass_at_k(3, 1, 3) == 1.0  # GRAIL's pass@3 of three samples: any of them
    assert pass_at_k(5, 2, 2) == pytest.approx(1 - 3 / 10)
    assert [pass_at_k(16, c, 1) for c in (0, 4, 16)] == [0.0, 0.25, 1.0]


def test_pass_at_k_is_the_published_definition():
    """Chen et al. 2021, figure 3: ``1 - prod(1 - k / arange(n - c + 1, n + 1))``."""

    def published(n, c, k):
        return 1.0 if n - c < k else 1.0 - np.prod(1.0 - k / np.arange(n - c + 1, n + 1))

    for n, k in ((160, 16), (200, 100), (16, 16)):
        for c in range(n + 1):
            assert pass_at_k(n, c, k) == pytest.approx(published(n, c, k), abs=1e-12)


def test_pass_at_k_is_unbiased_and_the_plug_in_is_not():
    n, k, p = 6, 3, 0.3
    chances = [math.comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    truth = 1 - (1 - p) ** k
    assert sum(w * pass_at_k(n, c, k) for c, w in enumerate(chances)) == pytest.approx(truth, abs=1e-12)
    assert abs(sum(w * (1 - (1 - c / n) ** k) for c, w in enumerate(chances)) - truth) > 0.02


@pytest.mark.parametrize("wrong", [(3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)])
def test_pass_at_k_refuses_numbers_that_do_not_fit(wrong):
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(*wrong)


def test_the_interval_of_many_problems_is_the_normal_one():
    values = np.random.default_rng(1).random(400)
    found = bootstrap_interval([values])
    half = 1.96 * values.std(ddof=1) / 20
    assert found.low == pytest.approx(values.mean() - half, abs=0.15 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.15 * half)
    assert bootstrap_interval([values]) == found  # seeded


def test_the_interval_of_an_average_resamples_within_each_benchmark():
    rng = np.random.default_rng(2)
    small, large = rng.random(40), 0.2 * rng.random(1000)
    found = bootstrap_interval([small, large])
    half = 1.96 * math.sqrt(small.var(ddof=1) / 40 + large.var(ddof=1) / 1000) / 2
    assert (found.high - found.low) / 2 == pytest.approx(half, rel=0.15)
    assert found.low < (small.mean() + large.mean()) / 2 < found.high


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    truth, hits, trials = 0.7, 0, 150
    for _ in range(trials):
        found = bootstrap_interval([(rng.random(60) < truth).astype(float)])
        hits += found.low <= truth <= found.high
    assert 0.89 <= hits / trials <= 0.99


@pytest.mark.parametrize("samples", [[], [[0.5]], [[1.0, 1.0, 1.0]], [[0.0, 1.0], [1.0]], [[1 / 3, 1 - 2 / 3]]])
def test_no_interval_where_resampling_says_nothing(samples):
    assert bootstrap_interval([np.array(s) for s in samples]) is None


def test_scores_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="not finite"):
        bootstrap_interval([np.array([0.0, np.nan])])


def test_mean_and_spread():
    assert mean_or_none([]) is None and mean_or_none([1.0, 2.0]) == 1.5
    assert spread([1.0]) is None and spread([1.0, 3.0]) == pytest.approx(math.sqrt(2))
