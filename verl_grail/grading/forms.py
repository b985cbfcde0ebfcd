"""What surrounds the mathematics of an answer: percent sign, degrees, unit, choice letter, name and equals sign."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_grail.grading.clean import inward, spelled, squeezed, stripped, without_fonts
from verl_grail.grading.structure import is_list

_UNIT_NAMES = {
    "length": "mm cm dm km millimeter centimeter decimeter meter kilometer inch inches foot feet ft yard mile",
    "area": "acre hectare square",
    "volume": "ml liter litre gallon cubic",
    "time": "second sec minute min hour hr day week month year ms",
    "mass": "mg kg gram kilogram ounce oz pound lb ton tonne",
    "speed": "mph kph",
    "money": "dollar cent euro usd",
    "other": "unit people person student apple coin marble way point degree time joule newton watt volt hz",
}
_KNOWN = {name for names in _UNIT_NAMES.values() for name in names.split()}
_SAME = {
    **{"millimeter": "mm", "millimetre": "mm", "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m"},
    **{"kilometer": "km", "kilometre": "km", "inches": "inch", "in": "inch", "feet": "foot", "ft": "foot"},
    **{"second": "s", "sec": "s", "minute": "min", "hour": "h", "hr": "h", "gram": "g", "kilogram": "kg"},
    **{"ounce": "oz", "pound": "lb", "liter": "l", "litre": "l", "usd": "dollar", "people": "person", "tonne": "ton"},
}
_NO_UNITS = {
    "and",
    "or",
    "if",
    "when",
    "where",
    "for",
    "not",
    "plus",
    "minus",
    "times",
    "to",
    "but",
    "with",
    "as",
    "is",
}

_PERCENT = re.compile(r"\s*(?:\\%|%|\bpercent)$", re.IGNORECASE)
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\bdegrees?)$", re.IGNORECASE)
_CURRENCY = re.compile(r"^(?:\\\$|€|£|USD\b)\s*(?=[\d.\-\\])")
_TEXT_UNIT = re.compile(
    r"(?<=[\w})\].!])\s*\\(?:text|mathrm|textrm|mbox|rm|operatorname)\s*"
    r"\{\s*\\?\s*(?P<unit>[A-Za-z][A-Za-z/ .'\-]{0,40}?)\s*\}\s*(?P<power>\^\s*(?:\{\s*-?\d\s*\}|\d))?$"
)
_PLAIN_UNIT = re.compile(
    r"(?<=[\d})])(?:\s+|(?=[a-z]))(?P<unit>[A-Za-z]{2,}(?:[ /][A-Za-z]+){0,3})\s*"
    r"(?P<power>\^\s*(?:\{\s*-?\d\s*\}|\d))?$"
)
_LETTER = re.compile(r"\(?\s*([A-J])\s*\)?")
_CHOICE = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])\s*[).:])\s*:?\s*(.+)", re.DOTALL)
_OTHER_CHOICE = re.compile(r"\(\s*[A-J]\s*\)|\b[A-J]\s*[).:]|^[A-J]$|\b(?:or|and)\s+[A-J]\b")
_BUILDER = re.compile(r"\\\{\s*[A-Za-z]\w*\s*(?:\\in\s*\\mathbb\s*\{\w\}\s*)?[|:](?P<condition>[^|{}]+)\\\}")
_NAME = re.compile(
    r"(?P<name>\\?[A-Za-z]+'*(?:_(?:\{\s*\w+\s*\}|\w))?'*(?:\s*\(\s*\w+(?:\s*,\s*\w+)*\s*\))?)\s*"
    r"(?:=(?![=>])|\\in(?![A-Za-z]))\s*(?P<rest>.+)",
    re.DOTALL,
)
_SIDES = re.compile(r"(?<![<>!=:\\])=(?![=>])")


@dataclass(frozen=True)
class Form:
    r"""An answer taken apart.

    ``text`` is all of it in one spelling; ``body`` what is left without percent sign, degrees and unit; ``sides`` the
    body cut at its equals signs, without a name in front (``name``); ``in_text`` if all of it stood in ``\text``.
    """

    text: str
    body: str
    sides: tuple[str, ...]
    name: str | None
    percent: bool
    degrees: bool
    unit: str | None
    letter: str | None
    labelled: str | None
    """What stands after a choice letter: ``5`` in ``(E) 5``."""
    in_text: bool


def read_form(raw: str) -> Form:
    """Take an answer apart; always succeeds."""
    tight = stripped(spelled(raw))
    text = stripped(without_fonts(tight))
    letter = _LETTER.fullmatch(text)
    choice = None if letter else _CHOICE.fullmatch(text)
    if choice and _OTHER_CHOICE.search(choice[3]):
        choice = None  # "(A)(B)(C)" answers nothing
    body, percent, degrees, unit = _marks(tight)
    body = inward(stripped(without_fonts(body)))
    if builder := _BUILDER.fullmatch(body):  # {x | x > 0} is what its condition says
        body = builder["condition"].strip()
    several = is_list(body)  # then each value has its own name and sides
    named = None if several else _NAME.fullmatch(body)
    rest = named["rest"] if named else body
    return Form(
        text=squeezed(text),
        body=body,
        sides=(body,) if several else tuple(side.strip() for side in _SIDES.split(rest)),
        name=squeezed(named["name"]) if named else None,
        percent=percent,
        degrees=degrees,
        unit=unit,
        letter=letter[1] if letter else (choice[1] or choice[2]) if choice else None,
        labelled=choice[3].strip() if choice else None,
        in_text=tight.startswith("\\text") and "\\" not in tight[1:],
    )


def _marks(text: str) -> tuple[str, bool, bool, str | None]:
    percent = degrees = False
    unit = None
    shorter = _CURRENCY.sub("", text)
    if shorter != text:
        text, unit = shorter, "dollar"
    for _ in range(3):  # "5 \text{ cm}^2", "20^\circ \text{C}", "15 \text{ percent}"
        if (match := _PERCENT.search(text)) and match.start():
            text, percent = text[: match.start()], True
        elif (match := _DEGREES.search(text)) and match.start():
            text, degrees = text[: match.start()], True
        elif match := _TEXT_UNIT.search(text):
            words = match["unit"].lower()
            if words.split()[0] in _NO_UNITS:
                break
            text = text[: match.start()]
            if words in ("percent", "degrees", "degree"):
                percent, degrees = percent or words == "percent", degrees or words != "percent"
            else:
                unit = unit or _canonical(words, match["power"])
        elif (match := _PLAIN_UNIT.search(text)) and _known(match["unit"]):
            text, unit = text[: match.start()], unit or _canonical(match["unit"].lower(), match["power"])
        else:
            break
        text = text.rstrip(" .,~\\")
    return text, percent, degrees, unit


def _singular(word: str) -> str:
    word = word.rstrip(".")
    word = word[:-1] if len(word) > 2 and word.endswith("s") and word not in _KNOWN else word
    return _SAME.get(word, word)


def _known(words: str) -> bool:
    parts = re.split(r"[ /]+", words.lower())
    return all(p in ("per", "square", "cubic", "of") or p in _KNOWN or _singular(p) in _KNOWN for p in parts)


def _canonical(words: str, power: str | None) -> str:
    parts = [_singular(p) for p in re.split(r"[ /]+", words.replace(" per ", "/")) if p]
    exponent = re.sub(r"[^\d\-]", "", power or "")
    if parts and parts[0] in ("square", "cubic", "sq") and len(parts) > 1:
        exponent, parts = ("3" if parts[0] == "cubic" else "2"), parts[1:]
    return " ".join(parts) + (f"^{exponent}" if exponent else "")


def units_differ(gold: Form, pred: Form, policy: str) -> bool:
    """Whether the units alone make the prediction wrong."""
    if policy == "strict":
        return gold.unit != pred.unit
    if gold.unit is None or pred.unit is None or gold.unit == pred.unit:
        return False
    return all(_singular(u.split("^")[0].split()[0]) in _SIMPLE for u in (gold.unit, pred.unit))


_SIMPLE = {
    _SAME.get(n, n) for group in ("length", "time", "mass", "money", "volume") for n in _UNIT_NAMES[group].split()
}
