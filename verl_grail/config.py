"""Every setting of the package, declared once: validated dataclasses and where they live in a verl config.

    algorithm.grail    GrailConfig    read when algorithm.adv_estimator=grail
    algorithm.oar_g    OarGConfig     read when algorithm.adv_estimator=oar_g
    algorithm.signals  SignalsConfig  how the signal pass runs
    reward.gar         GarConfig      read when reward.reward_manager.name=gar

verl's YAML has no such nodes, so a command line adds them with a plus sign: ``+algorithm.grail.rollouts=all``. Fields
that the two readings of a paper set differently default to None, which means "as ``reading`` says".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Optional, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

BASE_ESTIMATORS = (
    "grpo",
    "grpo_vectorized",
    "rloo",
    "rloo_vectorized",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "opo",
    "gpg",
    "grpo_passk",
)
"""Estimators of verl 0.9.1 that need only what a registered estimator is given (rewards, mask, config, index)."""

BASES_WITH_STD = ("grpo", "grpo_vectorized", "grpo_passk")
"""Base estimators that can divide by the group's standard deviation."""

STOCK_MODES = ("sync", "colocate_async", "separate_async")
OUR_MODES = {f"grail_{mode}": mode for mode in STOCK_MODES}
"""Our trainer modes and the verl mode that each extends."""

MODE_KEY = "trainer.v1.signal_trainer"
"""Where our trainers note their own mode, since they put the stock mode's name back for verl to compare with."""

GAR_REWARD_KEYS = (
    *("acc", "verifier_score", "gar_outcome", "gar_pass", "gar_format_valid", "gar_format_penalty"),
    *("gar_length_penalty", "gar_span_start", "gar_span_end"),
)
"""Keys of the reward's extra info that the ``gar`` manager writes on every sample."""

READINGS = ("paper", "authors_code")


class ConfigError(ValueError):
    """A setting that cannot be honoured; the message names the full config key and the mend."""


class _Section:
    """What the config sections share: where they live, and checks that name the full key."""

    key: str = ""

    def _choice(self, name: str, *allowed: Any) -> None:
        value = getattr(self, name)
        if value not in allowed:
            options = ", ".join(map(str, allowed))
            raise ConfigError(f"{self.key}.{name}={value!r} is not one of: {options}")

    def _number(self, name: str, low: float = -math.inf, high: float = math.inf) -> None:
        value = getattr(self, name)
        if not math.isfinite(value) or not low <= value <= high:
            raise ConfigError(f"{self.key}.{name}={value} must lie between {low} and {high}")

    def _reading(self, presets: dict[str, dict[str, Any]]) -> None:
        """Fill the fields left at None with the values of the chosen reading."""
        self._choice("reading", *READINGS)
        for name, value in presets[self.reading].items():  # type: ignore[attr-defined]
            if getattr(self, name) is None:
                setattr(self, name, value)

    def _base_estimator(self) -> None:
        name = self.base_estimator  # type: ignore[attr-defined]
        if name not in BASE_ESTIMATORS:
            raise ConfigError(
                f"{self.key}.base_estimator={name!r} cannot be a base: it must need no more than rewards, mask and "
                f"groups. Choose one of: {', '.join(BASE_ESTIMATORS)}"
            )
        if self.norm_adv_by_std and name not in BASES_WITH_STD:  # type: ignore[attr-defined]
            raise ConfigError(
                f"{self.key}.norm_adv_by_std=True has no effect on {self.key}.base_estimator={name}: leave it "
                f"False, or choose one of: {', '.join(BASES_WITH_STD)}"
            )

    def refuse_dead(self, given: set[str]) -> None:
        """Refuse settings that were given and that another setting switches off."""


@dataclass
class GrailConfig(_Section):
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
        for name in ("w_mean", "sigma_w", "w_min", "w_max"):
            self._number(name, 0.0, 1e6)
        if not self.w_min <= self.w_mean <= self.w_max:
            raise ConfigError(
                f"{self.key}: w_min <= w_mean <= w_max is needed, but {self.key}.w_min={self.w_min}, "
                f"{self.key}.w_mean={self.w_mean}, {self.key}.w_max={self.w_max}"
            )


@dataclass
class OarGConfig(_Section):
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


@dataclass
class GarConfig(_Section):
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


@dataclass
class SignalsConfig(_Section):
    """How the signal pass runs on the actor workers (``algorithm.signals``)."""

    key = "algorithm.signals"

    head_chunk_tokens: int = 512
    """Positions that go through the output layer at a time; memory grows with this times the vocabulary."""
    backward_micro_batch_size_per_gpu: Optional[int] = None  # noqa: UP045
    """Rows per micro-batch with a backward; null: actor.ppo_micro_batch_size_per_gpu, which fits training."""
    backward_max_token_len_per_gpu: Optional[int] = None  # noqa: UP045
    """Tokens per such micro-batch under use_dynamic_bsz; null: actor.ppo_max_token_len_per_gpu."""

    def __post_init__(self) -> None:
        self._number("head_chunk_tokens", 1, 1 << 20)
        for name in ("backward_micro_batch_size_per_gpu", "backward_max_token_len_per_gpu"):
            if getattr(self, name) is not None:
                self._number(name, 1, 1 << 30)


Section = TypeVar("Section", GrailConfig, OarGConfig, GarConfig, SignalsConfig)


def parse_section(cls: type[Section], node: Any) -> Section:
    """One config section from a config node (mapping, DictConfig or None).

    Raises:
        ConfigError: unknown key, wrong type or value; the message starts with the full key.
    """
    known = [f.name for f in fields(cls)]
    # resolved in place: a copy of the node would lose the rest of the config that its interpolations point to
    values: Any = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node or {}
    if not isinstance(values, dict):
        raise ConfigError(f"{cls.key} must be a mapping of settings, not {values!r}")
    for name in values:
        if name not in known:
            raise ConfigError(f"{cls.key}.{name} is unknown; the settings of {cls.key} are: {', '.join(known)}")
    try:
        section: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(cls), values))
    except OmegaConfBaseException as e:
        name = str(getattr(e, "full_key", None) or "")
        raise ConfigError(f"{cls.key}.{name}={values.get(name)!r}: {str(e).splitlines()[0]}") from e
    section.refuse_dead(set(values))
    return section


@dataclass(frozen=True)
class Settings:
    """What a run asks for; absent methods are None."""

    grail: GrailConfig | None
    oar_g: OarGConfig | None
    gar: GarConfig | None
    signals: SignalsConfig

    @property
    def weighting(self) -> GrailConfig | OarGConfig | None:
        """The estimator that re-weights tokens, if any."""
        return self.grail or self.oar_g

    @property
    def active(self) -> bool:
        """Whether any signal is asked for; if not, a run is verl's own."""
        return self.weighting is not None or self.gar is not None


def load_settings(config: DictConfig) -> Settings:
    """Settings of a composed verl run config (``ppo_trainer`` or ``ppo_megatron_trainer``)."""

    def node(path: str) -> Any:
        return OmegaConf.select(config, path)

    estimator = str(node("algorithm.adv_estimator"))
    manager = str(node("reward.reward_manager.name"))
    return Settings(
        grail=parse_section(GrailConfig, node("algorithm.grail")) if estimator == "grail" else None,
        oar_g=parse_section(OarGConfig, node("algorithm.oar_g")) if estimator == "oar_g" else None,
        gar=parse_section(GarConfig, node("reward.gar")) if manager == "gar" else None,
        signals=parse_section(SignalsConfig, node("algorithm.signals")),
    )
