"""GAR's strict format for plain reward functions: verdict, tags and penalties of one response as text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from verl_grail.config import ConfigError, GarConfig
from verl_grail.core.gar import as_solutions, length_penalty
from verl_grail.core.thinking import ThinkTags, thinking_bytes
from verl_grail.grading.options import make_grader

_FORMAT = (
    *("reading", "base_reward", "think_open", "think_close", "open_in_prompt", "format_penalty"),
    *("length_penalty", "length_ratio", "length_min", "length_max", "solution_key"),
)
_SHARED = ("think_open", "think_close")
"""Tags that the answer policy reads too."""


def split_options(options: Mapping[str, Any]) -> tuple[GarConfig, str | None, dict[str, Any]]:
    """Format settings, the tokenizer of the length penalty, and the grader's settings.

    Raises:
        ValueError: a wrong value, or a length penalty without a tokenizer to count with.
    """
    tokenizer = options.get("tokenizer")
    try:
        gar = GarConfig(**{k: v for k, v in options.items() if k in _FORMAT})
    except ConfigError as e:
        raise ValueError(str(e).replace(f"{GarConfig.key}.", "")) from e
    if gar.length_penalty and not tokenizer:
        raise ValueError(
            "length_penalty counts tokens: set tokenizer to the folder or name of the model's, or length_penalty=0"
        )
    rest = {k: v for k, v in options.items() if k in _SHARED or k not in (*_FORMAT, "tokenizer")}
    return gar, tokenizer, rest


@lru_cache(maxsize=2)
def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(name)


def _tokens(text: str, tokenizer: str) -> int:
    return len(_tokenizer(tokenizer).encode(text, add_special_tokens=False))


def _thinking(text: str, tags: ThinkTags) -> str | None:
    data = text.encode("utf-8", "surrogatepass")
    found = thinking_bytes(data, tags)
    return None if found is None else data[found[0] : found[1]].decode("utf-8", "replace")


def strict_score(
    response: str, gold: Any, extra_info: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, float | str]:
    """Reward dictionary of a response: verdict, format and penalties (arXiv 2609.03342).

    A rollout that breaks the format cannot pass; its penalty takes the place of a length penalty.
    """
    gar, tokenizer, rest = split_options(options)
    verdict = make_grader(rest).grade(response, gold).as_reward()
    thinking = _thinking(response, ThinkTags(gar.think_open, gar.think_close, gar.open_in_prompt))
    valid = thinking is not None
    broken, short = 0.0, 0.0
    if not valid:
        broken = -float(gar.format_penalty or 0.0)
    elif gar.length_penalty:
        short = _shortness(str(thinking), extra_info.get(gar.solution_key), gar, str(tokenizer))
    passed = valid and verdict["acc"] > 0  # type: ignore[operator]
    return verdict | {
        "score": (gar.base_reward if passed else 0.0) + broken + short,
        "format_valid": float(valid),
        "format_penalty": broken,
        "length_penalty": short,
    }


def _shortness(thinking: str, solution: Any, gar: GarConfig, tokenizer: str) -> float:
    solutions = as_solutions(solution, gar.max_solutions)
    if not solutions:
        return 0.0
    shown = (_thinking(solutions[0], ThinkTags(gar.think_open, gar.think_close, p)) for p in (False, True))
    expert = next((t for t in shown if t is not None), solutions[0])
    return length_penalty(
        _tokens(thinking, tokenizer),
        _tokens(expert, tokenizer),
        float(gar.length_penalty or 0.0),
        gar.length_ratio,
        gar.length_min,
        gar.length_max,
    )
