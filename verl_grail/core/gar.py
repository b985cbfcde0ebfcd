"""GAR's alignment reward (arXiv 2609.03342, section 2): cosines, anchors, group-centred bonus, penalties."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch


def normalise(vector: torch.Tensor) -> torch.Tensor:
    """L2-normalised (..., d) float32; a zero vector stays zero."""
    return torch.nn.functional.normalize(vector.float(), dim=-1)


def anchor_alignment(
    vector: torch.Tensor, primary: torch.Tensor, auxiliary: torch.Tensor | None = None, aux_mode: str = "real_only"
) -> torch.Tensor:
    """Cosine of rollout vectors with the best expert anchor of their prompt.

    Args:
        vector: (N, d) rollout vectors of one prompt.
        primary: (P, d) vectors of the expert solutions, P >= 1; the best cosine counts.
        auxiliary: (A, d) vectors of teacher-rolled solutions, or None.
        aux_mode: ``real_only``, ``aux_max`` = max(real, 0.5 aux), ``aux_residual`` = real + 0.5 max(0, aux - real).

    Returns:
        (N,) float32.
    """
    v = normalise(vector)
    real = (v @ normalise(primary).T).amax(1)
    if auxiliary is None or auxiliary.shape[0] == 0 or aux_mode == "real_only":
        return real
    aux = (v @ normalise(auxiliary).T).amax(1)
    if aux_mode == "aux_max":
        return torch.maximum(real, 0.5 * aux)
    return real + 0.5 * (aux - real).clamp(min=0)


def group_bonus(
    cosine: torch.Tensor, groups: Sequence[Hashable], beta: float = 0.5, single: str = "zero"
) -> torch.Tensor:
    """``beta * max(0, cos - mean cos of the prompt's passing rollouts)`` for each passing rollout.

    Args:
        cosine: (N,) of passing rollouts; non-finite entries get bonus 0 and do not enter a mean.
        groups: N prompt identifiers.
        single: what a lone passing rollout gets: ``zero`` (paper) or ``plain`` (published code: not centred).

    Returns:
        (N,) float32 bonuses, all >= 0.
    """
    bonus = torch.zeros_like(cosine, dtype=torch.float32)
    members: dict[Hashable, list[int]] = {}
    for i, group in enumerate(groups):
        if torch.isfinite(cosine[i]):
            members.setdefault(group, []).append(i)
    for rows in members.values():
        c = cosine[rows].float()
        if len(rows) > 1:
            bonus[rows] = beta * (c - c.mean()).clamp(min=0)
        elif single == "plain":
            bonus[rows] = beta * c.clamp(min=0)
    return bonus


def length_penalty(
    thinking: int, expert: int, largest: float = 0.5, ratio: float = 0.5, low: int = 96, high: int = 512
) -> float:
    """Penalty (<= 0) for thinking that is shorter than a target drawn from the expert's length.

    The target is ``ratio`` times the expert's token count kept within [low, high]; at half of the target and below the
    penalty is ``-largest``, linear in between.
    """
    target = min(max(ratio * expert, low), high)
    floor = target / 2
    missing = (target - thinking) / (target - floor)
    return -largest * min(max(missing, 0.0), 1.0)


def as_solutions(value: object, limit: int) -> list[str]:
    """Expert solutions of a dataset cell: a text, a sequence of texts, or nothing (None, NaN, empty).

    Blank texts are dropped; at most ``limit`` are kept, in order.
    """
    texts: Any = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(texts, str):
        texts = [texts]
    elif not isinstance(texts, list | tuple):
        texts = []
    return [t for t in texts if isinstance(t, str) and t.strip()][:limit]
