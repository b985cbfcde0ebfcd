"""The pure part of `real.py`: easy and checked word problems, their prompts, the choice of those with mixed rewards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

DATA_SOURCE = "gsm"

SYSTEM = "Solve the problem step by step. Put the final number in \\boxed{}."
SHOTS = 3
SAMPLES = 8

MAX_STEPS, MAX_NUMBER = 3, 60
MAX_SOLUTION_CHARS = 240
"""About 80 tokens: with room to spare in `MAX_RESPONSE_LENGTH`, which is checked in tokens too."""
DRAWS, PER_TEMPLATE = 150, 14
"""Instances drawn from a template, and the most of its easiest ones that become candidates."""

_ANNOTATION = re.compile(r"<<.*?>>")
_NUMBER = re.compile(r"\d+")
_UNIT = re.compile(r"[$£€]|\b(?!x\b)[A-Za-z'-]*[A-Za-z]+(?:/[A-Za-z]+)?")
_EQUATION = re.compile(r"(\d+(?:\s*[-+*/]\s*\d+)+)\s*=\s*(\d+)")


@dataclass(frozen=True)
class Problem:
    """One instance of a template, its solution in the response format."""

    id: str
    question: str
    solution: str
    answer: str
    steps: int
    largest: int
    """The largest number of question and solution."""


@dataclass(frozen=True)
class Template:
    """Candidates of one template, easiest first, and the worked examples that stand before each of them."""

    problems: list[Problem]
    shots: list[Problem]


def rewrite(worked: str, answer: str) -> str:
    r"""A GSM solution in the response format: no ``<<a*b=c>>``, no blank lines, ``\boxed{answer}`` for ``####``."""
    body = _ANNOTATION.sub("", worked.split("####")[0])
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    return "\n".join([*lines, f"The answer is \\boxed{{{answer}}}."])


def equations(text: str) -> list[tuple[str, int]]:
    """``(left side, right side)`` of the equations between whole numbers in `text`, units and currencies left out."""
    plain = re.sub(r"[x\u00d7]", "*", _UNIT.sub("", text)).replace("\u00f7", "/")  # times, divided by
    return [(left.replace(" ", ""), int(right)) for left, right in _EQUATION.findall(plain)]


def value(expression: str) -> Fraction:
    """Value of digits and ``+ - * /`` without brackets or spaces.

    Raises:
        ZeroDivisionError: as usual.
    """
    total = Fraction(0)
    for sign, term in re.findall(r"([+-]?)([\d*/]+)", expression):
        product = Fraction(1)
        for operator, number in re.findall(r"([*/]?)(\d+)", term):
            product = product / int(number) if operator == "/" else product * int(number)
        total += -product if sign == "-" else product
    return total


def read_problem(entry: dict, problem_id: str) -> Problem | None:
    """A ``reasoning-gym`` entry as a `Problem`, or None if it is not easy or its solution not checked.

    Easy: at most `MAX_STEPS` equations, whole numbers up to `MAX_NUMBER`, no percentages. Checked: every equation
    could be read and is true, and the last one gives the answer.
    """
    question, answer = entry["question"].strip(), entry["answer"]
    body = _ANNOTATION.sub("", entry["metadata"]["answer_cot"].split("####")[0])
    both = f"{question}\n{body}"
    if re.search(r"\d[.,]\d|%", both) or not _NUMBER.fullmatch(answer) or len(body) > MAX_SOLUTION_CHARS:
        return None
    found, largest = equations(body), max(map(int, _NUMBER.findall(both)))
    if not 2 <= len(found) <= MAX_STEPS or body.count("=") != len(found) or largest > MAX_NUMBER:
        return None
    if any("/0" in left or value(left) != right for left, right in found) or found[-1][1] != int(answer):
        return None
    return Problem(problem_id, question, rewrite(body, answer), answer, len(found), largest)


def split_template(instances: Iterable[Problem]) -> Template | None:
    """Candidates and shots from instances of one template; None if there are too few.

    No shot has the answer of a candidate or of another shot: copying an example is never right.
    """
    distinct = {problem.question: problem for problem in instances}.values()
    ordered = sorted(distinct, key=lambda problem: (problem.steps, problem.largest, problem.question))
    problems = ordered[: min(PER_TEMPLATE, len(ordered) // 2)]
    taken = {problem.answer for problem in problems}
    shots: dict[str, Problem] = {}
    for problem in ordered[len(problems) :]:
        if problem.answer not in taken and len(shots) < SHOTS:
            shots.setdefault(problem.answer, problem)
    return Template(problems, list(shots.values())) if problems and len(shots) == SHOTS else None


def messages(problem: Problem, shots: Iterable[Problem]) -> list[dict[str, str]]:
    """The chat up to the point where the model answers `problem`."""
    chat = [{"role": "system", "content": SYSTEM}]
    for shot in shots:
        chat.append({"role": "user", "content": shot.question})
        chat.append({"role": "assistant", "content": shot.solution})
    return [*chat, {"role": "user", "content": problem.question}]


def row(problem: Problem, shots: Iterable[Problem], index: int, split: str) -> dict:
    """One row in the schema of ``task.row``."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": messages(problem, shots),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {"index": index, "split": split},
        "expert_solution": [problem.solution],
    }


def is_mixed(right: int) -> bool:
    """Whether a group of `SAMPLES` answers, `right` of them right, has two different rewards."""
    return 0 < right < SAMPLES


def select(
    templates: list[Template], measure: Callable[[list[tuple[Problem, Template]]], list[dict]], wanted: int, chunk: int
) -> tuple[list[tuple[Problem, Template]], dict[str, dict]]:
    """Measure candidates until `wanted` are mixed.

    One problem of every template at a time, so that the kept ones are of many kinds; a template is left when three of
    its problems in a row were never solved, because its next ones are harder.

    Args:
        templates: what to choose from.
        measure: counts for some candidates, ``{"right": ..., ...}`` each.
        wanted: how many to keep.
        chunk: how many to measure at once.

    Returns:
        The kept ones, and the counts of all measured by id.
    """
    kept: list[tuple[Problem, Template]] = []
    counts: dict[str, dict] = {}
    unsolved = dict.fromkeys(range(len(templates)), 0)  # in a row, of the templates that are still asked
    for turn in range(PER_TEMPLATE):
        queue = iter([i for i in unsolved if turn < len(templates[i].problems)])
        while len(kept) < wanted and (asked := list(islice(queue, chunk))):
            batch = [(templates[i].problems[turn], templates[i]) for i in asked]
            for i, pair, count in zip(asked, batch, measure(batch), strict=True):
                counts[pair[0].id] = count
                unsolved[i] = 0 if count["right"] else unsolved[i] + 1
                if is_mixed(count["right"]):
                    kept.append(pair)
        unsolved = {i: streak for i, streak in unsolved.items() if streak < 3}
    return kept[:wanted], counts
