"""Paired tests with their effect sizes and power, as plain functions of differences.

Every test takes the differences of pairs and returns a `Test`; where it is not defined, ``p`` is None and ``note`` says
why in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from verl_grail.evaluation.stats import Interval, bootstrap_interval, finite

ALTERNATIVES = ("two-sided", "greater", "less")
ALPHA = 0.05
_DIGITS = 12
"""Decimals of a difference: 0.6 - 0.5 and 0.4 - 0.3 are a tie, and not apart by 1e-17."""
_EXACT_PAIRS = 200
SIMULATIONS = 4000
_QUANTILES = 4000


@dataclass(frozen=True)
class Test:
    """Result of a paired test.

    Attributes:
        name: ``wilcoxon`` or ``paired t``.
        n: pairs that it uses (Wilcoxon: without those of no difference).
        statistic: Wilcoxon: sum of the positive ranks; t.
        p: None where the test is not defined.
        effect: Wilcoxon: matched-pairs rank-biserial correlation, in [-1, 1]; t: Cohen's dz.
        interval: of the effect, 95 %.
        note: what a reader has to know.
    """

    __test__ = False  # not a class of pytest's

    name: str
    n: int
    statistic: float | None = None
    p: float | None = None
    effect: float | None = None
    interval: Interval | None = None
    note: str = ""


def _differences(values: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.round(finite(values, "a list of differences"), _DIGITS)


def nonzero(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The differences that Wilcoxon's test uses."""
    given = _differences(values)
    return given[given != 0]


def _alternative(alternative: str) -> None:
    if alternative not in ALTERNATIVES:
        raise ValueError(f"alternative={alternative!r} is not one of: {', '.join(ALTERNATIVES)}")


# ------------------------------ Wilcoxon signed-rank ------------------------------


def signed_ranks(differences: np.ndarray) -> np.ndarray:
    """Midranks of the absolute differences with the differences' signs; the last axis is ranked. No zeros."""
    from scipy.stats import rankdata

    return np.sign(differences) * rankdata(np.abs(differences), axis=-1)


def rank_biserial(differences: np.ndarray, axis: int = -1) -> np.ndarray:
    """Matched-pairs rank-biserial correlation (Kerby 2014): (positive - negative ranks) / all; zeros have rank 0."""
    moved = np.moveaxis(np.asarray(differences, dtype=np.float64), axis, -1)
    # a zero ranks lowest: what the others get too much is the number of zeros
    zeros = (moved == 0).sum(axis=-1, keepdims=True)
    ranks = np.where(moved == 0, 0.0, signed_ranks(moved) - np.sign(moved) * zeros)
    total = np.abs(ranks).sum(axis=-1)
    return np.divide(ranks.sum(axis=-1), total, out=np.zeros_like(total), where=total > 0)


def exact_tails(ranks: np.ndarray, positive: float) -> tuple[float, float]:
    """P(W+ <= positive) and P(W+ >= positive) when every sign is a fair coin, given the ranks; exact with ties too.

    Args:
        ranks: midranks, positive, shape (n,).
        positive: sum of the ranks of positive differences.
    """
    chances = _sum_distribution(np.rint(2 * ranks).astype(int))  # midranks are halves
    at = round(2 * positive)
    return float(chances[: at + 1].sum()), float(chances[at:].sum())


def _sum_distribution(ranks: np.ndarray) -> np.ndarray:
    """Chance of every value of the sum over ranks that are each taken or left with chance 1/2; whole ranks."""
    chances = np.zeros(int(ranks.sum()) + 1)
    chances[0] = 1.0
    for rank in ranks:
        taken = np.zeros_like(chances)
        taken[rank:] = chances[: chances.size - rank]
        chances = (chances + taken) / 2
    return chances


