"""Random responses for a bounded time: each gets a named outcome, soon, and none a verdict that is surely wrong."""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_grail.grading.compare import Outcome, decide
from verl_grail.grading.expressions import compare_expressions
from verl_grail.grading.grade import Grader, decide_any
from verl_grail.grading.policy import GradingPolicy

FILE = Path(__file__).parents[2] / "scripts" / "bench" / "soak_grading.py"
SPEC = importlib.util.spec_from_file_location("soak_grading", FILE)
SOAK = importlib.util.module_from_spec(SPEC)
sys.modules["soak_grading"] = SOAK  # dataclasses look their module up
SPEC.loader.exec_module(SOAK)
POLICY = GradingPolicy()
BOUNDED_S = 40.0


def test_random_responses_for_a_while():
    seed = random.SystemRandom().randrange(10**9)
    grader = Grader(seconds=1.0, workers=2)
    end, n = time.monotonic() + BOUNDED_S, 0
    while time.monotonic() < end:
        case = SOAK.random_case(random.Random(seed + n), hanging=0.002)
        outcome, seconds, trouble = SOAK.violation(case, grader)
        assert trouble is None, f"seed {seed + n}: {trouble}"
        assert seconds < 15, f"seed {seed + n}: {case} took {seconds} s"
        assert outcome in {o.value for o in Outcome} and outcome != "crashed", f"seed {seed + n}: {case}"
        n += 1
    assert n > 200


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_two_texts_get_a_decision_or_none(gold, pred):
    start = time.monotonic()
    decision = decide(gold, pred, POLICY)
    assert decision.outcome is None or isinstance(decision.outcome, Outcome)
    assert time.monotonic() - start < 2


NUMBERS = st.fractions(min_value=-1000, max_value=1000, max_denominator=999)


@settings(max_examples=200, deadline=None)
@given(
    NUMBERS,
    NUMBERS,
    st.sampled_from(["\\frac{%d}{%d}", "%d/%d", "\\dfrac{%d}{%d}", "\\frac{2 \\cdot %d}{2 \\cdot %d}"]),
)
def test_fractions_are_compared_exactly(a, b, spelling):
    gold = f"{a.numerator}/{a.denominator}"
    pred = spelling % (b.numerator, b.denominator)
    assert decide_any([gold], pred, POLICY, compare_expressions).correct == (a == b)


@pytest.mark.parametrize("n", [1000, 4000])
@pytest.mark.parametrize(
    "piece", ["1,", "(", "\\text{", "{", "a ", "1 ", "\\,", "x=", "^", "\\pm", "-", "\\\\", "_{", "1{,}000", "and "]
)
def test_repetition_takes_bounded_time(piece, n):
    start = time.monotonic()
    decide("7", (piece * n)[:4096], POLICY)
    decide((piece * n)[:4096], "7", POLICY)
    assert time.monotonic() - start < 5
