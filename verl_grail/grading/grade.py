"""From an answer and its golds to a named outcome, with the cheap rules first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from verl_grail.core.answers import AnswerPolicy, extract_answer
from verl_grail.grading.compare import UNDECIDED, Decision, Leaf, Outcome, decide, readable, undecided
from verl_grail.grading.policy import GradingPolicy
from verl_grail.grading.pool import GradingPool, default_workers, shared_pool

_SHOWN = 200
"""Characters of an answer that go into dumps and majority votes."""


def as_golds(gold: Any) -> list[str]:
    """The alternatives of a ground truth: a text, a number, or a list of them; a box around one is taken off."""
    if isinstance(gold, np.ndarray):
        gold = gold.tolist()
    values = gold if isinstance(gold, list | tuple) else [gold]
    texts = [str(v) for v in values if v is not None and not (isinstance(v, float) and v != v)]
    return [extract_answer(t, AnswerPolicy(thinking="anywhere")) or t for t in texts if t.strip()]


def decide_any(golds: Sequence[str], pred: str, policy: GradingPolicy, leaf: Leaf = undecided) -> Decision:
    """The prediction against alternatives: correct for one is correct; undecided while one may be; else the first's."""
    results = []
    for gold in golds:
        results.append(decide(gold, pred, policy, leaf))
        if results[-1].correct:
            return results[-1]
    if any(r.outcome is None for r in results):
        return UNDECIDED
    graded = [r for r in results if r.outcome is not Outcome.UNPARSEABLE_GOLD]
    return (graded or results or [Decision(Outcome.UNPARSEABLE_GOLD, "empty")])[0]


@dataclass(frozen=True)
class Verdict:
    """The result of grading one response; ``answer`` is what was graded, None without one."""

    outcome: Outcome
    answer: str | None = None
    rule: str = ""

    def as_reward(self) -> dict[str, float | str]:
        """verl's reward dictionary, with the same keys on every sample.

        ``graded`` is 0 where the gold itself cannot be read: such a sample says nothing about the policy.
        """
        right = float(self.outcome is Outcome.CORRECT)
        return {
            "score": right,
            "acc": right,
            "outcome": self.outcome.value,
            "graded": float(self.outcome is not Outcome.UNPARSEABLE_GOLD),
            "rule": self.rule,
            "pred": (self.answer or "")[:_SHOWN],
        }


@dataclass(frozen=True)
class Grader:
    """Grades responses: finds the answer, applies the exact rules, and asks the workers about the rest.

    Attributes:
        answers: what the answer is.
        policy: when it is the gold.
        workers: processes of this caller; None: `default_workers`.
        seconds: deadline of one comparison.
        memory_mb: address space of one worker.
    """

    answers: AnswerPolicy = field(default_factory=AnswerPolicy)
    policy: GradingPolicy = field(default_factory=GradingPolicy)
    workers: int | None = None
    seconds: float = 5.0
    memory_mb: int = 2048

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers={self.workers} must be at least 1")
        if not self.seconds > 0:
            raise ValueError(f"seconds={self.seconds} must be above 0")
        if self.memory_mb < 512:
            raise ValueError(f"memory_mb={self.memory_mb} must be at least 512: sympy alone takes a good part of it")

    def grade(self, response: str, gold: Any) -> Verdict:
        """The verdict on a response; always returns, in bounded time."""
        answer = extract_answer(response, self.answers)
        # whether a gold can be read does not depend on the response: all of a prompt's rollouts share it
        golds = [g for g in as_golds(gold) if _readable(self, g)]
        if not golds:
            return Verdict(Outcome.UNPARSEABLE_GOLD, answer, "gold")
        if answer is None:
            return Verdict(Outcome.NO_ANSWER)
        decision = decide_any(golds, answer, self.policy)
        if decision.outcome is None:
            decision = self.pool.grade(golds, answer, self.policy)
        outcome = decision.outcome
        if outcome is Outcome.UNPARSEABLE_GOLD:  # an element of it, against this prediction
            outcome = Outcome.WRONG
        assert outcome is not None
        return Verdict(outcome, answer, decision.rule)

    @property
    def pool(self) -> GradingPool:
        """The workers of this process."""
        return shared_pool(self.workers or default_workers(), self.seconds, self.memory_mb)


@lru_cache(maxsize=4096)
def _readable(grader: Grader, gold: str) -> bool:
    verdict = readable(gold, lambda _: None)
    if verdict is None:  # a gold that takes too long to read counts as readable: its own text answers it
        verdict = grader.pool.grade([gold], None, grader.policy).outcome is not Outcome.UNPARSEABLE_GOLD
    return verdict
