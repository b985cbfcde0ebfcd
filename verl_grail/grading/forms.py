"""What surrounds the mathematics of an answer: percent sign, degrees, unit, choice letter, name and equals sign."""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_grail.grading import units
from verl_grail.grading.clean import inward, spelled, squeezed, stripped, without_fonts
from verl_grail.grading.numbers import parse_number
from verl_grail.grading.structure import cut, is_list

_POWER = r"\s*(?P<power>\^\s*(?:\{\s*-?\d\s*\}|\d))?"
_PERCENT = re.compile(r"\s*(?:\\%|%|\b(?:per ?cent|percentage|pct))$", re.IGNORECASE)
_DEGREES = re.compile(r"\s*(?:\^\s*\{?\s*\\circ\s*\}?|\bdegrees?)$", re.IGNORECASE)
_TEMPERATURE = re.compile(r"(?P<degrees>\^\s*\{?\s*\\circ\s*\}?)\s*(?P<unit>[CF])$")
_CURRENCY = re.compile(r"^(?P<sign>\\\$|€|£|¥|USD\b)\s*(?=[\d.\-\\])")
_FONTS = r"\\(?:text|textrm|textbf|textit|textup|textnormal|mathrm|mbox|rm|operatorname)"
_TEXT_UNIT = re.compile(
    rf"(?<=[\w}})\].!])\s*{_FONTS}\s*\{{\s*\\?\s*(?P<unit>[A-Za-z][A-Za-z/ .'\-]{{0,40}}?)\s*\}}"
    rf"(?:\s*/\s*{_FONTS}\s*\{{\s*(?P<per>[A-Za-z]{{1,12}})\s*\}})?{_POWER}$"
)
_PLAIN_UNIT = re.compile(rf"(?<=[\d}})])(?:\s+|(?=[a-z]))(?P<unit>[A-Za-z]+(?:[ /][A-Za-z]+){{0,3}}){_POWER}$")
_LETTER = re.compile(r"\(?\s*([A-J])\s*\)?")
_CHOICE = re.compile(r"(?:\(\s*([A-J])\s*\)|([A-J])\s*[).:])\s*:?\s*(.+)", re.DOTALL)
_OTHER_CHOICE = re.compile(r"(?<![A-Za-z\\])[A-J](?![A-Za-z])")
_OPTION = re.compile(r"^(?:option|choice|answer)\s*:?\s+(?=\(?[A-J]\)?\s*$)", re.IGNORECASE)
_BUILDER = re.compile(r"\\\{\s*[A-Za-z]\w*\s*(?:\\in\s*\\mathbb\s*\{\w\}\s*)?[|:](?P<condition>[^|{}]+)\\\}")
_LETTERS = r"(?:m?\s*\\(?:angle|triangle|overline|widehat|operatorname|vec|hat|bar)\s*\{?\s*[A-Za-z]{1,4}\s*\}?)"
_RATIO = r"\\frac\s*\{\s*[A-Z]{2}\s*\}\s*\{\s*[A-Z]{2}\s*\}|[A-Z]\w?(?:_\{?\w+\}?)?\s*[:/]\s*[A-Z]\w?(?:_\{?\w+\}?)?"
_NAME = re.compile(
    rf"(?P<name>{_RATIO}|(?:{_LETTERS}|\\[A-Za-z]+|[A-Z]{{2,3}}(?![a-z])|[A-Za-z](?![A-Za-z])|[A-Za-z][a-z]{{2,}})"
    r"'{0,3}(?:_(?:\{\s*\w+\s*\}|\w)'{0,3})?(?:\s*\(\s*\w+(?:\s*,\s*\w+){0,4}\s*\))?"
    r"|\(\s*[A-Za-z]\w?(?:\s*,\s*[A-Za-z]\w?){1,5}\s*\))"
    r"\s*(?:=(?![=>])|\\in(?![A-Za-z]))\s*(?P<rest>.+)",
    re.DOTALL,
)
_BARE_NAME = re.compile(r"\\?[A-Za-z](?:_\{?\w+\}?)?'{0,2}|\\[a-z]+")
_SIDES = re.compile(r"(?<![<>!=:\\])=(?![=>])")
_JOINING = re.compile(r"\\(?:text|mathrm|textrm|mbox)\s*\{\s*,?\s*(and|or)\s*\}")
_ABOUT = re.compile(r"\\(?:approx|simeq|doteq)(?![A-Za-z])")


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
    about: str | None
    """What stands after an approximation sign: ``0.33`` in ``1/3 ≈ 0.33``."""


