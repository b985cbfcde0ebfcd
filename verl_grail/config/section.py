"""What the config sections share: errors and checks that name the full key."""

from __future__ import annotations

import math
import os
from typing import Any

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

READINGS = ("paper", "authors_code")


class ConfigError(ValueError):
    """A setting that cannot be honoured; the message names the full config key and the mend."""


class Section:
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

    def _function(self, name: str) -> None:
        path = getattr(self, name)
        if path is None:
            return
        where = path.rpartition(":")[0]
        if where.endswith(".py") and not os.path.isabs(where):
            raise ConfigError(
                f"{self.key}.{name}={path!r} must be an absolute path: workers have another working directory"
            )
        from verl_grail.core.answers import load_function  # not with every import of verl

        try:
            load_function(path, name, ())
        except ValueError as e:
            raise ConfigError(f"{self.key}.{e}") from e

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
        """Refuse settings that another setting switches off; ``given`` are those that differ from their defaults."""