def wilcoxon(differences: Sequence[float] | np.ndarray, alternative: str = "two-sided") -> Test:
    """Wilcoxon's signed-rank test; pairs without a difference are left out, as Wilcoxon did.

    scipy's exact test where there are neither ties nor zeros; the exact distribution given the ranks (`exact_tails`)
    where there are, which scipy would replace by a normal approximation; scipy's approximation above 200 pairs.

    Raises:
        ValueError: a difference that is not finite, or an unknown alternative.
    """
    from scipy import stats

    _alternative(alternative)
    given = _differences(differences)
    kept = nonzero(given)
    zeros = given.size - kept.size
    if not kept.size:
        note = f"all {given.size} differences are zero: nothing to test" if given.size else "no pairs"
        return Test("wilcoxon", 0, note=note)
    ranks = np.abs(signed_ranks(kept))
    positive = float(ranks[kept > 0].sum())
    ties = len(np.unique(ranks)) < ranks.size
    if kept.size > _EXACT_PAIRS:
        p = float(stats.wilcoxon(kept, alternative=alternative, method="asymptotic").pvalue)
    elif ties:
        low, high = exact_tails(ranks, positive)
        p = {"less": low, "greater": high, "two-sided": min(1.0, 2 * min(low, high))}[alternative]
    else:
        p = float(stats.wilcoxon(kept, alternative=alternative, method="exact").pvalue)
    notes = [f"{zeros} of {given.size} pairs have no difference and are left out"] if zeros else []
    smallest = (2 if alternative == "two-sided" else 1) / 2.0**kept.size
    if smallest > ALPHA:
        notes.append(f"{kept.size} pairs cannot give a p below {smallest:.3g}")
    return Test(
        "wilcoxon",
        int(kept.size),
        positive,
        p,
        float(rank_biserial(kept)),
        bootstrap_interval([given], rank_biserial),
        "; ".join(notes),
    )


# ------------------------------ paired t ------------------------------


def paired_t(differences: Sequence[float] | np.ndarray, alternative: str = "two-sided") -> Test:
    """Student's t of paired differences, with Cohen's dz (mean over standard deviation) and its interval.

    The interval inverts the noncentral t distribution.

    Raises:
        ValueError: a difference that is not finite, or an unknown alternative.
    """
    from scipy import stats

    _alternative(alternative)
    given = _differences(differences)
    n = int(given.size)
    if n < 2:
        return Test("paired t", n, note=f"{n} pair: a paired t test needs at least 2" if n else "no pairs")
    if np.ptp(given) == 0:
        what = "zero" if given[0] == 0 else f"equal ({given[0]:.4g})"
        return Test("paired t", n, note=f"all {n} differences are {what}: without spread there is no t")
    found = stats.ttest_1samp(given, 0.0, alternative=alternative)
    t = float(found.statistic)
    return Test("paired t", n, t, float(found.pvalue), t / math.sqrt(n), dz_interval(t, n))


def dz_interval(t: float, n: int, level: float = 0.95) -> Interval | None:
    """Interval of Cohen's dz: the noncentralities under which t is at the edge, over sqrt(n); None if not found.

    Args:
        t: statistic of a paired t test.
        n: its pairs, at least 2.
    """
    from scipy import optimize, stats

    if t < 0:  # scipy's distribution is at its best above zero
        mirrored = dz_interval(-t, n, level)
        return None if mirrored is None else Interval(-mirrored.high, -mirrored.low)
    tail, df = (1 - level) / 2, n - 1

    scale = np.sqrt(stats.chi2.ppf((np.arange(_QUANTILES) + 0.5) / _QUANTILES, df) / df)

    def above(nc: float, share: float) -> float:
        chance = float(stats.nct.cdf(t, df, nc))  # falls with nc
        if math.isnan(chance):  # far out: the same by the mean over quantiles of the estimated deviation
            chance = float(stats.norm.cdf(t * scale - nc).mean())
        return chance - share

    def edge(share: float) -> float:
        low = high = t
        step = 1.0
        while above(low, share) < 0:
            low, step = low - step, 2 * step
        step = 1.0
        while above(high, share) > 0:
            high, step = high + step, 2 * step
        return optimize.brentq(above, low, high, args=(share,))

    try:
        with np.errstate(all="ignore"):
            return Interval(edge(1 - tail) / math.sqrt(n), edge(tail) / math.sqrt(n))
    except (ValueError, RuntimeError):  # not a number on the way
        return None


