"""The public data sets: where they are, and what one of their rows says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_grail.core.boxes import find_boxes

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        text: the question alone.
        answer: gold, as a grader reads it; empty if the row has none.
        solutions: expert solutions, those that are empty left out.
        info: further columns worth keeping (level, topic, the data set's own id).
    """

    text: str
    answer: str
    solutions: list[str] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A data set.

    Attributes:
        hub: its name on the Hugging Face hub.
        split: the split of it that is read.
        columns: those that `read` needs; a file without them is refused.
        read: a row -> its problem.
        subset: configuration on the hub, if there are several.
        kind: ``train`` or ``eval``.
    """

    hub: str
    split: str
    columns: tuple[str, ...]
    read: Callable[[Row], Problem]
    subset: str | None = None
    kind: str = "eval"


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _texts(*values: Any) -> list[str]:
    return [t for t in map(_text, values) if t]


def last_box(solution: str) -> str:
    r"""Content of the last complete ``\boxed{}`` of a solution, or an empty string."""
    boxes = find_boxes(solution)
    return solution[boxes[-1].content_start : boxes[-1].content_end].strip() if boxes else ""


def _deepmath(row: Row) -> Problem:
    return Problem(
        _text(row["question"]),
        _text(row["final_answer"]),
        _texts(*(row.get(f"r1_solution_{i}") for i in (1, 2, 3))),
        {"difficulty": row.get("difficulty"), "topic": row.get("topic")},
    )


def _numina(row: Row) -> Problem:
    solution = _text(row["solution"])
    return Problem(_text(row["problem"]), last_box(solution), _texts(solution), {"source": row.get("source")})


def _plain(question: str, answer: str, *info: str) -> Callable[[Row], Problem]:
    def read(row: Row) -> Problem:
        return Problem(
            _text(row[question]),
            _text(row[answer]),
            _texts(row.get("solution")),
            {name: row.get(name) for name in info},
        )

    return read


def _olympiad(row: Row) -> Problem:
    """Its gold is a list; several values are several answers to one problem."""
    gold = row["final_answer"]
    values = [gold] if isinstance(gold, str) else list(gold if gold is not None else [])
    return Problem(_text(row["question"]), ", ".join(_texts(*values)), [], {"id": row.get("id")})


SOURCES: dict[str, Source] = {
    "deepmath": Source("zwhe99/DeepMath-103K", "train", ("question", "final_answer"), _deepmath, kind="train"),
    "numina": Source("AI-MO/NuminaMath-CoT", "train", ("problem", "solution"), _numina, kind="train"),
    "math500": Source(
        "HuggingFaceH4/MATH-500", "test", ("problem", "answer"), _plain("problem", "answer", "level", "unique_id")
    ),
    "aime2024": Source("HuggingFaceH4/aime_2024", "train", ("problem", "answer"), _plain("problem", "answer", "id")),
    "amc2023": Source("math-ai/amc23", "test", ("question", "answer"), _plain("question", "answer", "id")),
    "minerva": Source("math-ai/minervamath", "test", ("question", "answer"), _plain("question", "answer")),
    "collegemath": Source(
        "di-zhang-fdu/College_Math_Test", "test", ("question", "answer"), _plain("question", "answer")
    ),
    "olympiadbench": Source("math-ai/olympiadbench", "test", ("question", "final_answer"), _olympiad),
    "aime2026": Source(
        "MathArena/aime_2026", "train", ("problem", "answer"), _plain("problem", "answer", "problem_idx")
    ),
    "hmmt_feb2025": Source(
        "MathArena/hmmt_feb_2025", "train", ("problem", "answer"), _plain("problem", "answer", "problem_idx")
    ),
    "hmmt_feb2026": Source(
        "MathArena/hmmt_feb_2026", "train", ("problem", "answer"), _plain("problem", "answer", "problem_idx")
    ),
    "imo_answerbench": Source(
        "Hwilner/imo-answerbench", "train", ("Problem", "Short Answer"), _plain("Problem", "Short Answer", "Problem ID")
    ),
}
"""Name on our command line -> data set."""
