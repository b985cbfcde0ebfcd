"""What the charts of one step are drawn from: sums over all of its rollouts, which add up over steps."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from verl_grail.report.rollouts import Rollout
from verl_grail.report.run.regions import MASKED, REASONING, REGIONS

WEIGHT_BIN = 0.1
WEIGHT_BINS = 100
"""Bins of the weight histogram from 0 on; one more holds everything from ``WEIGHT_BIN * WEIGHT_BINS`` = 10 up."""
PROFILE_BINS = 20
"""Equal parts of the reasoning."""
COSINE_BINS = 40
"""Of width 0.05, from -1 to 1."""
VERDICTS = ("all", "correct", "wrong")
MIN_PROMPTS = 5
"""Prompts from which on an interval is given: a variance between fewer clusters says little."""


def position_means(values: np.ndarray, bins: int = PROFILE_BINS) -> np.ndarray:
    """Means of a sequence over equal parts of its length.

    Token t of n covers [t / n, (t + 1) / n); a part's mean is that of this step function. So every rollout, however
    short, has a value in every part, and a token that lies across two parts counts in both by its share.

    Args:
        values: (n,) with n >= 1.

    Returns:
        (bins,) float64.
    """
    whole = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)]) / len(values)
    edges = np.interp(np.linspace(0.0, 1.0, bins + 1), np.linspace(0.0, 1.0, len(values) + 1), whole)
    return np.diff(edges) * bins


@dataclass
class ProfileSums:
    """Sums from which a mean and its cluster-robust variance follow; clusters are prompts.

    With x_i a rollout's profile, T_g = sum of x_i and n_g = number over the rollouts of prompt g: ``total`` is the sum
    of T_g, ``squares`` of T_g^2, ``cross`` of T_g n_g, ``sizes`` of n_g^2.
    """

    rollouts: int = 0
    prompts: int = 0
    sizes: int = 0
    total: np.ndarray = field(default_factory=lambda: np.zeros(PROFILE_BINS))
    squares: np.ndarray = field(default_factory=lambda: np.zeros(PROFILE_BINS))
    cross: np.ndarray = field(default_factory=lambda: np.zeros(PROFILE_BINS))

    @classmethod
    def of(cls, profiles: dict[str, list[np.ndarray]]) -> ProfileSums:
        """Sums of the profiles (each (PROFILE_BINS,)) of each prompt."""
        sums = cls()
        for members in profiles.values():
            total, n = np.sum(members, axis=0), len(members)
            sums.rollouts += n
            sums.prompts += 1
            sums.sizes += n * n
            sums.total += total
            sums.squares += total * total
            sums.cross += total * n
        return sums

    def __add__(self, other: ProfileSums) -> ProfileSums:
        """Of two sets of different prompts (a prompt drawn again in a later step counts as another one)."""
        return ProfileSums(*(getattr(self, f) + getattr(other, f) for f in self.__dataclass_fields__))

    def mean(self) -> np.ndarray | None:
        """(PROFILE_BINS,) mean over rollouts; None without any."""
        return self.total / self.rollouts if self.rollouts else None

    def half_width(self) -> np.ndarray | None:
        """(PROFILE_BINS,) half of the 95 % interval of the mean; None with fewer than `MIN_PROMPTS` prompts.

        Rollouts of one prompt are alike, so the variance is clustered by prompt, with the factor G / (G - 1), and the
        quantile is Student's with G - 1 degrees of freedom (Liang and Zeger 1986; Cameron and Miller 2015).
        """
        if self.prompts < MIN_PROMPTS:
            return None
        from scipy.stats import t

        mean, groups = self.total / self.rollouts, self.prompts
        squares = self.squares - 2.0 * mean * self.cross + mean * mean * self.sizes
        variance = np.maximum(squares, 0.0) / self.rollouts**2 * groups / (groups - 1)
        return t.ppf(0.975, groups - 1) * np.sqrt(variance)


@dataclass
class StepSums:
    """One step, or several added up."""

    rollouts: int = 0
    weighted: int = 0
    """Rollouts that got weights; only these enter `weights` and `profiles`."""
    with_cosine: int = 0
    weights: np.ndarray = field(default_factory=lambda: np.zeros((len(REGIONS), WEIGHT_BINS + 1), dtype=np.int64))
    """Tokens by region and weight."""
    profiles: dict[str, ProfileSums] = field(default_factory=lambda: {verdict: ProfileSums() for verdict in VERDICTS})
    cosines: np.ndarray = field(default_factory=lambda: np.zeros(COSINE_BINS, dtype=np.int64))
    cosine_total: float = 0.0

    def __add__(self, other: StepSums) -> StepSums:
        return StepSums(
            self.rollouts + other.rollouts,
            self.weighted + other.weighted,
            self.with_cosine + other.with_cosine,
            self.weights + other.weights,
            {verdict: self.profiles[verdict] + other.profiles[verdict] for verdict in VERDICTS},
            self.cosines + other.cosines,
            self.cosine_total + other.cosine_total,
        )


class StepCounter:
    """Adds up one step's rollouts."""

    def __init__(self) -> None:
        self._sums = StepSums()
        self._profiles: dict[str, dict[str, list[np.ndarray]]] = {verdict: {} for verdict in VERDICTS}

    def add(self, rollout: Rollout, weights: np.ndarray, regions: np.ndarray) -> None:
        """Count one rollout.

        Args:
            weights: (tokens,) float32, NaN where there is none; empty if the rollout has no weights.
            regions: (tokens,) from `token_regions`.
        """
        self._sums.rollouts += 1
        if rollout.cosine is not None:
            self._sums.with_cosine += 1
            self._sums.cosine_total += rollout.cosine
            at = int(np.floor((rollout.cosine + 1.0) / 2.0 * COSINE_BINS + 1e-9))
            self._sums.cosines[min(max(at, 0), COSINE_BINS - 1)] += 1
        if rollout.weight_outcome != "weighted" or not len(weights):
            return
        self._sums.weighted += 1
        known = np.isfinite(weights)
        # weights are dumped to 4 decimals, so that 1e-5 of a bin only puts those on an edge into the
        # bin that they open
        bins = np.clip(np.floor(weights[known] / WEIGHT_BIN + 1e-5), 0, WEIGHT_BINS).astype(np.int64)
        np.add.at(self._sums.weights, (regions[known], bins), 1)
        reasoning = weights[known & (regions == REASONING)]
        if len(reasoning):
            verdict = {True: "correct", False: "wrong", None: ""}[rollout.correct]
            profile = position_means(reasoning)
            for name in {"all", verdict} & set(VERDICTS):
                self._profiles[name].setdefault(rollout.group, []).append(profile)

    def sums(self) -> StepSums:
        """Of the rollouts added so far."""
        self._sums.weights[MASKED] = 0
        self._sums.profiles = {verdict: ProfileSums.of(self._profiles[verdict]) for verdict in VERDICTS}
        return self._sums
