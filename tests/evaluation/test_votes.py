"""Majority vote: equal answers together, ties, bounds."""

from __future__ import annotations

import itertools

import pytest

from verl_grail.evaluation.votes import majority, same_by
from verl_grail.grading.grade import Grader


def never(one, other):
    raise AssertionError(f"{one} and {other} are compared")


def equal_numbers(one, other):
    return float(one) == float(other)


def test_right_answers_are_one_class_whatever_they_look_like():
    ballots = [("correct", "1/2"), ("wrong", "3"), ("correct", "0.5"), ("no_answer", None)]
    vote = majority(ballots, never)
    assert (vote.score, vote.answer, vote.votes, vote.tied) == (1.0, "1/2", 2, 1)


def test_wrong_answers_are_grouped_by_value():
    ballots = [("correct", "7"), ("wrong", "3"), ("wrong", "3.0"), ("correct", "7"), ("wrong", "3.00")]
    assert majority(ballots, equal_numbers).score == 0.0
    assert majority(ballots, equal_numbers).votes == 3
    assert majority(ballots, lambda a, b: False).score == 1.0  # by text alone the right one would win


@pytest.mark.parametrize(
    ("ballots", "score", "tied"),
    [
        ([("correct", "1"), ("wrong", "2")], 0.5, 2),
        ([("correct", "1"), ("wrong", "2"), ("wrong", "3")], 1 / 3, 3),
        ([("wrong", "2"), ("wrong", "3")], 0.0, 2),
        ([("no_answer", None)] * 3 + [("correct", "1")], 1.0, 1),  # who says nothing does not vote
        ([("no_answer", None)] * 3, 0.0, 0),
        ([], 0.0, 0),
    ],
)
def test_ties_and_silence(ballots, score, tied):
    for order in itertools.permutations(ballots):
        vote = majority(order, equal_numbers)
        assert (vote.score, vote.tied) == (pytest.approx(score), tied)


def test_answers_that_could_not_be_compared_are_not_compared_again():
    ballots = [("timeout", "x^x"), ("timeout", "x^x"), ("crashed", "y!"), ("unparseable_pred", "?"), ("wrong", "3")]
    vote = majority(ballots, never)
    assert (vote.answer, vote.votes) == ("x^x", 2)


def test_the_same_text_is_right_even_where_one_comparison_was_too_slow():
    assert majority([("correct", "a"), ("timeout", "a"), ("wrong", "b")], never).votes == 2


def test_comparisons_are_bounded_and_it_is_said():
    ballots = [("wrong", str(i)) for i in range(30)]
    calls = []
    vote = majority(ballots, lambda a, b: calls.append((a, b)), bound=10)
    assert len(calls) == 10 and vote.bounded and vote.tied == 30
    assert not majority(ballots[:5], lambda a, b: False).bounded


def test_the_grader_decides_what_is_the_same():
    grader = Grader(workers=1)
    same = same_by(grader)
    assert same(r"\frac{1}{2}", "0.5") and not same("3", "4")
    assert same(r"x^2+2x+1", r"(x+1)^2")  # not by exact rules: in a worker
    ballots = [("correct", "7"), ("correct", "7"), ("wrong", r"x^2+2x+1"), ("wrong", r"(x+1)^2"), ("wrong", "(1+x)^2")]
    assert majority(ballots, same).score == 0.0
