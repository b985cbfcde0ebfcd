"""From rows of a data set to verl's schema: instruction, gold, expert solutions, filters, and a split by problem."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from verl_grail.data.sources import Problem, Row, Source

BOXED = r"Please reason step by step, and put your final answer within \boxed{}."
"""GRAIL's instruction (arXiv 2606.04889), after the question and a space."""
THINK = r"Think first, between <think> and </think>, and then give your final answer within \boxed{}."
"""For the strict format of GAR's reward; the paper does not give its own wording."""
INSTRUCTIONS = {"boxed": BOXED, "think": THINK}


@dataclass(frozen=True)
class Options:
    """How a file is made.

    Attributes:
        instruction: text after the question, or a name of `INSTRUCTIONS`.
        max_chars: problems and solutions that are longer are dropped (0: none is).
        max_solutions: expert solutions kept of a problem.
        need_solution: drop problems without an expert solution.
        validation: share of the problems in the validation split.
        limit: problems of the training split at most (0: all), by the same order as the split.
        include: if given, only rows whose ``info`` has one of these values, such as {"source": ["amc_aime"]}.
    """

    instruction: str = "boxed"
    max_chars: int = 0
    max_solutions: int = 4
    need_solution: bool = False
    validation: float = 0.0
    limit: int = 0
    include: dict[str, list[str]] = field(default_factory=dict)


def normalised(text: str) -> str:
    """A problem's text without what typesetting varies: case, spaces, dollar signs, the full stop at its end."""
    text = re.sub(r"\\[,;!: ]|\\(?:left|right|displaystyle)\b|[$~\s]", "", text.lower())
    return text.rstrip(".?:;")


def identity(text: str) -> str:
    """Name of a problem: a hash of its normalised text, the same in whatever data set it appears."""
    return hashlib.sha256(normalised(text).encode()).hexdigest()[:16]


def place(name: str) -> float:
    """A number in [0, 1) that is a function of the problem alone; splits and limits go by it."""
    return int(name, 16) / 16.0 ** len(name)


@dataclass
class Built:
    """Rows of both splits in verl's schema, and how many were dropped for what reason."""

    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    dropped: Counter[str]


def build(name: str, source: Source, rows: Iterable[Row], options: Options, readable=None) -> Built:
    """Rows of a data set -> rows for verl, ordered by `place`.

    Args:
        name: ``data_source`` of the rows.
        readable: gold -> whether a grader can read it; None: every gold is kept.

    Raises:
        ValueError: a row lacks a column of the source.
    """
    dropped: Counter[str] = Counter()
    kept: dict[str, dict[str, Any]] = {}
    for index, row in enumerate(rows):
        missing = [c for c in source.columns if c not in row]
        if missing:
            raise ValueError(f"row {index} of {name} has no column {missing[0]!r}; it has: {', '.join(row)}")
        problem = source.read(row)
        reason = _unwanted(problem, options, readable)
        key = identity(problem.text)
        if reason is None and key in kept:
            reason = "duplicate"
        if reason:
            dropped[reason] += 1
            continue
        kept[key] = _row(name, key, problem, options)
    ordered = [kept[key] for key in sorted(kept, key=place)]
    cut = [r for r in ordered if place(r["extra_info"]["index"]) < options.validation]
    train = ordered[len(cut) :]
    if options.limit and len(train) > options.limit:
        dropped["over the limit"] = len(train) - options.limit
        train = train[: options.limit]
    return Built(train, cut, dropped)


def _unwanted(problem: Problem, options: Options, readable) -> str | None:
    if not problem.text:
        return "no problem"
    if not problem.answer:
        return "no answer"
    if options.need_solution and not problem.solutions:
        return "no expert solution"
    if options.max_chars and max(map(len, (problem.text, *problem.solutions))) > options.max_chars:
        return "too long"
    if any(str(problem.info.get(k)) not in values for k, values in options.include.items()):
        return "not asked for"
    if readable is not None and not readable(problem.answer):
        return "answer cannot be read"
    return None


def _row(name: str, key: str, problem: Problem, options: Options) -> dict[str, Any]:
    instruction = INSTRUCTIONS.get(options.instruction, options.instruction)
    content = f"{problem.text} {instruction}".strip()
    return {
        "data_source": name,
        "prompt": [{"role": "user", "content": content}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "expert_solution": problem.solutions[: options.max_solutions],
        "extra_info": {
            "index": key,
            "problem": problem.text,
            **{k: str(v) for k, v in problem.info.items() if v is not None},
        },
    }
