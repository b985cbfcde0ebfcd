r"""Grade the number in the last ``\boxed{}`` of a response: exact, thread-safe, bounded time.

For tasks whose answers are plain numbers (the demo, grade-school problems). Use it with

    reward.custom_reward_function.path=reward_fns/boxed_number.py
"""

from __future__ import annotations

import re
from fractions import Fraction

from verl_grail.core.answers import extract_answer

_NUMBER = re.compile(r"([+-]?)\$?\s*(\d+|\d{1,3}(?:,\d{3})+)(\.\d+)?(?:/(\d+))?")
_LONGEST = 64


def parse_number(text: str | None) -> Fraction | None:
    """Value of a decimal number or a fraction ``a/b``, thousands separators allowed; None for anything else."""
    if text is None or len(text) > _LONGEST:
        return None
    match = _NUMBER.fullmatch(text.strip().rstrip("."))
    if match is None:
        return None
    sign, whole, decimals, denominator = match.groups()
    value = Fraction(whole.replace(",", "") + (decimals or ""))
    if denominator is not None:
        if int(denominator) == 0:
            return None
        value /= int(denominator)
    return -value if sign == "-" else value


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info=None, **kwargs) -> dict:
    """verl's contract: ``score`` and ``acc`` are 1.0 if the boxed number equals the gold, else 0.0.

    ``outcome`` is correct, wrong, no_answer, unparseable_pred or unparseable_gold.
    """
    gold = parse_number(str(ground_truth))
    answer = extract_answer(solution_str)
    value = parse_number(answer)
    if gold is None:
        outcome = "unparseable_gold"
    elif answer is None:
        outcome = "no_answer"
    elif value is None:
        outcome = "unparseable_pred"
    else:
        outcome = "correct" if value == gold else "wrong"
    right = float(outcome == "correct")
    return {"score": right, "acc": right, "outcome": outcome}
