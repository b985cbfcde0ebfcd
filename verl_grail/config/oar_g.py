"""Settings of OAR-G."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from verl_grail.config.section import Section


@dataclass
class OarGConfig(Section):
    """OAR-G's weights (``algorithm.oar_g``)."""

    key = "algorithm.oar_g"

    reading: str = "paper"
    """``paper`` or ``authors_code``: sets stats."""
    base_estimator: str = "grpo"
    """verl estimator whose advantage is re-weighted."""
    norm_adv_by_std: bool = False
    """Divide grpo-like base advantages by the group's standard deviation."""
    rollouts: str = "all"
    """Which rollouts are re-weighted: ``all``, ``wrong`` or ``correct``."""
    select_by: str = "verdict"
    """What "wrong" means: ``verdict`` or ``advantage``."""
    box: str = "last"
    """Which complete box is the answer."""
    noise_std: float = 1e-3
    """Standard deviation of the noise on response embeddings."""
    seed: int = 0
    """Seed of that noise; with step and row it determines it."""
    quantile: float = 0.4
    """Quantile of the normalised influence that separates suppressed from boosted tokens."""
    stats: Optional[str] = None  # noqa: UP045
    """Tokens over which the quantile is taken: ``reasoning`` or ``all``."""
    floor: float = 0.1
    """Lowest relative weight of a suppressed token."""
    boost: float = 2.0
    """Extra weight at the highest influence."""
    mask_truncated: bool = False
    """Take completions cut at the length limit out of the loss."""
    skip_zero_advantage: bool = True
    """Do not compute influence where the base advantage is zero."""

    def __post_init__(self) -> None:
        self._reading({"paper": {"stats": "reasoning"}, "authors_code": {"stats": "all"}})
        self._base_estimator()
        self._choice("rollouts", "wrong", "correct", "all")
        self._choice("select_by", "verdict", "advantage")
        self._choice("box", "last", "first")
        self._choice("stats", "reasoning", "all")
        self._number("noise_std", 0.0, 1e3)
        self._number("quantile", 0.0, 1.0)
        self._number("floor", 0.0, 1.0)
        self._number("boost", 0.0, 1e6)
