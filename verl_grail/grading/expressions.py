r"""Two single expressions by sympy: exact arithmetic, exact algebra, sets; math-verify for equations and the rest.

Runs in a worker: anything may hang. Text is parsed by math-verify's parser (latex2sympy), which refuses what it does
not understand. Not used are math-verify's extraction, which looks for something to parse inside of a text, and its
comparison of numbers, which rounds to six decimals, so that ``1/2^{99}`` equals ``1/2^{98}``.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
from latex2sympy2_extended.sets import FiniteSet
from math_verify import verify
from math_verify.grader import should_treat_as_complex
from sympy.core.relational import Relational
from sympy.logic.boolalg import Boolean

from verl_grail.grading.compare import Outcome
from verl_grail.grading.numbers import parse_number, slack

_CASE_MATTERS = ConversionConfig(lowercase_symbols=False)
_DIGITS = 60
_AGREE = sympy.Rational(1, 10**50)
_EITHER = re.compile(r"\s*(?:\bor\b|\\(?:lor|vee)(?![A-Za-z]))\s*")
_BOTH = re.compile(r"\s*(?:,|;|\band\b|\\(?:wedge|land)(?![A-Za-z]))\s*")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|lt|gt)(?![A-Za-z])")
_SET_LIKE = (sympy.Set, FiniteSet, Relational, Boolean, sympy.Tuple)
_PRIMES = re.compile(r"([A-Za-z])('{1,3})")
# what the parser would read as something else: two points in a number, a base, a prime on a number, ==
_MISREAD = re.compile(r"\d\s*\.\s*\d+\s*\.|\d\s*_|\d\s*'|==|=>|->|:=|\.\.")
_SQRT = re.compile(r"(?<![A-Za-z\\])sqrt\s*\(([^()]*)\)")
_TIGHT = re.compile(r"(?<=\d)\{,\}(?=\d{3})")
_OPERATOR_NAMES = re.compile(r"\\operatorname\s*\{\s*(arctg|tg|ctg|arcctg|sgn)\s*\}")
_RUSSIAN = {"arctg": r"\arctan ", "tg": r"\tan ", "ctg": r"\cot ", "arcctg": r"\operatorname{arccot} ", "sgn": r"\sgn "}

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off: ours are on


class _Joint(sympy.And):
    """Relations in a list, which hold together."""


@lru_cache(maxsize=4096)
def read(text: str) -> Any:
    """A sympy object in exact numbers, or None."""
    joined = _joined(text)
    if joined is not None:
        return joined
    if _MISREAD.search(text):
        return None
    prepared = _PRIMES.sub(lambda m: f"{m[1]}_{{{'p' * len(m[2])}}}", text)
    prepared = _SQRT.sub(r"\\sqrt{\1}", _TIGHT.sub("", prepared)).replace("\\log_e", "\\ln")
    prepared = _OPERATOR_NAMES.sub(lambda m: _RUSSIAN[m[1]], prepared)
    try:
        value = latex2sympy(
            prepared,
            is_real=not should_treat_as_complex(prepared),
            convert_degrees=False,
            normalization_config=None,
            conversion_config=_CASE_MATTERS,
        )
        value = _exact(value)
    except Exception:  # the parser raises plain exceptions for what it does not understand
        return None
    unsound = value is None or (isinstance(value, sympy.Basic) and value.has(sympy.nan, sympy.zoo, sympy.Derivative))
    return None if unsound else value


def _exact(value: Any) -> Any:
    """Decimals as fractions, ``i`` as the imaginary unit, ``I`` as the variable it is, real odd roots."""
    if isinstance(value, sympy.MatrixBase):
        return value.applyfunc(_exact)
    if not isinstance(value, sympy.Basic):
        return value
    changes: dict[Any, Any] = {f: sympy.Rational(str(f)) for f in value.atoms(sympy.Float)}
    if value.has(sympy.I):
        changes[sympy.I] = sympy.Symbol("I", real=True)
    value = value.xreplace(changes) if changes else value
    imaginary = {s: sympy.I for s in value.free_symbols if s.name == "i"}
    value = value.xreplace(imaginary) if imaginary else value
    if not imaginary:
        value = value.replace(_is_odd_root_of_negative, lambda power: -((-power.base) ** power.exp))
    return value


def _is_odd_root_of_negative(value: Any) -> bool:
    if not isinstance(value, sympy.Pow) or not value.exp.is_Rational or not value.base.is_number:
        return False
    return bool(value.exp.q % 2 == 1 and value.exp.p == 1 and value.exp.q > 1 and value.base.is_negative)


def _joined(text: str) -> Any:
    """Relations joined by "or" (a union) or by commas or "and" (an intersection); None for anything else."""
    for separator, kind in ((_EITHER, sympy.Or), (_BOTH, _Joint)):
        parts = separator.split(text)
        if len(parts) > 1 and all(_RELATION.search(p) and "{" not in p for p in parts):
            relations = [read(p) for p in parts]
            if all(isinstance(r, Relational | Boolean) for r in relations):
                return kind(*relations, evaluate=False)
    return None


def compare_expressions(gold: str, pred: str, tolerance: float = 1e-6) -> Outcome:
    """Whether two single expressions are the same answer."""
    g = read(gold)
    if g is None:
        return Outcome.UNPARSEABLE_GOLD
    p = read(pred)
    if p is None:
        return Outcome.UNPARSEABLE_PRED
    bound = slack(parse_number(gold), parse_number(pred), tolerance)
    return Outcome.CORRECT if _same(g, p, bound) else Outcome.WRONG


def _same(g: Any, p: Any, bound: Fraction | None = None) -> bool:
    if isinstance(g, sympy.MatrixBase) and isinstance(p, sympy.MatrixBase):
        return g.shape == p.shape and all(_same(a, b) for a, b in zip(g.flat(), p.flat(), strict=True))
    if _is_constant(g) and _is_constant(p):
        return _same_constants(g.doit(), p.doit(), bound)
    if isinstance(g, sympy.Expr) and isinstance(p, sympy.Expr):
        return _same_algebra(g, p)
    if isinstance(g, _SET_LIKE) and isinstance(p, _SET_LIKE):
        return _same_sets(g, p)
    return bool(verify(g, p, timeout_seconds=None))


def _is_constant(value: Any) -> bool:
    return isinstance(value, sympy.Expr) and not value.free_symbols and bool(value.is_number)


def _same_constants(a: Any, b: Any, bound: Fraction | None) -> bool:
    """Exactly, or to 50 digits, or within the bound of a decimal."""
    if a.is_Rational and b.is_Rational and bound is None:
        return bool(a == b)
    x, y = sympy.N(a, _DIGITS), sympy.N(b, _DIGITS)
    if not (x.is_number and y.is_number) or x.has(sympy.nan, sympy.zoo) or y.has(sympy.nan, sympy.zoo):
        return False
    if not (x.is_finite and y.is_finite):
        return bool(x == y)
    apart = abs(x - y)
    if bound is not None and not a.is_integer:
        return bool(apart <= sympy.Rational(bound.numerator, bound.denominator))
    return bool(apart <= _AGREE * max(abs(x), abs(y)))


def _same_algebra(a: Any, b: Any) -> bool:
    """Equal for all values of the variables; exact: ``2^{99} x`` is not ``(2^{99} + 1) x``."""
    if a.free_symbols != b.free_symbols and not (a.free_symbols and b.free_symbols):
        a, b = sympy.simplify(a), sympy.simplify(b)  # a variable may cancel: sin^2 + cos^2
    difference = sympy.expand(a.doit() - b.doit())
    if difference == 0:
        return True
    simpler = sympy.simplify(difference)
    return bool(simpler == 0 or simpler.equals(0) is True)


def _same_sets(g: Any, p: Any) -> bool:
    regions = _region(g), _region(p)
    if None not in regions:
        a, b = regions
        return bool(a == b or sympy.SymmetricDifference(a, b) == sympy.S.EmptySet)
    relations = [_canonical(v) for v in (g, p)]
    if None not in relations and relations[0] == relations[1]:
        return True
    # math-verify turns one of its two sides into a set, so the order matters
    pairs = ((g, p), (p, g))
    return any(verify(a, b, timeout_seconds=None, allow_set_relation_comp=True) for a, b in pairs)


def _canonical(value: Any) -> frozenset | None:
    """The relations of a chain in a spelling of their own: ``a < b < c`` is ``c > b > a``."""
    parts = [value] if isinstance(value, Relational) else list(getattr(value, "_unsorted_args", ()))
    if not parts or not all(isinstance(r, Relational) for r in parts):
        return None
    return frozenset(r.canonical for r in parts)


def _region(value: Any) -> sympy.Set | None:
    """The real set that a relation, or several, in one unknown describe; a set is itself."""
    if isinstance(value, sympy.Set):
        return value
    if isinstance(value, sympy.Eq) or not isinstance(value, Relational | Boolean) or len(value.free_symbols) != 1:
        return None
    # math-verify's own And keeps its relations in the order they were written in
    relations = getattr(value, "_unsorted_args", value.args)
    if isinstance(value, Relational):
        try:
            return value.as_set()
        except (TypeError, ValueError, NotImplementedError, AttributeError):  # sympy cannot solve it
            return None
    sets = [_region(r) for r in relations]
    if any(s is None for s in sets):
        return None
    return sympy.Union(*sets) if isinstance(value, sympy.Or) else sympy.Intersection(*sets)
