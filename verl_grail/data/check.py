"""What is wrong with a parquet file that a run is about to use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from verl_grail.data.build import INSTRUCTIONS, identity
from verl_grail.data.sources import Row


@contextmanager
def gold_reader(seconds: float = 5.0) -> Iterator[Callable[[str], bool]]:
    """A function that says whether the grader of `reward_fns/math_boxed.py` can read a gold."""
    from verl_grail.grading.compare import Outcome
    from verl_grail.grading.grade import as_golds
    from verl_grail.grading.policy import GradingPolicy
    from verl_grail.grading.pool import GradingPool

    pool = GradingPool(workers=2, seconds=seconds, memory_mb=2048)

    def readable(gold: str) -> bool:
        golds = as_golds(gold)
        return bool(golds) and pool.grade(golds[:1], None, GradingPolicy()).outcome is not Outcome.UNPARSEABLE_GOLD

    try:
        yield readable
    finally:
        pool.close()


@dataclass
class Report:
    """What a file holds.

    Attributes:
        rows: how many.
        wrong: problem -> row numbers; a run on this file would fail or be worthless.
        doubtful: problem -> row numbers; rows that teach nothing, or less than they could.
        lengths: name -> sorted lengths, in ``unit``.
    """

    rows: int = 0
    unit: str = "characters"
    wrong: dict[str, list[int]] = field(default_factory=dict)
    doubtful: dict[str, list[int]] = field(default_factory=dict)
    lengths: dict[str, list[int]] = field(default_factory=dict)
    sources: Counter[str] = field(default_factory=Counter)

    def note(self, into: dict[str, list[int]], what: str, row: int) -> None:
        """Add a row to a problem."""
        into.setdefault(what, []).append(row)


def problem_of(row: Row) -> str:
    """The question of a row: what `build` noted, else its last user message without an instruction of ours."""
    if noted := _noted(row):
        return noted
    text = _content(row.get("prompt"))
    for instruction in INSTRUCTIONS.values():
        text = text.removesuffix(instruction)
    return text.strip()


def _noted(row: Row) -> str:
    extra = row.get("extra_info")
    return str(extra.get("problem") or "") if isinstance(extra, dict) else ""


def _content(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    users = [m.get("content", "") for m in prompt or [] if isinstance(m, dict) and m.get("role") == "user"]
    return str(users[-1]) if users else ""


def solutions_of(value: Any) -> list[str]:
    """Expert solutions of a row that are not empty; None: the column is absent or of another type."""
    values = [value] if isinstance(value, str) else list(value or [])
    return [str(v) for v in values if str(v or "").strip()]


def check_rows(
    rows: Iterable[Row],
    readable: Callable[[str], bool],
    evaluation: dict[str, str] | None = None,
    solution_key: str = "",
    length: Callable[[str], int] = len,
    max_prompt: int = 0,
) -> Report:
    """Look at every row.

    Args:
        readable: gold -> whether a grader can read it.
        evaluation: identity of an evaluation problem -> the file it is in.
        solution_key: column with expert solutions, if the run wants any (GAR).
        length: of a text, in the report's unit.
        max_prompt: prompts that are longer are counted (0: none is).
    """
    report, seen = Report(), {}
    for number, row in enumerate(rows):
        report.rows += 1
        for missing in (c for c in ("prompt", "reward_model", "data_source") if row.get(c) is None):
            report.note(report.wrong, f"no {missing}", number)
        report.sources[str(row.get("data_source"))] += 1
        text, gold = _content(row.get("prompt")), (row.get("reward_model") or {}).get("ground_truth")
        if row.get("prompt") is not None and not text.strip():
            report.note(report.wrong, "no user message in the prompt", number)
        if gold is None or not str(gold).strip():
            report.note(report.wrong, "no reward_model.ground_truth", number)
        elif not readable(str(gold)):
            report.note(report.doubtful, "a gold that the grader cannot read: the row is dropped", number)
        if evaluation and not _noted(row):
            report.note(
                report.doubtful, "no extra_info.problem: an overlap is missed under another instruction", number
            )
        name = identity(problem_of(row))
        if name in seen:
            report.note(report.doubtful, "the problem of an earlier row", number)
        elif name in (evaluation or {}):
            report.note(report.wrong, f"a problem of {evaluation[name]}", number)
        seen[name] = number
        prompt = length(text)
        report.lengths.setdefault("prompt", []).append(prompt)
        if max_prompt and prompt > max_prompt:
            report.note(report.doubtful, f"a prompt over {max_prompt}: filtered out by verl", number)
        if solution_key:
            _check_solutions(report, row, number, solution_key, length)
    for values in report.lengths.values():
        values.sort()
    return report


def _check_solutions(report: Report, row: Row, number: int, key: str, length: Callable[[str], int]) -> None:
    if key not in row:
        report.note(report.wrong, f"no column {key}", number)
        return
    found = solutions_of(row[key])
    if not found:
        report.note(report.doubtful, f"no {key}: its rollouts get no bonus", number)
    report.lengths.setdefault("solution", []).extend(map(length, found))


def identities(rows: Iterable[Row], name: str) -> dict[str, str]:
    """Identity of every problem of a file -> the file's name."""
    return {identity(problem_of(row)): name for row in rows}
