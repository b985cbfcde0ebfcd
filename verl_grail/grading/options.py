"""From the keyword arguments of a reward function (``reward.custom_reward_function.reward_kwargs``) to a `Grader`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from verl_grail.core.answers import AnswerPolicy
from verl_grail.grading.grade import Grader
from verl_grail.grading.policy import GradingPolicy

_ANSWERS = tuple(f.name for f in fields(AnswerPolicy))
_POLICY = tuple(f.name for f in fields(GradingPolicy))
_POOL = ("workers", "seconds", "memory_mb")
VERLS = ("reward_router_address", "reward_model_tokenizer")
"""What verl hands to every reward function; graders do not need it."""


def make_grader(options: Mapping[str, Any]) -> Grader:
    """The grader with these settings.

    Args:
        options: settings of `AnswerPolicy`, `GradingPolicy` and `Grader` by name; ``answers`` may hold those of
            `AnswerPolicy` together (``answers=${algorithm.answers}``), single ones have precedence.

    Raises:
        ValueError: an unknown setting or a wrong value; the message names it.
    """
    given = {k: v for k, v in options.items() if k not in VERLS}
    given = {**dict(given.pop("answers", None) or {}), **given}
    known = (*_ANSWERS, *_POLICY, *_POOL)
    for name in given:
        if name not in known:
            raise ValueError(f"{name} is unknown; the settings of the grader are: answers, {', '.join(known)}")
    return _grader(tuple(sorted(given.items())))


@lru_cache(maxsize=32)
def _grader(given: tuple[tuple[str, Any], ...]) -> Grader:
    values = dict(given)

    def part(names: tuple[str, ...]) -> dict[str, Any]:
        return {n: values[n] for n in names if n in values}

    return Grader(AnswerPolicy(**part(_ANSWERS)), GradingPolicy(**part(_POLICY)), **part(_POOL))
