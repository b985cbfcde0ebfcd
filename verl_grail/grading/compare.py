"""The rules in their order: each says correct, wrong, or nothing. What none decides goes to math-verify in a worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from verl_grail.grading.clean import DEEPEST, LONGEST, depth
from verl_grail.grading.forms import Form, read_form, units_differ
from verl_grail.grading.numbers import Number, parse_number, same_number
from verl_grail.grading.policy import GradingPolicy
from verl_grail.grading.structure import Structure, parse_structure


class Outcome(str, Enum):
    """What grading one response came to."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    UNPARSEABLE_PRED = "unparseable_pred"
    UNPARSEABLE_GOLD = "unparseable_gold"
    TIMEOUT = "timeout"
    CRASHED = "crashed"
    """The worker ran out of memory or died."""


@dataclass(frozen=True)
class Decision:
    """An outcome and the rule that it is owed to; ``None``: no rule decides."""

    outcome: Outcome | None
    rule: str = ""

    @property
    def correct(self) -> bool:
        """Right."""
        return self.outcome is Outcome.CORRECT


UNDECIDED = Decision(None)
Leaf = Callable[[str, str], Outcome | None]
"""Compares two single expressions, gold first; None where it does not decide."""
_WORDS = re.compile(r"[A-Za-z][A-Za-z]+(?:[ '\-][A-Za-z]+)*")
_SET_LIKE = re.compile(r"[<>]|\\(?:le|ge|ne|lt|gt|cup|cap|in|emptyset|mathbb|begin|setminus)(?![A-Za-z])")
_CLOCK = re.compile(r"(?P<hours>\d{1,2}):(?P<minutes>\d\d)\s*(?P<half>[aApP]\.?[mM]\.?)?", re.ASCII)
_RECURSIONS = 6


def undecided(_gold: str, _pred: str) -> Outcome | None:
    """The leaf of a process that must not run math-verify."""
    return None


def decide(gold: str, pred: str, policy: GradingPolicy, leaf: Leaf = undecided, level: int = 0) -> Decision:
    """Compare an answer with the gold.

    Args:
        gold, pred: contents of the answers, as LaTeX or plain text.
        leaf: decides what the exact rules do not.
        level: depth of the recursion into lists of lists.
    """
    for text, outcome in ((pred, Outcome.UNPARSEABLE_PRED), (gold, Outcome.UNPARSEABLE_GOLD)):
        if len(text) > LONGEST or depth(text) > DEEPEST or level > _RECURSIONS:
            return Decision(outcome, "bounds")
    g, p = read_form(gold), read_form(pred)
    if not g.text:
        return Decision(Outcome.UNPARSEABLE_GOLD, "empty")
    if not p.text:
        return Decision(Outcome.UNPARSEABLE_PRED, "empty")
    if g.text == p.text:
        return Decision(Outcome.CORRECT, "text")
    return _choice(g, p, policy, leaf, level) or _clock(g, p) or _values(g, p, policy, leaf, level)


def _choice(g: Form, p: Form, policy: GradingPolicy, leaf: Leaf, level: int) -> Decision | None:
    """Choice letters; a value beside the letter (``(E) 5``) has to agree where both sides give one."""
    if g.letter is None:
        return None
    if p.letter is not None:
        if g.letter != p.letter:
            return Decision(Outcome.WRONG, "choice")
        if g.labelled is None or p.labelled is None:
            return Decision(Outcome.CORRECT, "choice")
    if g.labelled is None:
        return None if g.text != g.letter or not _is_word(p) else Decision(Outcome.WRONG, "choice")
    return decide(g.labelled, p.labelled or p.body, policy, leaf, level + 1)


def _clock(g: Form, p: Form) -> Decision | None:
    """Times of day; half of the day may be missing on one side. ``16:25`` may be a ratio too, ``12:00`` may not."""
    gold, pred = (_CLOCK.fullmatch(form.text) for form in (g, p))
    if gold is None:
        return None
    if pred is None:
        return Decision(Outcome.WRONG, "clock") if gold["minutes"] == "00" else None
    halves = {re.sub(r"\W", "", m["half"] or "").lower() for m in (gold, pred)} - {""}
    same = (int(gold["hours"]), gold["minutes"]) == (int(pred["hours"]), pred["minutes"]) and len(halves) < 2
    if same or gold["minutes"] == "00" or halves:
        return Decision(Outcome.CORRECT if same else Outcome.WRONG, "clock")
    return None


def _is_word(form: Form) -> bool:
    return form.in_text or _WORDS.fullmatch(form.body) is not None


def _values(g: Form, p: Form, policy: GradingPolicy, leaf: Leaf, level: int) -> Decision:
    if g.name and p.name and g.name != p.name:
        return _by_leaf(leaf, g.body, p.body)
    if units_differ(g, p, policy.units):
        return Decision(Outcome.WRONG, "units")
    sides = p.sides
    # relations: 2x + 3y = 6, and y = 2x + 1 against 2x - y + 1 = 0
    if len(g.sides) > 1 or (g.name and not p.name and len(sides) > 1):
        return _by_leaf(leaf, g.body, p.body)
    # "12 = 3 * 4" holds if both of its sides are the gold: a chain may not end in whatever is hoped to be right
    results = [_scaled(g, side, p, policy, leaf, level) for side in sides]
    return _all(results)


