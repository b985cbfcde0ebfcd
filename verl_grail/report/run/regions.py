"""Which part of a response a token belongs to, as the weights see it."""

from __future__ import annotations

import numpy as np

from verl_grail.report.rollouts import Rollout

REGIONS = ("reasoning", "content", "delimiter", "post", "masked")
"""docs/methods.md defines them; ``masked`` are tokens that the policy did not generate. Without an answer all
generated tokens are reasoning."""
REASONING, CONTENT, DELIMITER, POST, MASKED = range(len(REGIONS))


def token_regions(rollout: Rollout) -> np.ndarray:
    """(tokens,) uint8 index into `REGIONS`. A dump without content ranges gives delimiters for the whole answer."""
    regions = np.zeros(len(rollout.tokens), dtype=np.uint8)
    if rollout.answer_span is not None:
        start, end = rollout.answer_span
        regions[start:end] = DELIMITER
        regions[end:] = POST
        for a, b in rollout.contents:
            regions[a:b] = CONTENT
    for a, b in rollout.masked:
        regions[a:b] = MASKED
    return regions
