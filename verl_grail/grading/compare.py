"""The rules in their order: each says correct, wrong, or nothing. What none decides goes to math-verify in a worker."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from verl_grail.grading import units
from verl_grail.grading.clean import DEEPEST, LONGEST, depth
from verl_grail.grading.forms import Form, contradicts_itself, read_form, without_bare_names
from verl_grail.grading.numbers import parse_number, same_number
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
_LETTERS = re.compile(r"[A-Za-z]+(?:[ '\-][A-Za-z]+)*")
_ROMAN = re.compile(r"[IVXLCDM]{2,}")
_SHAPE = re.compile(r"\\(?:angle|triangle|square|odot|parallelogram|overrightarrow|overline|widehat)(?![A-Za-z])")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|lt|gt)(?![A-Za-z])|(?<![<>!=:\\])=(?![=>])")
_SET_LIKE = re.compile(r"[<>]|\\(?:le|ge|ne|lt|gt|cup|cap|in|emptyset|mathbb|begin|setminus)(?![A-Za-z])")
_CONGRUENCE = re.compile(
    r"(?:(?P<name>[A-Za-z])\s*\\equiv\s*)?(?P<residue>-?\d+)\s*(?:\\pmod|\(?\s*\\?b?mod(?![A-Za-z]))\s*\{?\s*(?P<modulus>\d+)"
    r"\s*\}?\s*\)?",
    re.ASCII,
)
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
        if out_of_bounds(text) or level > _RECURSIONS:
            return Decision(outcome, "bounds")
    g, p = read_form(gold), read_form(pred)
    if not g.text:
        return Decision(Outcome.UNPARSEABLE_GOLD, "empty")
    if not p.text:
        return Decision(Outcome.UNPARSEABLE_PRED, "empty")
    if g.text == p.text:
        return Decision(Outcome.CORRECT, "text")
    if contradicts_itself(p):
        return Decision(Outcome.WRONG, "approximation")
    for rule in (_choice, _clock, _congruence):
        decision = rule(g, p, policy, leaf, level)
        if decision is not None:
            return decision
    return _values(g, p, policy, leaf, level)


def out_of_bounds(text: str) -> bool:
    """Longer or deeper than what is looked at."""
    return len(text) > LONGEST or depth(text) > DEEPEST


def _choice(g: Form, p: Form, policy: GradingPolicy, leaf: Leaf, level: int) -> Decision | None:
    """Choice letters; a value beside the letter (``(E) 5``) has to agree where both sides give one.

    A gold that is one capital letter is answered by that letter and nothing else, never by an expression: ``E`` is no
    Euler's number.
    """
    if g.letter is None:
        return None
    letter = p.letter or (p.sides[-1].upper() if re.fullmatch("[A-Ja-j]", p.sides[-1]) else None)
    if g.labelled is None:
        return Decision(Outcome.CORRECT if letter == g.letter else Outcome.WRONG, "choice")
    if letter is not None and letter != g.letter:
        return Decision(Outcome.WRONG, "choice")
    if letter is not None and p.labelled is None:
        return Decision(Outcome.CORRECT, "choice")
    return decide(g.labelled, p.labelled or p.body, policy, leaf, level + 1)


def _clock(g: Form, p: Form, *_) -> Decision | None:
    """Times of day; half of the day may be missing on one side. ``16:25`` may be a ratio too, ``12:00`` may not."""
    gold, pred = (_CLOCK.fullmatch(form.text) for form in (g, p))
    if gold is None:
        return None
    if pred is None:
        return Decision(Outcome.WRONG, "clock") if gold["minutes"] == "00" else None
    halves = [re.sub(r"\W", "", m["half"] or "").lower() for m in (gold, pred)]
    hours = [int(m["hours"]) for m in (gold, pred)]
    if all(halves) or (any(halves) and max(hours) > 12):  # 3:40 p.m. is 15:40
        hours = [h % 12 + 12 * (half == "pm") if half else h for h, half in zip(hours, halves, strict=True)]
    same = hours[0] == hours[1] and gold["minutes"] == pred["minutes"]
    if same or gold["minutes"] == "00" or any(halves):
        return Decision(Outcome.CORRECT if same else Outcome.WRONG, "clock")
    return None


def _congruence(g: Form, p: Form, *_) -> Decision | None:
    """``x \\equiv 3 \\pmod 5``; the residue alone answers it, and another residue of the same class does too."""
    gold, pred = (_CONGRUENCE.fullmatch(form.body) for form in (g, p))
    if gold is None and pred is None:
        return None
    if gold and pred:
        modulus = int(gold["modulus"])
        same = modulus == int(pred["modulus"]) and (int(gold["residue"]) - int(pred["residue"])) % max(modulus, 1) == 0
        names = {m["name"] for m in (gold, pred) if m["name"]}
        return Decision(Outcome.CORRECT if same and len(names) < 2 else Outcome.WRONG, "congruence")
    match, other = (gold, p) if gold else (pred, g)
    number = parse_number(other.sides[-1])
    if match is None or number is None:
        return None
    same = number.value == int(match["residue"])
    return Decision(Outcome.CORRECT if same else Outcome.WRONG, "congruence")


def is_wordy(form: Form, body: str) -> bool:
    """Words, and letters in an order of their own (``IV``, ``\\angle ABC``): compared by letter, not as products."""
    if form.in_text or _SHAPE.match(body):
        return True
    if not _LETTERS.fullmatch(body):
        return False
    if all(len(word) == 1 for word in body.split()):
        return len(body) == 1 and form.in_text
    return len(body) > 2 or _ROMAN.fullmatch(body) is not None or body.lower() in ("no", "on")


def _values(g: Form, p: Form, policy: GradingPolicy, leaf: Leaf, level: int) -> Decision:
    if g.name and p.name and g.name != p.name:
        return _by_leaf(leaf, g.body, p.body)
    if units.differ(g.unit, p.unit, policy.units) or (g.percent and p.degrees) or (g.degrees and p.percent):
        return Decision(Outcome.WRONG, "units")
    # relations: 2x + 3y = 6, and y = 2x + 1 against 2x - y + 1 = 0
    if len(g.sides) > 1 or (g.name and not p.name and len(p.sides) > 1):
        if not _RELATION.search(p.body):
            return Decision(Outcome.WRONG, "relation")  # the right side of a gold equation is not its answer
        return _by_leaf(leaf, g.body, p.body)
    # "12 = 3 * 4" holds if both of its sides are the gold: a chain may not end in whatever is hoped to be right
    return _all([_scaled(g, side, p, policy, leaf, level) for side in without_bare_names(p.sides)])


def _scaled(g: Form, side: str, p: Form, policy: GradingPolicy, leaf: Leaf, level: int) -> Decision:
    """Bodies under every reading of a percent or degree sign that the policy admits."""
    hundredth, one = Fraction(1, 100), Fraction(1)
    body = g.sides[0]
    if policy.percent == "strict":
        pairs = [(hundredth if g.percent else one, hundredth if p.percent else one)]
    elif g.percent == p.percent:
        pairs = [(one, one)]
    else:
        pairs = [(one, one), (hundredth, one) if g.percent else (one, hundredth)]
    results = []
    bare = side if g.degrees else body  # the side without the sign, where one side has it
    if g.degrees == p.degrees or "\\pi" not in bare:
        results = [_bodies(g, body, a, p, side, b, policy, leaf, level) for a, b in pairs]
    elif policy.degrees == "either":
        radians = rf"\frac{{\pi}}{{180}} \cdot ({body if g.degrees else side})"
        results = [_by_leaf(leaf, *((radians, bare) if g.degrees else (bare, radians)), "degrees")]
    return _any(results) if results else Decision(Outcome.WRONG, "degrees")


def _bodies(
    g: Form, body: str, a: Fraction, p: Form, side: str, b: Fraction, policy: GradingPolicy, leaf: Leaf, level: int
) -> Decision:
    x, y = parse_number(body), parse_number(side)
    if x is not None and y is not None:
        same = same_number(x.times(a), y.times(b), policy.decimal_tolerance)
        return Decision(Outcome.CORRECT if same else Outcome.WRONG, "number")
    if a == b == 1:
        gs, ps = (None if n is not None else parse_structure(t) for n, t in ((x, body), (y, side)))
        if gs or ps:
            decision = _structures(gs, ps, g, p, body, side, policy, leaf, level)
            if decision is not None:
                return decision
        if is_wordy(g, body):
            same = _letters(body) == _letters(side)
            return Decision(Outcome.CORRECT if same else Outcome.WRONG, "words")
    return _by_leaf(leaf, _times(body, a), _times(side, b))


def _letters(text: str) -> str:
    return text.casefold().replace(" ", "").replace("\\cdot", "")


def _times(text: str, scale: Fraction) -> str:
    return text if scale == 1 else rf"\frac{{{text}}}{{{scale.denominator}}}"


def _by_leaf(leaf: Leaf, gold: str, pred: str, rule: str = "expression") -> Decision:
    outcome = leaf(gold, pred)
    return UNDECIDED if outcome is None else Decision(outcome, rule)


def _structures(
    g: Structure | None,
    p: Structure | None,
    gold: Form,
    pred: Form,
    body: str,
    side: str,
    policy: GradingPolicy,
    leaf: Leaf,
    level: int,
) -> Decision | None:
    """Lists, sets and tuples; None where only one side is one and it may be the other thing in disguise."""

    def compare(x: str, y: str) -> Decision:
        return decide(x, y, policy, leaf, level + 1)

    if g is None or p is None:
        only = g or p
        if only is not None and only.ends == "cases":
            return Decision(Outcome.WRONG, "structure")
        if only is not None and only.kind == "set" and len(only.items) == 1:
            return compare(body if g is None else g.items[0], side if p is None else p.items[0])
        if p is not None and p.kind != "tuple" and not _SET_LIKE.search(body):
            # several values for one: every one of them has to be it, under its own name
            return _all([compare(gold.body, item) for item in p.items], "structure")
        return None
    wrong = Decision(Outcome.WRONG, "structure")
    if g.kind == "tuple" or (p.kind == "tuple" and _by_name(g) is not None):
        ends = g.ends or "()"
        if p.kind == "set" or (p.kind == "tuple" and p.ends != ends) or (p.kind == "list" and ends != "()"):
            return wrong
        if len(g.items) != len(p.items):
            return wrong
        pairs = zip(_by_name(g) or g.items, _by_name(p) or p.items, strict=True)
        return _all([compare(x, y) for x, y in pairs], "structure")
    if p.kind == "tuple" and (g.kind == "set" or p.ends != "()"):
        return wrong
    return _matching(_distinct(g.items), _distinct(p.items), compare)


def _by_name(structure: Structure) -> list[str] | None:
    """Elements ``y = 2, x = 1`` in the order of their names, as a tuple has them; None unless all are named apart."""
    forms = [(read_form(item), item) for item in structure.items]
    names = [form.name for form, _ in forms]
    if structure.kind != "list" or None in names or len(set(names)) < len(names) or len(names) < 2:
        return None
    return [item for _, item in sorted(forms, key=lambda pair: pair[0].name or "")]


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
            certain = verdict.outcome not in (None, Outcome.UNPARSEABLE_GOLD)
            return Decision(verdict.outcome, "structure") if certain else verdict
    return Decision(Outcome.CORRECT, "structure")


def _all(results: list[Decision], rule: str | None = None) -> Decision:
    """Correct if all are; else the first one that fails; undecided while none fails and one may."""
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


def readable(gold: str, parses: Callable[[str], bool | None], level: int = 0) -> bool | None:
    """Whether a gold can be graded against, whatever the prediction; None where only a parser can say.

    Args:
        parses: says whether math-verify's parser reads a single expression; None where it must not run.
    """
    if out_of_bounds(gold) or level > _RECURSIONS:
        return False
    g = read_form(gold)
    if not g.text:
        return False
    if g.labelled is not None:
        return readable(g.labelled, parses, level + 1)
    body = g.sides[0] if len(g.sides) == 1 else g.body
    if g.letter or _CLOCK.fullmatch(g.text) or _CONGRUENCE.fullmatch(g.body) or parse_number(body):
        return True
    structure = parse_structure(body)
    if structure is not None:
        parts = [readable(item, parses, level + 1) for item in structure.items]
        # one that cannot be read makes all of it unreadable, unless the whole means something (relations)
        whole = parses(body) if False in parts else None
        return True if whole else False if False in parts else None if None in parts else True
    return True if is_wordy(g, body) else parses(body)
