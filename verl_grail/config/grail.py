"""Settings of GRAIL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from verl_grail.config.section import ConfigError, Section


@dataclass
class GrailConfig(Section):
    """GRAIL's weights (``algorithm.grail``)."""

    key = "algorithm.grail"

    reading: str = "paper"
    """``paper`` or ``authors_code``: sets alignment, box, stats and correct_unselected together."""
    base_estimator: str = "grpo"
    """verl estimator whose advantage is re-weighted."""
    norm_adv_by_std: bool = False
    """Divide grpo-like base advantages by the group's standard deviation (False: Dr. GRPO, the paper's set-up).
    Replaces algorithm.norm_adv_by_std_in_grpo, which verl hands to its own grpo branch only."""
    rollouts: str = "wrong"
    """Which rollouts are re-weighted: ``wrong`` (the paper's best), ``correct`` or ``all``."""
    select_by: str = "verdict"
    """What "wrong" means: the verifier's ``verdict``, or the sign of the base ``advantage`` (published code)."""
    w_mean: float = 1.0
    """Weight of a token of average log-saliency."""
    sigma_w: float = 0.5
    """Weight per standard deviation of log-saliency."""
    w_min: float = 0.5
    """Lower clip of a weight."""
    w_max: float = 5.0
    """Upper clip of a weight, and the weight of the answer's content."""
    delimiter_weight: str = "w_mean"
    r"""Weight of ``\boxed{`` and its closing brace: ``w_mean`` or ``w_min``."""
    alignment: Optional[str] = None  # noqa: UP045 (OmegaConf reads these annotations)
    """``token``: a token's own embedding; ``predictor``: the saliency of the token before it."""
    box: Optional[str] = None  # noqa: UP045
    """Which complete box is the answer: ``last`` or ``first``."""
    stats: Optional[str] = None  # noqa: UP045
    """Tokens that set mean and deviation: ``reasoning`` (before the answer) or ``all``."""
    correct_unselected: Optional[bool] = None  # noqa: UP045
    """Apply the answer-span corrections to unselected rollouts too."""
    leaf: str = "embeddings"
    """Where saliency is taken: ``embeddings``, or the output of block 1 (``first``), L//2 (``middle``), L-1
    (``last``)."""
    saliency: str = "gradient_activation"
    """Which gradient is multiplied by the leaf: the one there (``gradient_activation``, the paper's), or its mean on
    the line from zero to it (``integrated_gradients``; FSDP only)."""
    ig_steps: int = 8
    """Points of that mean, by the midpoint rule; each costs a forward and a backward of the selected rollouts."""
    measure: Optional[str] = None  # noqa: UP045
    """A signal of your own, ``module:name`` or ``file.py:name``: (activation, gradient) at the leaf -> one number per
    token; null: GRAIL's norm of their product."""
    rule: Optional[str] = None  # noqa: UP045
    """A weight rule of your own, given the same way: (saliency, reasoning) of a rollout -> weights; null: GRAIL's."""
    mask_truncated: bool = False
    """Take completions cut at the length limit out of the loss; they still count in their group's mean."""
    skip_zero_advantage: bool = True
    """Do not compute saliency where the base advantage is zero, so no weight could matter."""

    def __post_init__(self) -> None:
        paper = {"alignment": "token", "box": "last", "stats": "reasoning", "correct_unselected": False}
        theirs = {"alignment": "predictor", "box": "first", "stats": "all", "correct_unselected": True}
        self._reading({"paper": paper, "authors_code": theirs})
        self._base_estimator()
        self._choice("rollouts", "wrong", "correct", "all")
        self._choice("select_by", "verdict", "advantage")
        self._choice("delimiter_weight", "w_mean", "w_min")
        self._choice("alignment", "token", "predictor")
        self._choice("box", "last", "first")
        self._choice("stats", "reasoning", "all")
        self._choice("leaf", "embeddings", "first", "middle", "last")
        self._choice("saliency", "gradient_activation", "integrated_gradients")
        self._number("ig_steps", 1, 1024)
        self._function("measure")
        self._function("rule")
        for name in ("w_mean", "sigma_w", "w_min", "w_max"):
            self._number(name, 0.0, 1e6)
        if not self.w_min <= self.w_mean <= self.w_max:
            raise ConfigError(
                f"{self.key}: w_min <= w_mean <= w_max is needed, but {self.key}.w_min={self.w_min}, "
                f"{self.key}.w_mean={self.w_mean}, {self.key}.w_max={self.w_max}"
            )

    def refuse_dead(self, given: set[str]) -> None:
        """Points of a path that is not taken; settings of GRAIL's own rule under another one."""
        if "ig_steps" in given and self.saliency != "integrated_gradients":
            raise ConfigError(
                f"{self.key}.ig_steps is not read while {self.key}.saliency={self.saliency}: set that to "
                "integrated_gradients, or drop it"
            )
        if self.rule is None:
            return
        dead = {"sigma_w", "stats"}
        if not self.correct_unselected:  # which corrects unselected rollouts by GRAIL's weights
            dead |= {"w_mean", "w_min", "w_max", "delimiter_weight"}
        if unread := sorted(given & dead):
            raise ConfigError(f"{self.key}.{unread[0]} is not read while {self.key}.rule is set: drop one of them")
