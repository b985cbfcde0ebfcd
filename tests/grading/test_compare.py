"""Which answers are the same: the table of cases, the policies, and what exact rules decide without a process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from verl_grail.grading.compare import Outcome, decide, readable
from verl_grail.grading.expressions import compare_expressions, read
from verl_grail.grading.grade import as_golds, decide_any
from verl_grail.grading.policy import GradingPolicy

FILE = Path(__file__).with_name("cases.txt")
LENIENT = GradingPolicy()


def read_cases() -> list[tuple[str, str, str]]:
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ;; ")) for line in lines]


def outcome(gold: str, pred: str, policy: GradingPolicy = LENIENT) -> str:
    leaf = partial(compare_expressions, tolerance=policy.decimal_tolerance)
    return decide_any([gold], pred, policy, leaf).outcome.value


@pytest.mark.parametrize(("gold", "pred", "want"), read_cases())
def test_cases(gold, pred, want):
    assert outcome(gold, pred) == want
    fast = decide_any([gold], pred, LENIENT).outcome
    assert fast is None or fast.value == want  # the exact rules by themselves agree, or say nothing


@pytest.mark.parametrize(
    ("policy", "gold", "pred", "want"),
    [
        (GradingPolicy(percent="strict"), r"28\%", "28", "wrong"),
        (GradingPolicy(percent="strict"), r"28\%", "0.28", "correct"),
        (GradingPolicy(percent="strict"), r"\frac{200}{3}\%", r"\frac{2}{3}", "correct"),
        (GradingPolicy(percent="strict"), r"\frac{\pi}{2}\%", r"\frac{\pi}{2}", "wrong"),
        (GradingPolicy(degrees="unit"), r"\pi/4", r"45^\circ", "wrong"),
        (GradingPolicy(degrees="unit"), "45", r"45^\circ", "correct"),
        (GradingPolicy(units="strict"), "5", "5 cm", "wrong"),
        (GradingPolicy(units="strict"), "5 cm", r"5 \text{ cm}", "correct"),
        (GradingPolicy(decimal_tolerance=0.01), r"\pi", "3.14", "correct"),
        (GradingPolicy(decimal_tolerance=0.01), "1/3", "0.33", "correct"),
        (GradingPolicy(decimal_tolerance=0.01), "100", "100.5", "wrong"),
        (GradingPolicy(decimal_tolerance=0.0), "1/3", "0.3333333333", "wrong"),
    ],
)
def test_policies(policy, gold, pred, want):
    assert outcome(gold, pred, policy) == want


@pytest.mark.parametrize(
    "options",
    [{"percent": "no"}, {"degrees": "no"}, {"units": "no"}, {"decimal_tolerance": -1}, {"decimal_tolerance": 1}],
)
def test_wrong_policies(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        GradingPolicy(**options)


@pytest.mark.parametrize(
    ("gold", "golds"),
    [
        ("5", ["5"]),
        (5, ["5"]),
        (0.5, ["0.5"]),
        (["5", "6"], ["5", "6"]),
        (r"the answer is \boxed{7}", ["7"]),
        (None, []),
        (float("nan"), []),
        ("  ", []),
        ([None, "3"], ["3"]),
    ],
)
def test_golds(gold, golds):
    assert as_golds(gold) == golds


def test_alternatives():
    def of(golds, pred):
        return decide_any(golds, pred, LENIENT, compare_expressions).outcome

    assert of(["5", "x+1"], "1+x") is Outcome.CORRECT
    assert of(["5", "6"], "7") is Outcome.WRONG
    assert of([r"\begin{foo}", "6"], "7") is Outcome.WRONG
    assert of([r"\begin{foo}"], "7") is Outcome.UNPARSEABLE_GOLD
    assert of([], "7") is Outcome.UNPARSEABLE_GOLD


@pytest.mark.parametrize(
    "pred", ["9" * 5000, "(" * 3000 + "1" + ")" * 3000, "{" * 2000 + "}" * 2000, "\\frac{" * 500, "1," * 2000 + "1"]
)
def test_bounds(pred):
    decision = decide("7", pred, LENIENT, compare_expressions)
    assert decision.outcome in (Outcome.UNPARSEABLE_PRED, Outcome.WRONG)


@pytest.mark.parametrize("pred", ["7\x00", "\x1b[31m7\x1b[0m"[5:6], "​7﻿", "\t7\r\n"])
def test_control_characters_are_nothing(pred):
    assert outcome("7", pred) == "correct"


def test_the_file_has_every_kind():
    kinds = [line for line in FILE.read_text().splitlines() if line.startswith("## ")]
    assert len(kinds) == 18 and len(read_cases()) > 350


GOLDS = [
    ("a + b + c", True),
    ("y = mx + c", True),
    (r"{n \choose k}", True),
    (r"\begin{cases}x=1\\y=2\end{cases}", True),
    (r"x \equiv 3 \pmod{5}", True),
    (r"x > 2 \text{ and } x < 5", True),
    (r"\text{all real numbers}", True),
    (r"\begin{foo}", False),
    (r"\frac{0}{0}", False),
    (r"\frac{dy}{dx}", False),
    (r"A \cup B", False),
    (r"1, 2, \ldots, n", False),
    ("", False),
    ("7" * 5000, False),
]


@pytest.mark.parametrize(("gold", "want"), GOLDS)
def test_whether_a_gold_can_be_read_does_not_depend_on_the_prediction(gold, want):
    assert readable(gold, lambda text: read(text) is not None) is want
    fast = readable(gold, lambda _: None)
    assert fast is None or fast is want
