"""GRAIL's token weights from gradient-activation saliency (arXiv 2606.04889, section 3)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from verl_grail.core.regions import Regions


class RowOutcome(IntEnum):
    """What became of one rollout's weights; every value but WEIGHTED leaves all of them at 1 (but for
    ``correct_unselected``, which corrects the answer span of unselected ones)."""

    WEIGHTED = 0
    UNSELECTED = 1
    NO_ANSWER = 2
    NO_SCORED_TOKENS = 3
    NON_FINITE = 4
    DEGENERATE = 5
    ZERO_ADVANTAGE = 6
    PADDING = 7
    UNGRADED = 8
    """The gold cannot be read, so the rollout has no verdict and no advantage."""


@dataclass(frozen=True)
class GrailWeights:
    """Weights (B, T) float32 and, for the metrics, what they were made from.

    ``outcome`` (B,) int64 holds `RowOutcome` values; ``scored`` (B, T) the tokens that entered the statistics of
    weighted rows; ``clipped_low`` and ``clipped_high`` (B, T) those whose weight hit a bound.
    """

    weights: torch.Tensor
    outcome: torch.Tensor
    scored: torch.Tensor
    clipped_low: torch.Tensor
    clipped_high: torch.Tensor


def saliency_norm(activation: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """``s_t = || e_t * dL/de_t ||_2``, computed in float32; (..., d) and (..., d) -> (...)."""
    return (activation.float() * gradient.float()).norm(dim=-1)


def path_scales(steps: int) -> list[float]:
    """Midpoint rule on [0, 1] for Integrated Gradients (arXiv 1703.01365): ``(k + 1/2) / steps``, k = 0 .. steps - 1.

    The attribution of token t from the baseline of zero embeddings is ``e_t * integral over a of dL/de_t(a e)``, so the
    saliency is `saliency_norm` of ``e_t`` and the mean of the gradients at these multiples of ``e``.
    """
    return [(k + 0.5) / steps for k in range(steps)]


def grail_weights(
    saliency: torch.Tensor,
    regions: Regions,
    response_mask: torch.Tensor,
    outcome: torch.Tensor,
    *,
    w_mean: float = 1.0,
    sigma_w: float = 0.5,
    w_min: float = 0.5,
    w_max: float = 5.0,
    delimiter_weight: str = "w_mean",
    stats: str = "reasoning",
    correct_unselected: bool = False,
    eps: float = 1e-8,
) -> GrailWeights:
    """Log-space standardised, clipped and corrected weights of each token.

    Args:
        saliency: (B, T) float, already aligned to the tokens; read only where a token is scored.
        regions: masks of the answer span.
        response_mask: (B, T), 1 for generated tokens.
        outcome: (B,) int64 `RowOutcome` known beforehand; rows at WEIGHTED are the selected ones, and move to
            NO_ANSWER, NO_SCORED_TOKENS, NON_FINITE or DEGENERATE here where that applies.
        delimiter_weight: ``w_mean`` or ``w_min``, the weight of marker and closing-brace tokens.
        stats: ``reasoning`` (tokens before the answer) or ``all`` (published code: every response token).
        correct_unselected: apply the corrections of the answer span to unselected rollouts too (published code).

    Returns:
        `GrailWeights`; weights are 1 on masked tokens and on every row that is not WEIGHTED (but for
        ``correct_unselected``).
    """
    keep = response_mask.bool()
    s = saliency.float()
    scored = keep & regions.found.unsqueeze(1) if stats == "all" else regions.reasoning
    count = scored.sum(1)

    outcome = outcome.clone()
    selected = outcome == RowOutcome.WEIGHTED
    finite = (torch.isfinite(s) | ~scored).all(1)
    low = s.masked_fill(~scored, float("inf")).amin(1)
    high = s.masked_fill(~scored, float("-inf")).amax(1)
    for failed, name in (
        (low == high, RowOutcome.DEGENERATE),
        (~finite, RowOutcome.NON_FINITE),
        (count == 0, RowOutcome.NO_SCORED_TOKENS),
        (~regions.found, RowOutcome.NO_ANSWER),
    ):  # the last one that applies names the row
        outcome[selected & failed] = int(name)
    weighted = (outcome == RowOutcome.WEIGHTED).unsqueeze(1)

    log_s = torch.log(torch.where(scored & weighted, s, torch.ones_like(s)) + eps)
    n = count.clamp(min=1).unsqueeze(1)
    mu = torch.where(scored, log_s, 0.0).sum(1, keepdim=True) / n
    var = torch.where(scored, (log_s - mu) ** 2, 0.0).sum(1, keepdim=True) / n
    raw = w_mean + sigma_w * (log_s - mu) / torch.sqrt(var + eps)
    weights = torch.where(scored & weighted, raw.clamp(w_min, w_max), torch.ones_like(raw))

    corrected = weighted
    if correct_unselected:
        corrected = weighted | ((outcome == RowOutcome.UNSELECTED) | (outcome == RowOutcome.ZERO_ADVANTAGE))[:, None]
    weights = torch.where(regions.content & corrected, w_max, weights)
    weights = torch.where(regions.delimiter & corrected, w_min if delimiter_weight == "w_min" else w_mean, weights)
    weights = torch.where(regions.post & corrected, w_mean, weights)

    live = scored & weighted
    return GrailWeights(weights, outcome, live, live & (raw < w_min), live & (raw > w_max))
