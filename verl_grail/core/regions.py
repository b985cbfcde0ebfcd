"""Token regions of padded response batches: reasoning, content, delimiter and post-answer masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verl_grail.core.spans import AnswerSpan


@dataclass(frozen=True)
class Regions:
    """Boolean masks of shape (B, T), all within the response mask; rows without an answer are empty everywhere.

    ``found`` (B,) says which rows have a complete answer span.
    """

    reasoning: torch.Tensor
    content: torch.Tensor
    delimiter: torch.Tensor
    post: torch.Tensor
    found: torch.Tensor


def regions_from_spans(spans: Sequence[AnswerSpan | None], response_mask: torch.Tensor) -> Regions:
    """Masks from answer spans.

    Args:
        spans: one per row; None for a row without an answer.
        response_mask: (B, T), 1 for tokens the policy generated.
    """
    keep = response_mask.bool()
    device = keep.device
    bounds = torch.tensor(
        [(-1, -1) if s is None else (s.start, s.end) for s in spans], dtype=torch.long, device=device
    ).reshape(len(spans), 2)
    start, end = (b.unsqueeze(1) for b in bounds.unbind(1))
    at = torch.arange(keep.shape[1], device=device).unsqueeze(0)
    found = start.squeeze(1) >= 0
    live = keep & found.unsqueeze(1)
    content = torch.zeros_like(keep)
    for row, span in enumerate(spans):
        for a, b in span.contents if span is not None else ():
            content[row, a:b] = True
    content &= live
    return Regions(
        reasoning=live & (at < start),
        content=content,
        delimiter=live & (at >= start) & (at < end) & ~content,
        post=live & (at >= end),
        found=found,
    )
