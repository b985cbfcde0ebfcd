"""Settings of GAR."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from verl_grail.config.section import ConfigError, Section

GAR_REWARD_KEYS = (
    *("acc", "verifier_score", "gar_outcome", "gar_pass", "gar_format_valid", "gar_format_penalty"),
    *("gar_length_penalty", "gar_span_start", "gar_span_end", "outcome", "graded"),
)
"""Keys of the reward's extra info that the ``gar`` manager writes on every sample."""


@dataclass
class GarConfig(Section):
    """GAR's reward (``reward.gar``)."""

    key = "reward.gar"

    reading: str = "paper"
    """``paper`` or ``authors_code``: sets single, format_penalty and length_penalty."""
    base_reward: float = 1.0
    """Reward of a rollout that passes."""
    beta: float = 0.5
    """Scale of the alignment bonus."""
    solution_key: str = "expert_solution"
    """Dataset column with the expert solution of a prompt: a text or a list of texts."""
    aux_solution_key: Optional[str] = None  # noqa: UP045
    """Dataset column with teacher-rolled solutions, or null."""
    aux_mode: str = "real_only"
    """``real_only``, ``aux_max`` or ``aux_residual``."""
    max_solutions: int = 4
    """At most this many expert and this many teacher-rolled solutions of a prompt are used."""
    single: Optional[str] = None  # noqa: UP045
    """Bonus of a lone passing rollout: ``zero``, or ``plain`` (its cosine, not centred)."""
    strict_format: bool = True
    """Require the thinking tags; a rollout that breaks them cannot pass."""
    think_open: str = "<think>"
    """Opening tag of the thinking span."""
    think_close: str = "</think>"
    """Closing tag of the thinking span."""
    open_in_prompt: bool = False
    """The chat template writes the opening tag, so the response starts after it."""
    format_penalty: Optional[float] = None  # noqa: UP045
    """Subtracted when the strict format is broken."""
    length_penalty: Optional[float] = None  # noqa: UP045
    """Largest amount subtracted for thinking that is much shorter than the expert's."""
    length_ratio: float = 0.5
    """Target thinking length as a share of the expert's, in tokens."""
    length_min: int = 96
    """Lower bound of that target."""
    length_max: int = 512
    """Upper bound of that target."""
    gate: bool = True
    """Give vectors and bonuses to verified rollouts only (False: ablation)."""
    outcome_reward: bool = True
    """Pay base_reward (False: ablation, bonus and penalties alone)."""
    span: str = "think"
    """Tokens of the vector: ``think`` (where the format is kept) or ``response``."""
    signal: str = "gradient_activation"
    """``gradient_activation`` or ``raw_gradient`` (ablation)."""
    verify_timeout_s: float = 60.0
    """Seconds after which a verification counts as failed (outcome verify_timeout)."""
    extra_keys: list[str] = field(default_factory=list)
    """Further numeric keys of the verifier's result to keep on every sample (0 where absent)."""

    def __post_init__(self) -> None:
        paper = {"single": "zero", "format_penalty": 0.1, "length_penalty": 0.0}
        theirs = {"single": "plain", "format_penalty": 0.6, "length_penalty": 0.5}
        self._reading({"paper": paper, "authors_code": theirs})
        self._choice("aux_mode", "real_only", "aux_max", "aux_residual")
        self._choice("single", "zero", "plain")
        self._choice("span", "think", "response")
        self._choice("signal", "gradient_activation", "raw_gradient")
        for name in ("base_reward", "beta", "format_penalty", "length_penalty", "length_ratio"):
            self._number(name, 0.0, 1e6)
        self._number("verify_timeout_s", 1e-3, 1e6)
        self._number("max_solutions", 1, 64)
        if not 1 <= self.length_min <= self.length_max:
            raise ConfigError(
                f"{self.key}.length_min={self.length_min} must lie between 1 and "
                f"{self.key}.length_max={self.length_max}"
            )
        if not self.think_open or not self.think_close or self.think_open == self.think_close:
            raise ConfigError(f"{self.key}.think_open and {self.key}.think_close must be two different, non-empty tags")
        if self.aux_mode == "real_only" and self.aux_solution_key:
            raise ConfigError(
                f"{self.key}.aux_solution_key={self.aux_solution_key} is not read under {self.key}.aux_mode=real_only: "
                f"set {self.key}.aux_mode to aux_max or aux_residual"
            )
        if taken := sorted(set(self.extra_keys) & set(GAR_REWARD_KEYS)):
            raise ConfigError(f"{self.key}.extra_keys={taken} are keys that the manager writes itself: take them out")
        if self.aux_mode != "real_only" and not self.aux_solution_key:
            raise ConfigError(
                f"{self.key}.aux_mode={self.aux_mode} needs {self.key}.aux_solution_key, the dataset column with "
                "teacher-rolled solutions"
            )

    def refuse_dead(self, given: set[str]) -> None:
        """Length settings without a length penalty, a format penalty without a format."""
        lengths = sorted(given & {"length_ratio", "length_min", "length_max"})
        if lengths and not self.length_penalty:
            raise ConfigError(
                f"{self.key}.{lengths[0]} is not read while {self.key}.length_penalty=0: set that too, or drop it"
            )
        if "format_penalty" in given and not self.strict_format:
            raise ConfigError(f"{self.key}.format_penalty is not read while {self.key}.strict_format=False: drop one")
