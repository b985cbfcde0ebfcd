"""The few statistics of the report, as plain functions of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

Z95 = 1.959963984540054
"""97.5 % quantile of the standard normal distribution."""


def wilson_interval(share: float, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval of a proportion.

    Args:
        share: observed proportion in [0, 1]; need not be a multiple of 1/n.
        n: number of independent trials, at least 1.
        z: normal quantile; the default gives 95 %.

    Returns:
        Lower and upper end, both within [0, 1].
    """
    if n < 1 or not 0.0 <= share <= 1.0:
        raise ValueError(f"wilson_interval needs n >= 1 and a share in [0, 1], got n={n}, share={share}")
    shrink = 1.0 + z * z / n
    centre = (share + z * z / (2 * n)) / shrink
    half = z * math.sqrt(share * (1.0 - share) / n + z * z / (4 * n * n)) / shrink
    # At 0 and 1 the formula is exact on paper but may leave [0, 1] by a rounding error.
    return max(0.0, centre - half), min(1.0, centre + half)


def last_quarter_mean(series: Sequence[tuple[int, float]], steps: Sequence[int]) -> float | None:
    """Mean of a metric over the last quarter of `steps` (rounded up); None where it was logged at none of them.

    The quarter is one of the run's steps, not of the metric's values: a metric that stopped being logged halfway
    must not be reported as if it were recent.
    """
    if not steps:
        return None
    quarter = set(sorted(steps)[-math.ceil(len(steps) / 4) :])
    values = [value for step, value in series if step in quarter]
    return sum(values) / len(values) if values else None
