"""Units and other words after a number: which they are, and whether two of them can mean the same answer."""

from __future__ import annotations

import re

_ALIASES = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "dm": "dm decimeter decimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "inch": "inch inches in",
    "foot": "foot feet ft",
    "yard": "yard yd",
    "mile": "mile mi",
    "acre": "acre",
    "hectare": "hectare ha",
    "ml": "ml milliliter millilitre",
    "l": "l liter litre",
    "gallon": "gallon gal",
    "quart": "quart qt",
    "pint": "pint pt",
    "cup": "cup",
    "ms": "ms millisecond",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "year yr",
    "mg": "mg milligram",
    "g": "g gram gm",
    "kg": "kg kilogram kilo",
    "ton": "ton tonne",
    "ounce": "ounce oz",
    "pound": "pound lb",
    "mph": "mph",
    "km/h": "kph kmh",
    "dollar": "dollar usd",
    "cent": "cent",
    "euro": "euro eur",
    "sterling": "sterling gbp",
    "yen": "yen jpy",
    "yuan": "yuan rmb cny",
    "rupee": "rupee rs",
    "celsius": "celsius c",
    "fahrenheit": "fahrenheit f",
    "kelvin": "kelvin k",
    "newton": "newton n",
    "joule": "joule j",
    "kj": "kj kilojoule",
    "watt": "watt w",
    "kw": "kw kilowatt",
    "volt": "volt v",
    "ohm": "ohm",
    "hz": "hz hertz",
    "north": "north",
    "south": "south",
    "east": "east",
    "west": "west",
}
_KNOWN = {alias: name for name, aliases in _ALIASES.items() for alias in aliases.split()}
_SINGLE = set("mgshlcfjwvk")
"""Single letters that are a unit when they stand in upright type. Not i, e, d, n, x, ..., which are mathematics."""
CURRENCY = {"\\$": "dollar", "€": "euro", "£": "sterling", "¥": "yen", "USD": "dollar"}

MAGNITUDES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_PERCENT = ("percent", "per cent", "percentage")
_DEGREES = ("degree", "degrees", "deg")
# words that change a value, join values or hedge: what they stand in is no unit
_REFUSED_WORDS = """
and or nor xor not but if when where for with as is are be equals equal to than then from of at about around
near nearly almost approximately approx maybe perhaps possibly either both between least most less more greater
fewer over under divided by times plus minus mod modulo choose squared cubed factorial root negative positive
zero one two three four five six seven eight nine ten eleven twelve thirteen fifteen twenty thirty forty fifty
sixty seventy eighty ninety half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths
seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth dozen dozens score pi
radical hundred thousand million billion trillion hundreds thousands millions billions trillions infinity base
"""
_REFUSED = frozenset(_REFUSED_WORDS.split())
_WORD = re.compile(r"[a-z]+")


def _singular(word: str) -> str:
    if word in _KNOWN:
        return _KNOWN[word]
    shorter = word[:-1] if len(word) > 3 and word.endswith("s") else word
    return _KNOWN.get(shorter, shorter)


def kind_of(words: str) -> str | None:
    """``percent``, ``degrees``, a magnitude's name, ``unit``, or None for text that is no unit."""
    words = " ".join(words.lower().replace(".", " ").split())
    if words in _PERCENT:
        return "percent"
    if words in _DEGREES:
        return "degrees"
    if words in MAGNITUDES:
        return words
    parts = [p for p in re.split(r"[ /\-]+", words) if p]
    if not parts or len(parts) > 4 or not all(_WORD.fullmatch(p) for p in parts):
        return None
    if any(p in _REFUSED for p in parts) or any(len(p) == 1 and p not in _SINGLE for p in parts):
        return None
    return "unit"


def is_known(words: str) -> bool:
    """Every word is a unit of the table, so that it counts without upright type around it."""
    parts = [p for p in re.split(r"[ /]+", words.lower()) if p]
    return bool(parts) and all(p in ("per", "square", "sq", "cubic") or _singular(p) in _ALIASES for p in parts)


def canonical(words: str, power: str | None) -> str:
    """One spelling of a unit: ``square centimeters`` and ``cm`` with a 2 above are ``cm^2``."""
    parts = [_singular(p) for p in re.split(r"[ /.]+", words.lower().replace(" per ", "/")) if p]
    exponent = re.sub(r"[^\d\-]", "", power or "")
    if len(parts) > 1 and parts[0] in ("square", "cubic", "sq"):
        exponent, parts = ("3" if parts[0] == "cubic" else "2"), parts[1:]
    return "/".join(parts) + (f"^{exponent}" if exponent else "")


def differ(gold: str | None, pred: str | None, policy: str) -> bool:
    """Whether the units alone make a prediction wrong."""
    if policy == "strict":
        return gold != pred
    if gold is None or pred is None or gold == pred:
        return False
    return all(any(p in _ALIASES for p in re.split(r"[/^]", unit)) for unit in (gold, pred))
