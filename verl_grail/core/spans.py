"""Where the final answer stands in a response given by its generated token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verl_grail.core.answers import AnswerPolicy, find_answer
from verl_grail.core.boxes import Match
from verl_grail.core.tokens import TokenBytes, tokens_overlapping


@dataclass(frozen=True)
class AnswerSpan:
    """Token ranges (half-open, in response tokens) of the final answer.

    ``[start, end)`` is the complete answer, markers and closing braces included; ``contents`` are the ranges of tokens
    that hold at least one byte of its content (one range, unless several boxes are taken together). Tokens of the span
    outside of the contents are delimiters, tokens from ``end`` on are post-answer tokens, tokens before ``start`` are
    reasoning.
    """

    start: int
    end: int
    contents: tuple[tuple[int, int], ...]

    @property
    def content_start(self) -> int:
        """First content token."""
        return self.contents[0][0]

    @property
    def content_end(self) -> int:
        """End of the last content token."""
        return self.contents[-1][1]


def _byte_offsets(text: str) -> np.ndarray:
    """(len + 1,) byte offset of each character of a text decoded with surrogateescape."""
    code = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    widths = 1 + (code >= 0x80).astype(np.int64) + (code >= 0x800) + (code >= 0x10000)
    widths[(code >= 0xDC80) & (code <= 0xDCFF)] = 1  # a byte that is no character by itself
    offsets = np.zeros(len(code) + 1, dtype=np.int64)
    np.cumsum(widths, out=offsets[1:])
    return offsets


def locate_answer(
    ids: Sequence[int],
    token_bytes: TokenBytes,
    policy: AnswerPolicy | None = None,
    allowed: Sequence[int] | None = None,
) -> AnswerSpan | None:
    """Answer span of a response given by its generated token ids.

    Args:
        ids: the response's token ids, without padding.
        token_bytes: byte table of the tokenizer that generated them.
        policy: what counts as the answer; the last complete box by default.
        allowed: the response mask, at least as long as ``ids``; an answer with a token the policy did not generate (a
            tool's or an environment's) is passed over.

    Returns:
        The span, or None when the response has no complete, non-empty answer (a truncated box is none).
    """
    data, offsets = token_bytes.text_and_offsets(ids, skip_special=True)
    # Broken characters (cut at the length limit, or split by the segmentation) survive as surrogates, so that positions
    # in the text can be turned back into bytes.
    text = data.decode("utf-8", "surrogateescape")

    byte_of = None if text.isascii() else _byte_offsets(text)

    def tokens(start: int, end: int) -> tuple[int, int]:
        if byte_of is not None:
            start, end = int(byte_of[start]), int(byte_of[end])
        return tokens_overlapping(offsets, start, end)

    def permitted(match: Match) -> bool:
        start, end = tokens(match.start, match.end)
        return allowed is None or all(allowed[start:end])

    answer = find_answer(text, policy or AnswerPolicy(), permitted)
    if answer is None:
        return None
    return AnswerSpan(*tokens(answer.start, answer.end), tuple(tokens(a, b) for a, b in answer.contents))
