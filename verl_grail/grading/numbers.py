r"""Exact values of answers that are plain numbers: ``10{,}080``, ``1\frac14``, ``0.\overline{3}``, ``2\cdot10^3``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_LONGEST = 600
_LARGEST_EXPONENT = 400

_SIGN = r"(?P<sign>[+-]?)\s*"
_WHOLE = r"\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+"
_DECIMAL = re.compile(rf"{_SIGN}(?P<whole>{_WHOLE})?(?:\.(?P<decimals>\d*))?", re.ASCII)
_FRACTION = re.compile(
    rf"{_SIGN}(?P<mixed>\d+(?=\s*\\frac))?\s*\\frac\s*\{{\s*(?P<inner>[+-]?)\s*(?P<top>{_WHOLE})\s*\}}"
    rf"\s*\{{\s*(?P<bottom>{_WHOLE})\s*\}}",
    re.ASCII,
)
_SLASHED = re.compile(rf"{_SIGN}(?:(?P<mixed>\d+) +)?(?P<top>\d+)\s*/\s*(?P<bottom>\d+)", re.ASCII)
_REPEATING = re.compile(
    rf"{_SIGN}(?P<whole>\d*)\.(?P<once>\d*)(?:\\(?:overline|bar|dot)\s*\{{\s*(?P<over>\d+)\s*\}}|\((?P<paren>\d+)\))",
    re.ASCII,
)
_SCIENTIFIC = re.compile(
    r"(?P<mantissa>[+-]?\s*\d*\.?\d+)\s*(?:(?:\\times|\\cdot|\*)\s*10\s*\^\s*(?:\{\s*(?P<braced>[+-]?\d+)\s*\}|"
    r"(?P<bare>\d))|[eE](?P<e>[+-]?\d+))",
    re.ASCII,
)
_BASED = re.compile(r"(?P<digits>[0-9A-Fa-f]+)\s*_\s*(?:\{\s*(?P<braced>\w+)\s*\}|(?P<bare>\d))", re.ASCII)
_BASE_NAMES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}


@dataclass(frozen=True)
class Number:
    """An exact value.

    Attributes:
        places: digits after the decimal point, if it was written with one (scaled by a power of ten beside it).
        base, digits: of a number written with a base.
    """

    value: Fraction
    places: int | None = None
    base: int | None = None
    digits: str = ""

    def times(self, factor: Fraction) -> Number:
        """The number in another unit (percent): a hundredth moves the decimal point by two."""
        if factor == 1:
            return self
        places = None if self.places is None else self.places + len(str(factor.denominator)) - 1
        return Number(self.value * factor, places, self.base, self.digits)


def parse_number(text: str) -> Number | None:
    """The number that all of ``text`` (a cleaned answer) spells, or None."""
    text = text.strip()
    if not text or len(text) > _LONGEST:
        return None
    for read in (_decimal, _fraction, _repeating, _scientific, _based):
        number = read(text)
        if number is not None:
            return number
    return None


def _signed(match: re.Match, value: Fraction) -> Fraction:
    return -value if match["sign"] == "-" else value


def _plain(digits: str) -> str:
    return digits.replace(",", "").replace(" ", "")


def _decimal(text: str) -> Number | None:
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match["whole"] or match["decimals"]):
        return None
    whole, decimals = _plain(match["whole"] or "0"), match["decimals"] or ""
    value = Fraction(int(whole + decimals), 10 ** len(decimals))
    return Number(_signed(match, value), places=len(decimals) or None, digits=whole)


def _fraction(text: str) -> Number | None:
    match = _FRACTION.fullmatch(text) or _SLASHED.fullmatch(text)
    if match is None:
        return None
    top, bottom = int(_plain(match["top"])), int(_plain(match["bottom"]))
    if bottom == 0:
        return None
    value = Fraction(top, bottom)
    if match["mixed"] is not None:
        if top >= bottom or match.groupdict().get("inner"):
            return None  # 2 3/2 is no mixed number
        value += int(match["mixed"])
    if match.groupdict().get("inner") == "-":
        value = -value
    return Number(_signed(match, value))


def _repeating(text: str) -> Number | None:
    match = _REPEATING.fullmatch(text)
    if match is None:
        return None
    whole, once, again = match["whole"] or "0", match["once"], match["over"] or match["paren"]
    value = Fraction(int(whole + once), 10 ** len(once))
    value += Fraction(int(again), 10 ** len(once) * (10 ** len(again) - 1))
    return Number(_signed(match, value))


def _scientific(text: str) -> Number | None:
    match = _SCIENTIFIC.fullmatch(text)
    if match is None:
        return None
    exponent = int(match["braced"] or match["bare"] or match["e"])
    if abs(exponent) > _LARGEST_EXPONENT:
        return None
    mantissa = Fraction(match["mantissa"].replace(" ", ""))
    value = mantissa * Fraction(10) ** exponent
    places = len(match["mantissa"].partition(".")[2]) - exponent
    return Number(value, places=places if "." in match["mantissa"] else None)


def _based(text: str) -> Number | None:
    match = _BASED.fullmatch(text)
    if match is None:
        return None
    name = match["braced"] or match["bare"]
    base = int(name) if name.isdigit() else _BASE_NAMES.get(name)
    if base is None or not 2 <= base <= 16:
        return None
    try:
        return Number(Fraction(int(match["digits"], base)), base=base, digits=match["digits"].lower())
    except ValueError:  # a digit that the base does not have
        return None


def same_number(gold: Number, pred: Number, tolerance: float) -> bool:
    """Whether two plain numbers are the same answer.

    A base asked for by the gold belongs to the answer: ``1001_2`` is answered by ``1001_2`` or ``1001``, not by 9.
    """
    if gold.base is not None:
        if pred.base is None:
            return pred.digits == gold.digits and pred.value.denominator == 1
        return gold.base == pred.base and gold.value == pred.value
    return close(gold, pred, tolerance)


def close(gold: Number, pred: Number, tolerance: float) -> bool:
    """Equal, or a decimal that stands for the other value (`slack`), unless the gold is an integer."""
    if gold.value == pred.value:
        return True
    if gold.value.denominator == 1:
        return False
    bound = slack(gold, pred, tolerance)
    return bound is not None and abs(gold.value - pred.value) <= bound


def slack(gold: Number | None, pred: Number | None, tolerance: float) -> Fraction | None:
    """How far two values may be apart: the relative tolerance, but no more than half of the last digit written.

    The prediction's digits count if it has a decimal point, else the gold's; None if neither has one, or the prediction
    is an integer. A side that is no plain number is None.
    """
    if pred is not None and pred.places is None and pred.value.denominator == 1:
        return None
    written = pred if pred is not None and pred.places is not None else gold
    if written is None or written.places is None:
        return None
    largest = max(abs(n.value) for n in (gold, pred) if n is not None)
    return min(Fraction(repr(tolerance)) * largest, Fraction(1, 2) * Fraction(10) ** -written.places)
