"""Grading of plain numbers."""

import importlib.util
from fractions import Fraction
from pathlib import Path

import pytest

FILE = Path(__file__).parents[2] / "reward_fns/boxed_number.py"
SPEC = importlib.util.spec_from_file_location("boxed_number", FILE)
MODULE = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(MODULE)


@pytest.mark.parametrize(
    "text,value",
    [
        ("42", 42), ("-7", -7), ("+3", 3), ("10,080", 10080), ("0.5", Fraction(1, 2)), ("1/3", Fraction(1, 3)),
        ("$18", 18), ("12.", 12), ("1,00", None), ("1/0", None), ("x", None), ("9" * 100, None),
        (None, None), ("", None),
    ],
)  # fmt: skip
def test_parse(text, value):
    assert MODULE.parse_number(text) == value


@pytest.mark.parametrize(
    "response,gold,outcome",
    [
        (r"so \boxed{42}", "42", "correct"),
        (r"\boxed{5}. Wrong, so \boxed{7}", "7", "correct"),
        (r"\boxed{41}", "42", "wrong"),
        (r"\boxed{4", "4", "no_answer"),
        (r"\boxed{about 4}", "4", "unparseable_pred"),
        (r"\boxed{4}", "four", "unparseable_gold"),
    ],
)
def test_score(response, gold, outcome):
    result = MODULE.compute_score("t", response, gold)
    assert result["outcome"] == outcome and result["score"] == result["acc"] == float(outcome == "correct")