def _scaled(g: Form, side: str, p: Form, policy: GradingPolicy, leaf: Leaf, level: int) -> Decision:
    """Bodies under every reading of a percent or degree sign that the policy admits."""
    hundredth, one = Fraction(1, 100), Fraction(1)
    if policy.percent == "strict":
        pairs = [(hundredth if g.percent else one, hundredth if p.percent else one)]
    elif g.percent == p.percent:
        pairs = [(one, one)]
    else:
        pairs = [(one, one), (hundredth, one) if g.percent else (one, hundredth)]
    body = g.sides[0]
    results = [_bodies(g, body, a, p, side, b, policy, leaf, level) for a, b in pairs]
    if g.degrees != p.degrees and policy.degrees == "either":
        radians = rf"\frac{{\pi}}{{180}} \cdot ({body if g.degrees else side})"
        other = side if g.degrees else body
        if "\\pi" in other:
            results.append(_by_leaf(leaf, *((radians, other) if g.degrees else (other, radians)), "degrees"))
    return _any(results)


def _bodies(
    g: Form, body: str, a: Fraction, p: Form, side: str, b: Fraction, policy: GradingPolicy, leaf: Leaf, level: int
) -> Decision:
    x, y = parse_number(body), parse_number(side)
    if x is not None and y is not None:
        x, y = (Number(n.value * s, n.decimal, n.base, n.digits) for n, s in ((x, a), (y, b)))
        same = same_number(x, y, policy.decimal_tolerance)
        return Decision(Outcome.CORRECT if same else Outcome.WRONG, "number")
    if a == b == 1:
        gs, ps = (None if n is not None else parse_structure(t) for n, t in ((x, body), (y, side)))
        if gs or ps:
            decision = _structures(gs, ps, body, side, policy, leaf, level)
            if decision is not None:
                return decision
        if _WORDS.fullmatch(body) and (g.in_text or " " in body or len(body) > 3):
            same = body.casefold() == side.casefold()
            return Decision(Outcome.CORRECT if same else Outcome.WRONG, "words")
    return _by_leaf(leaf, _times(body, a), _times(side, b))


def _times(text: str, scale: Fraction) -> str:
    return text if scale == 1 else rf"\frac{{{text}}}{{{scale.denominator}}}"


def _by_leaf(leaf: Leaf, gold: str, pred: str, rule: str = "expression") -> Decision:
    outcome = leaf(gold, pred)
    return UNDECIDED if outcome is None else Decision(outcome, rule)


def _structures(
    g: Structure | None, p: Structure | None, gold: str, pred: str, policy: GradingPolicy, leaf: Leaf, level: int
) -> Decision | None:
    """Lists, sets and tuples; None where only one side is one and it may be the other thing in disguise."""

    def compare(x: str, y: str) -> Decision:
        return decide(x, y, policy, leaf, level + 1)

    if g is None or p is None:
        only = g or p
        if only is not None and only.kind == "set" and len(only.items) == 1:
            return compare(gold if g is None else g.items[0], pred if p is None else p.items[0])
        if p is not None and p.kind != "tuple" and not _SET_LIKE.search(gold):
            # several values for one: every one of them has to be it
            return _all([compare(gold, item) for item in p.items], "structure")
        return None
    wrong = Decision(Outcome.WRONG, "structure")
    if g.kind == "tuple":
        if p.kind == "set" or (p.kind == "tuple" and p.ends != g.ends) or (p.kind == "list" and g.ends != "()"):
            return wrong
        if len(g.items) != len(p.items):
            return wrong
        return _all([compare(x, y) for x, y in zip(g.items, p.items, strict=True)], "structure")
    if p.kind == "tuple" and (g.kind == "set" or p.ends != "()"):
        return wrong
    return _matching(_distinct(g.items), _distinct(p.items), compare)


def _distinct(items: Iterable[str]) -> list[str]:
    return list({read_form(item).text: item for item in items}.values())


def _matching(golds: list[str], preds: list[str], compare: Callable[[str, str], Decision]) -> Decision:
    """Every gold element has a predicted one of its own and none is left over, in any order."""
    if len(golds) != len(preds):
        return Decision(Outcome.WRONG, "structure")
    left = list(preds)
    for gold in golds:
        results = []
        for i, pred in enumerate(left):
            results.append(compare(gold, pred))
            if results[-1].correct:
                del left[i]
                break
        else:
            verdict = _any(results)
            return (
                verdict
                if verdict.outcome in (None, Outcome.UNPARSEABLE_GOLD)
                else Decision(verdict.outcome, "structure")
            )
    return Decision(Outcome.CORRECT, "structure")


def _all(results: list[Decision], rule: str | None = None) -> Decision:
    """Correct if all are; else the first wrong one, unless an undecided one comes before the verdict is certain."""
    failed = [r for r in results if not r.correct and r.outcome is not None]
    if failed:
        return failed[0]
    if any(r.outcome is None for r in results):
        return UNDECIDED
    return Decision(Outcome.CORRECT, rule or results[0].rule)


def _any(results: list[Decision]) -> Decision:
    """Correct if one is; undecided while one may be; else the first one's verdict."""
    for r in results:
        if r.correct:
            return r
    if any(r.outcome is None for r in results):
        return UNDECIDED
    return results[0]