def read_form(raw: str) -> Form:
    """Take an answer apart; always succeeds."""
    tight = stripped(spelled(raw))
    text = _OPTION.sub("", stripped(without_fonts(tight)))
    letter = _LETTER.fullmatch(text)
    choice = None if letter else _CHOICE.fullmatch(text)
    if choice and _OTHER_CHOICE.search(choice[3]):
        choice = None  # "(A)(B)(C)" answers nothing
    exact, *about = _ABOUT.split(tight, maxsplit=1)
    if about and _BARE_NAME.fullmatch(stripped(exact)):  # "x ≈ 11" says no more than that
        exact, *about = about
    joined = stripped(_JOINING.sub(r" \1 ", exact))
    several = is_list(joined)  # then each value has its own name, sides, unit and sign
    body, percent, degrees, unit = (joined, False, False, None) if several else _marks(stripped(exact))
    if not several:
        body = inward(stripped(without_fonts(body)))
    if builder := _BUILDER.fullmatch(body):  # {x | x > 0} is what its condition says
        body = builder["condition"].strip()
    several = several or is_list(body)
    named = None if several else _NAME.fullmatch(body)
    rest = named["rest"] if named else body
    return Form(
        text=squeezed(text),
        body=body,
        sides=(body,) if several else tuple(side.strip() for side in cut(rest, _SIDES)),
        name=squeezed(named["name"]) if named else None,
        percent=percent,
        degrees=degrees,
        unit=unit,
        letter=letter[1] if letter else (choice[1] or choice[2]) if choice else None,
        labelled=choice[3].strip() if choice else None,
        in_text=tight.startswith("\\text") and "\\" not in tight[1:],
        about=stripped(without_fonts(about[0])) if about else None,
    )


def without_bare_names(sides: tuple[str, ...]) -> tuple[str, ...]:
    """Sides of ``5 = x`` and ``x = y = 5`` that say something; all of them if none does."""
    telling = tuple(s for s in sides if not _BARE_NAME.fullmatch(s))
    return telling or sides


def contradicts_itself(form: Form) -> bool:
    """``5 ≈ 6``: a number, and an approximation of it that is more than a twentieth away."""
    exact = parse_number(form.sides[-1])
    about = parse_number(form.about) if form.about else None
    if exact is None or about is None:
        return False
    return abs(exact.value - about.value) * 20 > abs(exact.value)


def _marks(text: str) -> tuple[str, bool, bool, str | None]:
    percent = degrees = False
    unit = None
    if match := _CURRENCY.match(text):
        text, unit = text[match.end() :], units.CURRENCY[match["sign"]]
    if match := _TEMPERATURE.search(text):
        text, degrees, unit = text[: match.start()], True, units.canonical(match["unit"], None)
    for _ in range(4):  # "5 \text{ cm}^2", "20^\circ \text{C}", "2.5 \text{ million dollars}"
        if (match := _PERCENT.search(text)) and match.start():
            text, percent = text[: match.start()], True
        elif (match := _DEGREES.search(text)) and match.start():
            text, degrees = text[: match.start()], True
        elif match := _TEXT_UNIT.search(text):
            kind = units.kind_of(match["unit"])
            if kind is None:
                break
            text = text[: match.start()]
            if kind == "unit":
                words = match["unit"] + (f"/{match['per']}" if match["per"] else "")
                unit = unit or units.canonical(words, match["power"])
            elif kind in units.MAGNITUDES:
                text = rf"{text} \times 10^{{{units.MAGNITUDES[kind]}}}"
            else:
                percent, degrees = percent or kind == "percent", degrees or kind == "degrees"
        elif (match := _PLAIN_UNIT.search(text)) and _plain(match["unit"]):
            kind, text = units.kind_of(match["unit"]), text[: match.start()]
            if kind in units.MAGNITUDES:
                text = rf"{text} \times 10^{{{units.MAGNITUDES[kind]}}}"
            else:
                unit = unit or units.canonical(match["unit"], match["power"])
        else:
            break
        text = text.rstrip(" .,~\\")
    return text, percent, degrees, unit


def _plain(words: str) -> bool:
    """A unit that needs no upright type around it: known, and longer than a letter that may be a variable."""
    if words.lower() in units.MAGNITUDES:
        return True
    return units.is_known(words) and (len(words) > 2 or words.lower() in ("cm", "mm", "km", "kg", "mg", "ml", "ft"))
