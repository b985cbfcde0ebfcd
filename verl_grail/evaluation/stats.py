"""Statistics of one evaluation, as plain functions of numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

RESAMPLES = 2000
_DIGITS = 12
"""Decimals that scores are rounded to before they are compared: thirds that should be equal differ in the 17th."""


@dataclass(frozen=True)
class Interval:
    """A confidence interval."""

    low: float
    high: float


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k samples is right, without bias: ``1 - C(n-c, k) / C(n, k)``.

    Chen et al. 2021 (arXiv 2107.03374), equation 1. In whole numbers, so exact up to the last division; the more common
    ``1 - (1 - c/n)**k`` is biased.

    Args:
        n: samples drawn of a problem, at least k.
        c: samples that are right, in [0, n].
        k: at least 1.

    Raises:
        ValueError: the numbers do not fit.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    misses = math.comb(n - c, k)  # 0 where fewer than k samples are wrong
    return 1.0 - misses / math.comb(n, k)


def finite(values: Sequence[float] | np.ndarray, what: str) -> np.ndarray:
    """A flat array of float64.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(array).all():
        raise ValueError(f"{what} holds values that are not finite")
    return array


def bootstrap_interval(
    samples: Sequence[np.ndarray], statistic: Any = None, level: float = 0.95, seed: int = 0
) -> Interval | None:
    """Bootstrap interval (BCa, Efron 1987) of the mean of the rows' means, by scipy.

    Args:
        samples: one array of scores per benchmark, shape (problems,), or (models, problems): then every row counts in
            the mean, and NaN is a problem that a model does not have. Problems are drawn anew within their benchmark,
            the same ones for all its models: they are the units, since neither samples of one problem nor models on
            it are independent.
        statistic: instead of the mean, a function of one array and an ``axis``; then there is one sample.
        level: confidence.
        seed: of the resampling, so that a table can be made again.

    Returns:
        None where resampling cannot say anything: a row with one problem, or no spread in any of them.

    Raises:
        ValueError: a score that is infinite, or NaN in an array of one row.
    """
    from scipy import stats

    tables = [_table(s) for s in samples]
    rows = [row[~np.isnan(row)] for table in tables for row in table]
    if not rows or any(r.size < 2 for r in rows) or not any(np.ptp(r) > 0 for r in rows):
        return None

    def mean_of_means(*drawn: np.ndarray, axis: int = -1) -> np.ndarray:
        # problems are drawn by number; scipy puts them on the last axis
        means = [_mean(row, d, axis) for table, d in zip(tables, drawn, strict=True) for row in table]
        return np.asarray(sum(means) / len(means))

    arrays = [np.arange(t.shape[1]) for t in tables] if statistic is None else [t[0] for t in tables]

    def interval(method: str) -> tuple[float, float]:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that BCa is not defined is seen below
            found = stats.bootstrap(
                arrays,
                statistic or mean_of_means,
                n_resamples=RESAMPLES,
                confidence_level=level,
                method=method,
                vectorized=True,
                axis=-1,
                batch=200,
                rng=np.random.default_rng(seed),
            ).confidence_interval
        return float(found.low), float(found.high)

    low, high = interval("BCa")
    if not (math.isfinite(low) and math.isfinite(high)):  # every jackknife estimate is the same
        low, high = interval("percentile")
    return Interval(low, high) if math.isfinite(low) and math.isfinite(high) and high > low else None


def _table(sample: np.ndarray) -> np.ndarray:
    """(models, problems), rounded."""
    array = np.asarray(sample, dtype=np.float64)
    array = array[None] if array.ndim < 2 else array
    finite(array if len(array) == 1 else array[~np.isnan(array)], "a bootstrap sample")
    return np.round(array, _DIGITS)


def _mean(row: np.ndarray, drawn: np.ndarray, axis: int) -> np.ndarray:
    """Mean of the scores that are there; NaN where none is drawn."""
    mean: Any = np.nanmean if np.isnan(row).any() else np.mean
    return mean(row[drawn], axis=axis)


def mean_or_none(values: Sequence[float] | np.ndarray) -> float | None:
    """Mean, None of nothing."""
    return float(np.mean(values)) if len(values) else None


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation of a sample (n - 1), None below two values."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None
