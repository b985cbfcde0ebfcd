r"""String rules of `\boxed`: which boxes a text holds, and where.

Braces are balanced and escaped braces (``\{ \}``) are not counted; an unclosed or empty box is none; a box inside a box
belongs to the outer one; without braces only a number counts (``\boxed 5``), so prose that merely mentions ``\boxed``
is no answer. Everything is linear in the length of the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_BOXED = re.compile(r"\\boxed(?![A-Za-z])")
# \framebox may carry a width and a position in square brackets
_FRAMED = re.compile(r"\\(?:boxed|fbox|framebox(?:\[[^\]{}]{0,40}\]){0,2})(?![A-Za-z])")
_BARE_NUMBER = re.compile(r"\s*([+-]?\d+(?:[.,/]\d+)*)", re.ASCII)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_SPACES = re.compile(r"\s*", re.ASCII)
BLANK = " \t\n\r\f\v"
"""What counts as nothing around and inside an answer. ASCII only, as LaTeX sees it."""


@dataclass(frozen=True)
class Match:
    """One answer candidate, in offsets of the text it was found in; ``end`` and ``content_end`` are exclusive."""

    start: int
    content_start: int
    content_end: int
    end: int


def _matching_braces(text: str) -> dict[int, int]:
    """Closing brace of every opening brace, in one pass; escaped characters are skipped."""
    stack: list[int] = []
    match: dict[int, int] = {}
    for m in _BRACES.finditer(text):
        if m.group() == "{":
            stack.append(m.start())
        elif m.group() == "}" and stack:
            match[stack.pop()] = m.start()
    return match


def find_boxes(text: str, frames: bool = False) -> list[Match]:
    r"""All complete, non-empty, outermost boxes of ``text``, in order.

    Args:
        frames: ``\fbox{...}`` and ``\framebox{...}`` count too (with braces only).

    Example: ``find_boxes(r"so \boxed{5}.")`` is ``[Match(3, 10, 11, 12)]``.
    """
    if "\\" not in text or "box" not in text:
        return []
    closing = _matching_braces(text)
    boxes: list[Match] = []
    cursor = 0
    for marker in (_FRAMED if frames else _BOXED).finditer(text):
        if marker.start() < cursor:
            continue
        brace = _SPACES.match(text, marker.end()).end()  # type: ignore[union-attr]
        if brace < len(text) and text[brace] == "{":
            end = closing.get(brace)
            if end is None:
                continue
            cursor = end + 1
            if text[brace + 1 : end].strip(BLANK):
                boxes.append(Match(marker.start(), brace + 1, end, end + 1))
        elif marker.group() == "\\boxed" and (number := _BARE_NUMBER.match(text, marker.end())):
            cursor = number.end()
            boxes.append(Match(marker.start(), number.start(1), number.end(1), number.end(1)))
    return boxes
