"""The tests against enumeration, formulas and simulation."""

from __future__ import annotations

import itertools
import math
import statistics

import mpmath
import numpy as np
import pytest
from scipy import stats

from verl_grail.evaluation.significance import (
    detectable,
    dz_interval,
    exact_tails,
    holm,
    paired_t,
    rank_biserial,
    t_power,
    wilcoxon,
    wilcoxon_power,
)


def enumerated(differences, alternative):
    """p of the signed-rank test: every one of the 2^n signs, on the midranks of what is not zero."""
    kept = [d for d in differences if d]
    sizes = sorted(map(abs, kept))
    ranks = [statistics.mean(i + 1 for i, s in enumerate(sizes) if s == abs(d)) for d in kept]
    positive = sum(r for r, d in zip(ranks, kept, strict=True) if d > 0)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(kept))]
    low = sum(s <= positive for s in sums) / len(sums)
    high = sum(s >= positive for s in sums) / len(sums)
    return positive, {"less": low, "greater": high, "two-sided": min(1.0, 2 * min(low, high))}[alternative]


CASES = {
    "plain": [1.2, -0.4, 3.1, 2.2, 0.7, -1.9, 2.5],
    "all of one sign": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    "ties": [1.0, -1.0, 2.0, 2.0, -2.0, 3.0, 4.0, 4.0],
    "zeros": [0.0, 1.0, -2.0, 0.0, 3.0, 4.0],
    "ties and zeros": [0.0, 1.0, 1.0, -1.0, 2.0, 3.0, 3.0],
    "one": [0.5],
}


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
@pytest.mark.parametrize("case", CASES)
def test_wilcoxon_is_the_enumerated_distribution(case, alternative):
    found = wilcoxon(CASES[case], alternative)
    positive, p = enumerated(CASES[case], alternative)
    assert (found.statistic, found.p) == (positive, pytest.approx(p, rel=1e-12))


def test_the_exact_distribution_is_scipys_without_ties():
    rng = np.random.default_rng(0)
    for n in (3, 10, 30, 50):
        d = rng.standard_normal(n) + 0.3
        ranks = stats.rankdata(abs(d))
        low, high = exact_tails(ranks, ranks[d > 0].sum())
        for alternative, p in (("less", low), ("greater", high)):
            assert p == pytest.approx(stats.wilcoxon(d, alternative=alternative, method="exact").pvalue, rel=1e-9)


def test_the_published_p_is_the_one_sided_exact_one():
    """GRAIL: W = 459.5 over 5 models x 6 benchmarks, p = 1.3e-8. 465 is all ranks, so the negative ones add up to 5.5;
    rounded to 6, 14 of the 2^30 signs do no better."""
    low_sums = sum(sum(c) <= 6 for size in range(4) for c in itertools.combinations(range(1, 7), size))
    assert low_sums == 14 and pytest.approx(1.3e-8, rel=0.01) == low_sums / 2**30
    d = np.arange(1.0, 31.0)
    d[4:6] = 5.5, -5.5  # ranks 5 and 6 tied, one of them negative
    greater = wilcoxon(d, "greater")
    assert greater.statistic == 459.5 and greater.n == 30
    assert greater.p == pytest.approx(11 / 2**30, rel=1e-9)  # with the tie kept: 11 signs do no better
    assert wilcoxon(d).p == pytest.approx(22 / 2**30, rel=1e-9)


def test_many_pairs_take_the_approximation():
    d = np.random.default_rng(1).standard_normal(300) + 0.1
    assert wilcoxon(d).p == pytest.approx(stats.wilcoxon(d, method="asymptotic").pvalue)


def test_differences_equal_up_to_rounding_are_ties():
    noisy = [0.6 - 0.5, 0.4 - 0.3, -(0.3 - 0.2), 0.7, 0.1 + 0.2 - 0.3]
    assert wilcoxon(noisy).p == wilcoxon([0.1, 0.1, -0.1, 0.7, 0.0]).p
    assert wilcoxon(noisy).n == 4


