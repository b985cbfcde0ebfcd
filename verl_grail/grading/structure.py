r"""Several values in one answer: ``1, 2``, ``(1, 2)``, ``\{1, 2\}``, ``[1, 2)``, ``\pm 3``, ``x = 1 or x = 2``."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST = 64
"""Elements of an answer that are looked at."""
_SEPARATOR = re.compile(r"\s*(?:,|;|\band\b|\bor\b)\s*")
_SEMICOLON = re.compile(r"\s*;\s*")
_MEMBER = re.compile(r"\\?[A-Za-z]\w*\s*\\in(?![A-Za-z])\s*")
_POINT = re.compile(r"[A-Z]\s*(?=\()")
_CASES = re.compile(r"\\begin\{cases\}(?P<rows>.*)\\end\{cases\}", re.DOTALL)
_CONDITION = re.compile(r"^\s*(?:\\text\s*\{\s*)?(?:if|when|for|where|otherwise|else)\b[\s,:]*\}?[\s,:]*")
_OPENING = re.compile(r"\\begin\s*\{|[(\[{]")
_CLOSING = re.compile(r"\\end\s*\{|[)\]}]")


@dataclass(frozen=True)
class Structure:
    """``kind`` is ``list`` (bare), ``set`` (braces) or ``tuple`` (brackets, whose two characters are ``ends``).

    The list of a ``cases`` environment has the ends ``cases``.
    """

    kind: str
    items: tuple[str, ...]
    ends: str = ""


def parse_structure(text: str) -> Structure | None:
    """The several values of a cleaned answer, or None for a single one."""
    text = _MEMBER.sub("", text.strip(), count=1) if _MEMBER.match(text.strip()) else text.strip()
    if cases := _CASES.fullmatch(text):
        return _rows(cases["rows"])
    if text.startswith("\\{") and text.endswith("\\}"):
        inner = text[2:-2]
        if "|" in inner or ":" in inner or "\\{" in inner:
            return None
        items = _split(inner)
        return None if items is None else Structure("set", items)
    point = _POINT.match(text)
    bracket = text[point.end() :] if point else text
    if len(bracket) > 1 and bracket[0] in "([" and bracket[-1] in ")]" and _encloses(bracket):
        if bracket.count("\\pm") == 1 and "\\mp" not in bracket:
            return Structure("list", tuple(bracket.replace("\\pm", sign) for sign in ("+", "-")))
        items = _split(bracket[1:-1])
        return None if items is None or len(items) < 2 else Structure("tuple", items, bracket[0] + bracket[-1])
    items = _split(text)
    return None if items is None or len(items) < 2 else Structure("list", items)


def is_list(text: str) -> bool:
    """Several values without brackets around them."""
    items = _split(text)
    return items is None or len(items) > 1 or _CASES.fullmatch(text.strip()) is not None


def _rows(text: str) -> Structure | None:
    """Rows of a ``cases`` environment: equations, or branches with their conditions."""
    rows = []
    for row in text.split("\\\\"):
        cells = [_CONDITION.sub("", cell).strip(" ,.;") for cell in row.split("&")]
        cells = [cell for cell in cells if cell]
        if cells:
            rows.append(cells[0] if len(cells) == 1 else f"({', '.join(cells)})")
    return Structure("list", tuple(rows), "cases") if rows and len(rows) <= MOST else None


def _encloses(text: str) -> bool:
    """The first bracket is closed by the last one. Half-open intervals close a round one with a square one."""
    level = 0
    for i, c in enumerate(text):
        level += (c in "([{") - (c in ")]}")
        if level == 0:
            return i == len(text) - 1
    return False


def _split(text: str) -> tuple[str, ...] | None:
    r"""At commas, "and" and "or" outside of brackets, or at semicolons if there are any (then commas are part of the
    elements: ``p=5, q=2; p=7, q=2``); an element with ``\pm`` is two. None if one is empty or there are too many."""
    at_semicolons = cut(text, _SEMICOLON)
    items = at_semicolons if len(at_semicolons) > 1 else cut(text, _SEPARATOR)
    items = [item.strip() for item in items]
    # ", and" is one separator
    items = [item for k, item in enumerate(items) if item or not 0 < k < len(items) - 1]
    if not all(items) or len(items) > MOST:
        return None
    return tuple(value for item in items for value in _signs(item))


def _signs(item: str) -> tuple[str, ...]:
    if item.count("\\pm") != 1 or "\\mp" in item:
        return (item,)
    left, right = item.split("\\pm")
    joined = bool(left.strip()) and not left.rstrip().endswith(("=", "(", "{"))
    return (f"{left} + {right}" if joined else f"{left} {right}", f"{left} - {right}")


def cut(text: str, separator: re.Pattern[str]) -> list[str]:
    """Pieces between separators outside of brackets and environments."""
    items, level, start, i = [], 0, 0, 0
    while i < len(text):
        if opening := _OPENING.match(text, i):
            # \begin{ opens an environment and the brace around its name
            level, i = level + 1 + (len(opening.group()) > 1), opening.end()
        elif closing := _CLOSING.match(text, i):
            # \end{ closes the environment and opens the brace around its name
            level, i = level - (len(closing.group()) == 1), closing.end()
        elif level == 0 and (match := separator.match(text, i)) and match.end() > i:
            items.append(text[start:i])
            start = i = match.end()
        else:
            i += 1
    return [*items, text[start:]]
