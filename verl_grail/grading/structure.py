r"""Several values in one answer: ``1, 2``, ``(1, 2)``, ``\{1, 2\}``, ``[1, 2)``, ``\pm 3``, ``x = 1 or x = 2``."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST = 64
"""Elements of an answer that are looked at."""
_SEPARATOR = re.compile(r"\s*(?:,|;|\band\b|\bor\b)\s*")
_SEMICOLON = re.compile(r"\s*;\s*")
_MEMBER = re.compile(r"\\?[A-Za-z]\w*\s*\\in(?![A-Za-z])\s*")
_BRACKETS = {"(": ")", "[": "]"}


@dataclass(frozen=True)
class Structure:
    """``kind`` is ``list`` (bare), ``set`` (braces) or ``tuple`` (brackets, whose two characters are ``ends``)."""

    kind: str
    items: tuple[str, ...]
    ends: str = ""


def parse_structure(text: str) -> Structure | None:
    """The several values of a cleaned answer, or None for a single one."""
    text = _MEMBER.sub("", text.strip(), count=1) if _MEMBER.match(text.strip()) else text.strip()
    if text.startswith("\\{") and text.endswith("\\}"):
        inner = text[2:-2]
        if "|" in inner or ":" in inner or "\\{" in inner:
            return None
        items = _split(inner)
        return None if items is None else Structure("set", items)
    if len(text) > 1 and text[0] in "([" and text[-1] in ")]" and _encloses(text):
        items = _split(text[1:-1])
        return None if items is None or len(items) < 2 else Structure("tuple", items, text[0] + text[-1])
    if text.count("\\pm") == 1 and "\\mp" not in text:
        left, right = text.split("\\pm")
        if not _SEPARATOR.search(text):
            return Structure("list", (f"{left} + {right}" if left.strip() else right, f"{left} - {right}"))
    items = _split(text)
    return None if items is None or len(items) < 2 else Structure("list", items)


def is_list(text: str) -> bool:
    """Several values without brackets around them."""
    items = _split(text)
    return items is None or len(items) > 1


def _encloses(text: str) -> bool:
    """The first bracket is closed by the last one. Half-open intervals close a round one with a square one."""
    level = 0
    for i, c in enumerate(text):
        level += (c in "([{") - (c in ")]}")
        if level == 0:
            return i == len(text) - 1
    return False


def _split(text: str) -> tuple[str, ...] | None:
    """At commas, "and" and "or" outside of brackets, or at semicolons if there are any (then commas are part of the
    elements: ``p=5, q=2; p=7, q=2``); None if an element is empty or there are too many."""
    at_semicolons = _cut(text, _SEMICOLON)
    items = at_semicolons if len(at_semicolons) > 1 else _cut(text, _SEPARATOR)
    items = [item.strip() for item in items]
    # ", and" is one separator
    items = [item for k, item in enumerate(items) if item or not 0 < k < len(items) - 1]
    return tuple(items) if all(items) and len(items) <= MOST else None


def _cut(text: str, separator: re.Pattern[str]) -> list[str]:
    """Pieces between separators outside of brackets."""
    items, level, start, i = [], 0, 0, 0
    while i < len(text):
        c = text[i]
        if c in "([{":
            level += 1
        elif c in ")]}":
            level -= 1
        elif level == 0 and (match := separator.match(text, i)) and match.end() > i:
            items.append(text[start:i])
            start = i = match.end()
            continue
        i += 1
    return [*items, text[start:]]