def test_what_wilcoxon_cannot_say_is_said_in_words():
    assert wilcoxon([]).p is None and wilcoxon([]).note == "no pairs"
    none = wilcoxon([0.0, 0.0])
    assert none.p is None and none.note == "all 2 differences are zero: nothing to test"
    few = wilcoxon([1.0, 2.0, 3.0, 4.0])
    assert few.p == 0.125 and few.note == "4 pairs cannot give a p below 0.125"
    assert not wilcoxon([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).note  # 2 / 2^6 = 0.031
    assert wilcoxon(CASES["zeros"]).note.startswith("2 of 6 pairs have no difference and are left out")
    with pytest.raises(ValueError, match="not finite"):
        wilcoxon([0.1, float("nan")])
    with pytest.raises(ValueError, match="is not one of"):
        wilcoxon([0.1], "larger")


def test_rank_biserial_by_hand():
    # ranks 1..5, negative ones 2 and 5: (8 - 7) / 15
    assert rank_biserial(np.array([1.0, -2.0, 3.0, 4.0, -5.0])) == pytest.approx(1 / 15)
    # zeros have no rank: of 1, -2, 3 the ranks 1, 2, 3
    assert rank_biserial(np.array([0.0, 0.0, 1.0, -2.0, 3.0])) == pytest.approx(2 / 6)
    assert rank_biserial(np.zeros(3)) == 0.0
    table = np.array([[1.0, -2.0], [0.0, 2.0]])
    assert rank_biserial(table).tolist() == pytest.approx([-1 / 3, 1.0])
    assert wilcoxon([1.0, 2.0]).effect == 1.0 and wilcoxon([-1.0, -2.0]).effect == -1.0
    found = wilcoxon([3.0, -1.0, 2.0, 4.0, -0.5, 5.0, 2.5, 1.5])
    assert found.interval.low < found.effect <= found.interval.high <= 1


D = [2.1, -0.3, 1.4, 0.8, 3.0, 1.1, -0.6, 1.9, 0.4, 1.2]


@pytest.mark.parametrize("alternative", ["two-sided", "greater", "less"])
def test_paired_t_by_its_formula(alternative):
    n, mean, sd = len(D), statistics.mean(D), statistics.stdev(D)
    t = mean / (sd / math.sqrt(n))
    tail = float(mpmath.betainc((n - 1) / 2, 0.5, 0, (n - 1) / (n - 1 + t * t), regularized=True)) / 2
    found = paired_t(D, alternative)
    assert (found.n, found.statistic, found.effect) == (n, pytest.approx(t), pytest.approx(mean / sd))
    assert found.p == pytest.approx({"two-sided": 2 * tail, "greater": tail, "less": 1 - tail}[alternative], rel=1e-9)


def test_the_interval_of_dz_are_the_effects_that_just_explain_t():
    found = paired_t(D)
    rng, n = np.random.default_rng(0), len(D)
    draws = rng.standard_normal((200_000, n))
    for edge, share in ((found.interval.low, 0.025), (found.interval.high, 0.975)):
        shifted = draws + edge
        t = shifted.mean(axis=1) / (shifted.std(axis=1, ddof=1) / math.sqrt(n))
        assert (t >= found.statistic).mean() == pytest.approx(share, abs=0.002)
    for t, pairs in ((0.0, 5), (0.3, 2), (30.0, 10), (4.0, 300), (19.69, 3), (25.5, 3)):
        assert dz_interval(t, pairs).low < t / math.sqrt(pairs) < dz_interval(t, pairs).high
    assert dz_interval(-found.statistic, n).low == pytest.approx(-found.interval.high, abs=1e-6)


def test_what_t_cannot_say_is_said_in_words():
    assert paired_t([]).note == "no pairs"
    assert paired_t([1.0]).note == "1 pair: a paired t test needs at least 2"
    assert paired_t([0.1, 0.4 - 0.3]).note.startswith("all 2 differences are equal (0.1)")
    assert paired_t([0.0, 0.0]).note.startswith("all 2 differences are zero")
    assert all(paired_t(d).p is None for d in ([], [1.0], [2.0, 2.0]))


@pytest.mark.parametrize("alternative", ["two-sided", "greater"])
@pytest.mark.parametrize(("n", "dz"), [(10, 0.8), (24, 0.5)])
def test_power_is_how_often_the_tests_reject(n, dz, alternative):
    draws = np.random.default_rng(5).standard_normal((4000, n)) + dz
    t = stats.ttest_1samp(draws, 0.0, axis=1, alternative=alternative).pvalue
    w = stats.wilcoxon(draws, axis=1, alternative=alternative, method="exact").pvalue
    assert t_power(n, dz, alternative) == pytest.approx((t <= 0.05).mean(), abs=0.025)
    assert wilcoxon_power(n, dz, alternative) == pytest.approx((w <= 0.05).mean(), abs=0.035)


def test_power_at_its_ends():
    assert wilcoxon_power(5, 10.0) == 0.0  # 2 / 2^5 is above 0.05
    assert wilcoxon_power(5, 10.0, "greater") == 1.0
    assert wilcoxon_power(6, -10.0, "less") == 1.0 and wilcoxon_power(6, -10.0, "greater") == 0.0
    assert wilcoxon_power(30, 0.0) == pytest.approx(0.05, abs=0.015)
    assert wilcoxon_power(300, 0.0) == pytest.approx(0.05, abs=0.015)
    assert t_power(10, 7.894736842105264) == 1.0 and t_power(10, -7.894736842105264, "greater") == 0.0
    assert wilcoxon_power(0, 1.0) is None and t_power(1, 1.0) is None
    smallest = detectable(lambda dz: wilcoxon_power(30, dz))
    assert wilcoxon_power(30, smallest) == pytest.approx(0.8, abs=0.01)
    assert detectable(lambda dz: t_power(10, dz)) == pytest.approx(1.0, abs=0.01)  # Cohen's tables: n = 10, dz = 1.0
    assert detectable(lambda dz: wilcoxon_power(5, dz)) is None


def test_holm_by_hand():
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]
    assert holm([None]) == [None] and holm([]) == []
