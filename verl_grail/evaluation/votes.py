"""Majority vote: the answer that most samples of a problem give, equal answers counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from verl_grail.grading.compare import Outcome
from verl_grail.grading.grade import Grader, decide_any

MAX_COMPARISONS = 200
"""Of two answers to one problem; beyond it, only answers of the same text are counted together."""
SETTLED = (Outcome.WRONG.value,)
"""Outcomes whose answers are compared; others (too long, unreadable, over the deadline) would only fail again."""

Same = Callable[[str, str], bool]
Ballot = tuple[str, str | None]
"""Outcome and answer of one sample."""


@dataclass(frozen=True)
class Vote:
    """Result of a vote.

    Attributes:
        score: 1 if the right answer has most votes, 0 if it has not; the chance of the right one where several answers
            have most votes and one of them is drawn. 0 if no sample answers.
        answer: the winner, the first of several; None without votes.
        votes: it got.
        tied: answers with as many.
        bounded: comparisons ran out, so that some equal answers may have been counted apart.
    """

    score: float
    answer: str | None
    votes: int
    tied: int
    bounded: bool = False


def majority(ballots: Sequence[Ballot], same: Same, bound: int = MAX_COMPARISONS) -> Vote:
    """Count the votes.

    Answers that the grader found right are one class: they equal the gold. Wrong answers are compared with one
    representative of each class, the most frequent text first. A sample without an answer does not vote.

    Args:
        ballots: of the samples of one problem, in a fixed order; samples that were not graded are left out by the
            caller.
        same: whether two wrong answers are the same, the representative first.
        bound: calls of ``same`` at most.
    """
    found = [answer for outcome, answer in ballots if outcome == Outcome.CORRECT.value and answer is not None]
    others = [answer for outcome, answer in ballots if outcome != Outcome.CORRECT.value and answer is not None]
    # the same text that was over its deadline another time
    right = found + [answer for answer in others if answer in set(found)]
    texts = Counter(answer for answer in others if answer not in set(found))
    comparable = {answer for outcome, answer in ballots if outcome in SETTLED}
    classes: dict[str, int] = {}
    calls, bounded = 0, False
    for answer, count in texts.most_common():  # equal counts: in the order of their first appearance
        home = answer
        for representative in classes if answer in comparable else ():
            if representative not in comparable:
                continue
            if calls == bound:
                bounded = True
                break
            calls += 1
            if same(representative, answer):
                home = representative
                break
        classes[home] = classes.get(home, 0) + count
    return _elect(right, list(classes.items()), bounded)


def _elect(right: list[str], classes: list[tuple[str, int]], bounded: bool) -> Vote:
    candidates = ([(right[0], len(right))] if right else []) + classes
    if not candidates:
        return Vote(0.0, None, 0, 0)
    most = max(votes for _, votes in candidates)
    winners = [answer for answer, votes in candidates if votes == most]
    wins = bool(right) and len(right) == most
    return Vote(1.0 / len(winners) if wins else 0.0, winners[0], most, len(winners), bounded)


def same_by(grader: Grader) -> Same:
    """Equality of two answers by the grader: exact rules first, then its workers; remembered."""
    known: dict[tuple[str, str], bool] = {}

    def same(one: str, other: str) -> bool:
        key = (one, other)
        if key not in known:
            decision = decide_any([one], other, grader.policy)
            if decision.outcome is None:
                decision = grader.pool.grade([one], other, grader.policy)
            known[key] = decision.correct
        return known[key]

    return same
