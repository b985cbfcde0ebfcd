"""Where the thinking of GAR's strict format stands in a response, in bytes and in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from verl_grail.core.tokens import TokenBytes, tokens_overlapping


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
