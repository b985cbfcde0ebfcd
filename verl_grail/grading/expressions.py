r"""math-verify on two single expressions, and exact arithmetic where it rounds. Runs in a worker: anything may hang.

math-verify rounds to six decimals, so that ``1/2^{99}`` equals ``1/2^{98}``; two constants are therefore compared here,
exactly or to 50 digits.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.sets import FiniteSet
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from verl_grail.grading.compare import Outcome

_TARGETS = (LatexExtractionConfig(boxed_match_priority=-1), ExprExtractionConfig())
_DIGITS = 60
_AGREE = sympy.Float(10, _DIGITS) ** -50
_EITHER = re.compile(r"\s*(?:\bor\b|\\(?:lor|vee)(?![A-Za-z]))\s*")
_BOTH = re.compile(r"\s*(?:,|;|\band\b|\\(?:wedge|land)(?![A-Za-z]))\s*")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|lt|gt)(?![A-Za-z])")
_SET_LIKE = (sympy.Set, FiniteSet, Relational, Boolean, sympy.Tuple)

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off: ours are on


class _Joint(sympy.And):
    """Relations in a list, which hold together."""


def _joined(text: str) -> Any:
    """Relations joined by "or" (a union) or by commas or "and" (an intersection); None for anything else."""
    for separator, kind in ((_EITHER, sympy.Or), (_BOTH, _Joint)):
        parts = separator.split(text)
        if len(parts) > 1 and all(_RELATION.search(p) and "{" not in p for p in parts):
            relations = [_parsed(p) for p in parts]
            if all(isinstance(r, Relational | Boolean) for r in relations):
                return kind(*relations, evaluate=False)
    return None


def _region(value: Any) -> sympy.Set | None:
    """The real set that a relation, or several, in one unknown describe; a set is itself."""
    if isinstance(value, sympy.Set):
        return value
    if not isinstance(value, Relational | Boolean) or len(value.free_symbols) != 1:
        return None
    # math-verify's own And keeps its relations in the order they were written in
    relations = getattr(value, "_unsorted_args", value.args)
    if isinstance(value, Relational):
        try:
            return value.as_set()
        except (TypeError, ValueError, NotImplementedError):  # sympy cannot solve it
            return None
    sets = [_region(r) for r in relations]
    if any(s is None for s in sets):
        return None
    return sympy.Union(*sets) if isinstance(value, sympy.Or) else sympy.Intersection(*sets)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> Any:
    """A sympy object, or None."""
    joined = _joined(text)
    if joined is not None:
        return joined
    found = parse(f"${text}$", _TARGETS, fallback_mode="no_fallback", parsing_timeout=None)  # type: ignore[arg-type]
    return _with_constants(found[0]) if found else None


def _with_constants(value: Any) -> Any:
    """``i`` and ``e`` standing alone come out of the parser as symbols; here they are the constants."""
    if not isinstance(value, sympy.Expr):
        return value
    named = {s: c for s in value.free_symbols for name, c in (("i", sympy.I), ("e", sympy.E)) if s.name == name}
    return value.subs(named) if named else value


def compare_expressions(gold: str, pred: str, tolerance: float = 1e-6) -> Outcome:
    """Whether two single expressions are the same answer."""
    g = _parsed(gold)
    if g is None or not _sound(g):
        return Outcome.UNPARSEABLE_GOLD
    p = _parsed(pred)
    if p is None or not _sound(p):
        return Outcome.UNPARSEABLE_PRED
    constants = _constants(g, p, tolerance)
    if constants is not None:
        return Outcome.CORRECT if constants else Outcome.WRONG
    if isinstance(g, sympy.Or | _Joint) or isinstance(p, sympy.Or | _Joint):
        regions = _region(g), _region(p)
        if None not in regions:
            return Outcome.CORRECT if regions[0] == regions[1] else Outcome.WRONG
    same = verify(g, p, timeout_seconds=None, allow_set_relation_comp=True)
    if not same and isinstance(g, _SET_LIKE) and isinstance(p, _SET_LIKE):
        # an interval against an inequality: math-verify converts one of its two sides only
        same = verify(p, g, timeout_seconds=None, allow_set_relation_comp=True)
    return Outcome.CORRECT if same else Outcome.WRONG


def _sound(value: Any) -> bool:
    return not (isinstance(value, sympy.Basic) and value.has(sympy.nan, sympy.zoo))


def _constants(gold: Any, pred: Any, tolerance: float) -> bool | None:
    """Two numbers compared as numbers; None if one of them is none."""
    for value in (gold, pred):
        if not isinstance(value, sympy.Expr) or value.free_symbols or not value.is_number:
            return None
    gold, pred = gold.doit(), pred.doit()
    if gold.is_Rational and pred.is_Rational and not gold.has(sympy.Float) and not pred.has(sympy.Float):
        return bool(gold == pred)
    a, b = (sympy.N(value, _DIGITS) for value in (gold, pred))
    if not (a.is_number and b.is_number) or not (_sound(a) and _sound(b)):
        return None
    if not (a.is_finite and b.is_finite):
        return bool(a == b)
    scale = max(abs(a), abs(b))
    if scale == 0:
        return True
    decimal = gold.has(sympy.Float) or pred.has(sympy.Float)
    within = sympy.Float(tolerance) if decimal and not gold.is_integer else _AGREE
    return bool(abs(a - b) <= within * scale)
