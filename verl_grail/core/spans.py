r"""Where the final answer and the thinking stand in a response, as token ranges.

String rules for `\boxed`: braces are balanced, escaped braces (``\{ \}``) are not counted, an unclosed or empty box is
no answer, a box inside a box belongs to the outer one, and without braces only a number counts (``\boxed 5``; prose
that merely mentions ``\boxed`` is no answer). Everything is linear in the length of the response.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from verl_grail.core.tokens import TokenBytes, tokens_overlapping

_MARKER = re.compile(r"\\boxed(?![A-Za-z])")
# ASCII only: token spans are searched in a byte-per-character view, answers in text, and both must agree
_BARE_NUMBER = re.compile(r"\s*([+-]?\d+(?:[.,/]\d+)*)", re.ASCII)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_SPACES = re.compile(r"\s*", re.ASCII)
_BLANK = " \t\n\r\f\v"


@dataclass(frozen=True)
class Box:
    """One complete box, in offsets of the text it was found in; ``end`` and ``content_end`` are exclusive."""

    start: int
    content_start: int
    content_end: int
    end: int


@dataclass(frozen=True)
class AnswerSpan:
    """Token ranges (half-open, in response tokens) of the final answer.

    ``[start, end)`` is the complete box, marker and closing brace included; ``[content_start, content_end)`` the tokens
    that hold at least one byte of its content. Tokens of the span outside of the content are delimiters, tokens from
    ``end`` on are post-answer tokens, tokens before ``start`` are reasoning.
    """

    start: int
    end: int
    content_start: int
    content_end: int


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


def find_boxes(text: str) -> list[Box]:
    r"""All complete, non-empty, outermost boxes of ``text``, in order.

    Example: ``find_boxes(r"so \boxed{5}.")`` is ``[Box(3, 10, 11, 12)]``.
    """
    if "\\boxed" not in text:
        return []
    closing = _matching_braces(text)
    boxes: list[Box] = []
    cursor = 0
    for marker in _MARKER.finditer(text):
        if marker.start() < cursor:
            continue
        brace = _SPACES.match(text, marker.end()).end()  # type: ignore[union-attr]
        if brace < len(text) and text[brace] == "{":
            end = closing.get(brace)
            if end is None:
                continue
            cursor = end + 1
            if text[brace + 1 : end].strip(_BLANK):
                boxes.append(Box(marker.start(), brace + 1, end, end + 1))
        elif number := _BARE_NUMBER.match(text, marker.end()):
            cursor = number.end()
            boxes.append(Box(marker.start(), number.start(1), number.end(1), number.end(1)))
    return boxes


def extract_answer(text: str, which: str = "last") -> str | None:
    """Content of the last (or first) complete box, stripped; None without one."""
    boxes = find_boxes(text)
    if not boxes:
        return None
    box = boxes[-1 if which == "last" else 0]
    return text[box.content_start : box.content_end].strip(_BLANK)


def locate_answer(
    ids: Sequence[int], token_bytes: TokenBytes, which: str = "last", allowed: Sequence[int] | None = None
) -> AnswerSpan | None:
    """Answer span of a response given by its generated token ids.

    Args:
        ids: the response's token ids, without padding.
        token_bytes: byte table of the tokenizer that generated them.
        which: ``last`` (the box that is graded) or ``first`` (GRAIL's published code).
        allowed: the response mask, at least as long as ``ids``; a box with a token the policy did not generate (a
            tool's or an environment's) is passed over.

    Returns:
        The span, or None when the response has no complete, non-empty box (a truncated box is none).
    """
    data, offsets = token_bytes.text_and_offsets(ids)
    # latin-1 maps each byte to one character, so that positions in the string are byte positions
    boxes = find_boxes(data.decode("latin-1"))
    for box in reversed(boxes) if which == "last" else boxes:
        start, end = tokens_overlapping(offsets, box.start, box.end)
        if allowed is None or all(allowed[start:end]):
            return AnswerSpan(start, end, *tokens_overlapping(offsets, box.content_start, box.content_end))
    return None


@dataclass(frozen=True)
class ThinkTags:
    """Tags of GAR's strict format; ``open_in_prompt`` for chat templates that write the opening tag themselves."""

    open: str = "<think>"
    close: str = "</think>"
    open_in_prompt: bool = False


def thinking_bytes(data: bytes, tags: ThinkTags) -> tuple[int, int] | None:
    """Byte range between the thinking tags if the strict format is kept, else None.

    Strict: the response opens with the opening tag (unless the prompt holds it), has each tag exactly once, thinks
    something, and writes something after the closing tag.
    """
    opening, closing = tags.open.encode(), tags.close.encode()
    if data.count(closing) != 1 or data.count(opening) != (0 if tags.open_in_prompt else 1):
        return None
    lead = len(data) - len(data.lstrip())
    start = 0
    if not tags.open_in_prompt:
        if not data.startswith(opening, lead):
            return None
        start = lead + len(opening)
    end = data.index(closing)
    if end < start or not data[start:end].strip() or not data[end + len(closing) :].strip():
        return None
    return start, end


def locate_thinking(
    ids: Sequence[int], token_bytes: TokenBytes, tags: ThinkTags, special_ids: frozenset[int] = frozenset()
) -> tuple[int, int] | None:
    """Token range between the thinking tags of a response that keeps the strict format, else None.

    Args:
        ids: the response's token ids.
        special_ids: end-of-sequence and padding ids; they are no text, so an EOS after the closing tag is no answer.
    """
    data, offsets = token_bytes.text_and_offsets(ids)
    length = len(ids)
    while length and ids[length - 1] in special_ids:
        length -= 1
    found = thinking_bytes(data[: offsets[length]], tags)
    return None if found is None else tokens_overlapping(offsets, *found)


def solution_span(
    ids: Sequence[int], token_bytes: TokenBytes, tags: ThinkTags, special_ids: frozenset[int] = frozenset()
) -> tuple[int, int]:
    """Thinking span of an expert solution that keeps the strict format, else all of it.

    The opening tag may be missing where the chat template writes it, and present in a solution written for another.
    """
    for open_in_prompt in (False, True):
        found = locate_thinking(ids, token_bytes, ThinkTags(tags.open, tags.close, open_in_prompt), special_ids)
        if found:
            return found
    return 0, len(ids)
