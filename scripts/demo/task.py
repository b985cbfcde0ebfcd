"""The demo's task: multi-step integer arithmetic with worked solutions by two methods.

Every problem holds one product with a small factor, and one or two further terms, e.g. ``Compute 3*(14+5)-8``,
``Compute 61-4*27`` or ``Compute 6*38-75+12``. It can be worked in two ways, both right:

- ``step``: evaluate in order, the bracket first: ``14+5 = 19``, ``3*19 = 57``, ``57-8 = 49``;
- ``expand``: distribute the factor, over the bracket or over tens and ones: ``3*14 = 42``, ``3*5 = 15``,
  ``42+15 = 57``, ``57-8 = 49``.

The warm-started model is taught both, so its rollouts mix them. The expert of a problem is ``step``; one problem in
four (`experts`) carries ``expand`` as a second expert. That asymmetry is what makes a reward for reasoning like the
expert visible: on the other three quarters only ``step`` is rewarded.

Everything that must not depend on the order of generation (the split, the number of experts) is a hash of the
problem's text.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

DATA_SOURCE = "arithmetic"
METHODS = ("step", "expand")
SPLITS = ("train", "val", "probe")


@dataclass(frozen=True)
class Ranges:
    """Inclusive ranges that the numbers of a problem are drawn from."""

    factor: tuple[int, int] = (2, 6)
    """The one-digit factor of the product."""
    operand: tuple[int, int] = (2, 29)
    """The two numbers in the bracket."""
    number: tuple[int, int] = (11, 29)
    """The other factor where there is no bracket: two digits, to have tens and ones."""
    term: tuple[int, int] = (1, 49)
    """The numbers added to the product or subtracted from it."""


NORMAL = Ranges()
FAST = Ranges(factor=(2, 4), operand=(2, 9), number=(11, 19), term=(1, 9))


@dataclass(frozen=True)
class Problem:
    """One expression; `split` and `expand` speak of its product as ``factor * (left + right)``, right signed."""

    factor: int
    left: int
    right: int
    bracket: bool
    """Whether the text shows ``left`` and ``right``; if not, they are the tens and ones of one number."""
    terms: tuple[int, ...]
    """Signed numbers after the product; or, when `product_last`, the single number before it."""
    product_last: bool = False
    product_sign: int = 1
    """-1 only when `product_last`."""

    @property
    def expression(self) -> str:
        """The expression, with ``*`` for the product and no spaces."""
        inner = f"({self.left}{self.right:+d})" if self.bracket else str(self.left + self.right)
        product = f"{self.factor}*{inner}"
        if self.product_last:
            return f"{self.terms[0]}{'+' if self.product_sign > 0 else '-'}{product}"
        return product + "".join(f"{term:+d}" for term in self.terms)

    @property
    def text(self) -> str:
        """The user's message; also the key of the split."""
        return f"Compute {self.expression}"

    @property
    def answer(self) -> int:
        """The gold answer."""
        return self.product_sign * self.factor * (self.left + self.right) + sum(self.terms)


def _hash(text: str, salt: str) -> float:
    """A number in [0, 1) that depends on `text` and `salt` only."""
    digest = hashlib.sha256(f"{salt}:{text}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def split_of(text: str) -> str:
    """The split a problem belongs to: 80 % train, 12 % val, 8 % probe.

    ``probe`` is what the warm start stops on, so that neither the training nor the validation file has had a say in
    when it stops.
    """
    position = _hash(text, "split")
    if position < 0.80:
        return "train"
    return "val" if position < 0.92 else "probe"


def draw(rng: random.Random, ranges: Ranges) -> Problem:
    """One random problem, of any split."""
    factor = rng.randint(*ranges.factor)
    bracket = rng.random() < 0.5
    if bracket:
        left, right = rng.randint(*ranges.operand), rng.randint(*ranges.operand)
        if rng.random() < 0.5:
            left, right = max(left, right) + 1, -min(left, right)  # +1: the bracket stays positive
    else:
        number = rng.randint(*ranges.number)
        if number % 10 == 0:
            number += 1  # a multiple of ten has no ones to expand over
        left, right = number - number % 10, number % 10
    first = rng.randint(*ranges.term)
    if rng.random() < 0.25:
        return Problem(factor, left, right, bracket, (first,), product_last=True, product_sign=rng.choice((1, -1)))
    terms = [first * rng.choice((1, -1))]
    if not bracket:  # without a bracket one more term keeps the number of steps at three
        terms.append(rng.randint(*ranges.term) * rng.choice((1, -1)))
    return Problem(factor, left, right, bracket, tuple(terms))


def stream(seed: int, ranges: Ranges, split: str) -> Iterator[Problem]:
    """Endless problems of one split, the same for the same arguments."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {SPLITS}, got {split!r}")
    rng = random.Random(f"{seed}-{split}")
    while True:
        problem = draw(rng, ranges)
        if split_of(problem.text) == split:
            yield problem


def unique(seed: int, ranges: Ranges, split: str, count: int) -> list[Problem]:
    """The first `count` distinct problems of `stream`.

    Raises:
        ValueError: if the ranges seem to hold fewer than `count` distinct problems.
    """
    found: dict[str, Problem] = {}
    for drawn, problem in enumerate(stream(seed, ranges, split)):
        if len(found) == count:
            break
        if drawn > 50 * count + 1000:
            raise ValueError(f"only {len(found)} distinct {split} problems in {ranges}; asked for {count}")
        found.setdefault(problem.text, problem)
    return list(found.values())


def steps(problem: Problem, method: str) -> list[str]:
    """The lines of a worked solution, each ``expression = value``.

    Args:
        problem: what to solve.
        method: one of `METHODS`.
    """
    factor, left, right = problem.factor, problem.left, problem.right
    inner = left + right
    product = factor * inner
    if method == "step":
        lines = [f"{left}{right:+d} = {inner}"] if problem.bracket else []
        lines.append(f"{factor}*{inner} = {product}")
    elif method == "expand":
        lines = [
            f"{factor}*{left} = {factor * left}",
            f"{factor}*{abs(right)} = {factor * abs(right)}",
            f"{factor * left}{factor * right:+d} = {product}",
        ]
    else:
        raise ValueError(f"method must be one of {METHODS}, got {method!r}")
    if problem.product_last:
        sign = "+" if problem.product_sign > 0 else "-"
        return [*lines, f"{problem.terms[0]}{sign}{product} = {problem.answer}"]
    total = product
    for term in problem.terms:
        lines.append(f"{total}{term:+d} = {total + term}")
        total += term
    return lines


def solution(problem: Problem, method: str) -> str:
    """A complete response: the steps between the thinking marks, then the boxed answer."""
    body = "\n".join(steps(problem, method))
    return f"<think>\n{body}\n</think>\n\\boxed{{{problem.answer}}}"


def experts(problem: Problem) -> list[str]:
    """The expert solutions: ``step`` always, ``expand`` too for one problem in four."""
    methods = METHODS if _hash(problem.text, "experts") < 0.25 else METHODS[:1]
    return [solution(problem, method) for method in methods]


def row(problem: Problem, index: int, split: str) -> dict:
    """One row of a parquet file in verl's schema, with the column ``expert_solution`` beside it."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": problem.text}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(problem.answer)},
        "extra_info": {"index": index, "split": split},
        "expert_solution": experts(problem),
    }
