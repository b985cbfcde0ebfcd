"""OAR-G's token weights (arXiv 2601.07408), the baseline that GRAIL compares against."""

from __future__ import annotations

import numpy as np
import torch

from verl_grail.core.regions import Regions


def influence(activation: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """``I_t = |sum_j e_tj g_tj|``, computed in float32; (..., d) and (..., d) -> (...)."""
    return (activation.float() * gradient.float()).sum(-1).abs()


def oar_g_weights(
    influence: torch.Tensor,
    regions: Regions,
    response_mask: torch.Tensor,
    selected: torch.Tensor,
    *,
    quantile: float = 0.4,
    floor: float = 0.1,
    boost: float = 2.0,
    stats: str = "reasoning",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Suppressed and boosted weights that sum to the number of valid tokens.

    Args:
        influence: (B, T) float, `influence` of each token on the answer's distribution under embedding noise.
        regions: masks of the answer span.
        response_mask: (B, T).
        selected: (B,) bool, rows whose influence was computed.
        quantile, floor, boost: of the threshold ``tau``, the lowest relative weight and the slope above ``tau``.
        stats: ``reasoning`` or ``all``: the tokens over which the quantile is taken.

    Returns:
        weights (B, T) float32, and (B,) bool: rows that were weighted. A row that is not selected, has no answer, no
        finite influence or a constant one keeps weight 1 on every token.
    """
    keep = response_mask.bool()
    weights = torch.ones(keep.shape, dtype=torch.float32, device=keep.device)
    weighted = torch.zeros(keep.shape[0], dtype=torch.bool, device=keep.device)
    for row in torch.nonzero(selected & regions.found).flatten().tolist():
        valid = keep[row]
        x = torch.log1p(influence[row].float())
        ranked = x[regions.reasoning[row] if stats == "reasoning" else valid]
        low, high = x[valid].min(), x[valid].max()
        if ranked.numel() == 0 or not torch.isfinite(x[valid]).all() or low == high:
            continue
        x = (x - low) / (high - low)
        tau = torch.quantile((ranked - low) / (high - low), quantile)
        # tau = 0 leaves nothing below it, tau = 1 nothing above it: the clamps only keep the unused branch finite
        below = (x / tau.clamp(min=torch.finfo(torch.float32).tiny)).clamp(min=floor)
        above = 1 + boost * (x - tau) / (1 - tau).clamp(min=torch.finfo(torch.float32).tiny)
        above = torch.where(tau >= 1, torch.ones_like(x), above)
        w = torch.where(x < tau, below, above)
        total = w[valid].sum()
        if total <= 0:
            continue
        weights[row] = torch.where(valid, w * valid.sum() / total, torch.ones_like(w))
        weighted[row] = True
    return weights, weighted


def noise(seed: int, step: int, row_key: int, shape: tuple[int, int], std: float) -> torch.Tensor:
    """Gaussian noise (length, d) float32 on the CPU, a function of (seed, step, row, position) and of nothing else.

    One generator per row, drawn position by position, so micro-batching, packing and the number of ranks do not change
    it.
    """
    generator = np.random.default_rng([seed, step, row_key])
    return torch.from_numpy(generator.standard_normal(shape, dtype=np.float32)) * std