# ------------------------------ power ------------------------------


def t_power(n: int, dz: float, alternative: str = "two-sided", alpha: float = ALPHA) -> float | None:
    """Chance that a paired t test of n pairs rejects at alpha if the effect is dz (statsmodels); None below 2 pairs."""
    from scipy.stats import norm, t
    from statsmodels.stats.power import TTestPower

    if n < 2:
        return None
    sides = {"two-sided": "two-sided", "greater": "larger", "less": "smaller"}[alternative]
    found = float(TTestPower().power(dz, n, alpha, alternative=sides))
    if math.isnan(found):  # the noncentral t of scipy gives up far out, where the normal distribution will do
        size = -dz if alternative == "less" else dz if alternative == "greater" else abs(dz)
        edge = t.isf(alpha / 2 if alternative == "two-sided" else alpha, n - 1)
        found = float(norm.sf(edge - size * math.sqrt(n)))
    return found


def wilcoxon_power(
    n: int,
    dz: float,
    alternative: str = "two-sided",
    alpha: float = ALPHA,
    simulations: int = SIMULATIONS,
    seed: int = 0,
) -> float | None:
    """The same for the signed-rank test, by simulation of normal differences; None without pairs.

    ``n`` counts the pairs that differ: the test leaves the others out.

    The Monte-Carlo error is at most ``0.5 / sqrt(simulations)``, 0.008 by default. The same draws are shifted for every
    dz, so that it grows with dz.
    """
    if n < 1:
        return None
    ranks = np.arange(1.0, n + 1)
    draws = np.random.default_rng(seed).standard_normal((simulations, n)) + dz
    ranked = signed_ranks(draws)
    positive = np.where(ranked > 0, ranked, 0.0).sum(axis=1)
    tail = alpha / 2 if alternative == "two-sided" else alpha
    # the most extreme sums that still reject: one for each side, the distribution being symmetric
    total = n * (n + 1) / 2
    edge = _lower_edge(ranks, tail)
    low, high = positive <= edge, positive >= total - edge
    rejects = {"two-sided": low | high, "greater": high, "less": low}[alternative]
    return float(rejects.mean())


def _lower_edge(ranks: np.ndarray, tail: float) -> float:
    """Largest whole w with P(W+ <= w) <= tail; -1 if there is none."""
    n = ranks.size
    if n > _EXACT_PAIRS:
        from scipy.stats import norm

        sd = math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return math.floor(n * (n + 1) / 4 + norm.ppf(tail) * sd)
    below = np.cumsum(_sum_distribution(ranks.astype(int)))
    return float(np.searchsorted(below, tail * (1 + 1e-12), side="right") - 1)


def detectable(power: Callable[[float], float | None], wanted: float = 0.8) -> float | None:
    """Smallest effect that is found with the wanted power; None if none up to dz = 16 is.

    Args:
        power: of an effect in the tested direction, growing.
    """
    from scipy.optimize import brentq

    high = 0.25  # doubled until it is enough: far out, nothing is to be gained and little to be computed
    while (power(high) or 0.0) < wanted:
        high *= 2
        if high > 20:
            return None
    return float(brentq(lambda dz: (power(dz) or 0.0) - wanted, 0.0, high, xtol=1e-3))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment of p values for their number (statsmodels); those that are None stay so and do not count."""
    from statsmodels.stats.multitest import multipletests

    given = [p for p in values if p is not None]
    adjusted = iter(multipletests(given, method="holm")[1]) if given else iter(())
    return [None if p is None else float(next(adjusted)) for p in values]
