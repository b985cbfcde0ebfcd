"""Per-rollout columns of ``trainer.rollout_data_dir``: tokens, weights, advantages, cosine and bonus."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from verl_grail.core.grail import RowOutcome
from verl_grail.core.tokens import TokenBytes

if TYPE_CHECKING:
    from verl_grail.plugin.trainer import _Update


def token_texts(ids: list[int], token_bytes: TokenBytes) -> list[str]:
    """Text of each token; bytes of a character that is split over tokens show as replacement characters."""
    return [piece.decode(errors="replace") for piece in token_bytes.pieces(ids)]


def _number(value: float | None) -> float | None:
    """JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else round(value, 6)


def dump_columns(update: _Update, advantages: torch.Tensor, token_bytes: TokenBytes) -> dict[str, dict[str, Any]]:
    """Columns by TransferQueue key, the same names for every row; padding rows are left out.

    Args:
        advantages: jagged (B, T), as written by the trainer.
    """
    rows, weighting, alignment = update.rows, update.weighting, update.alignment
    out: dict[str, dict[str, Any]] = {}
    for i, (key, advantage) in enumerate(zip(rows.keys, advantages.unbind(), strict=True)):
        if rows.padding[i]:
            continue
        n = len(rows.responses[i])
        span = update.weighting_plan.spans[i] if update.weighting_plan else None
        columns: dict[str, Any] = {
            "acc": float(rows.correct[i]) if "acc" in rows.info[i] else None,
            "outcome": rows.info[i].get("outcome"),
            "tokens": token_texts(rows.responses[i], token_bytes),
            "advantages": [round(a, 6) for a in advantage.tolist()],
        }
        if weighting is not None:
            columns[f"{weighting.name}_weights"] = [round(w, 4) for w in weighting.weights[i, :n].tolist()]
            columns[f"{weighting.name}_outcome"] = RowOutcome(int(weighting.outcome[i])).name.lower()
            columns["answer_span"] = None if span is None else [span.start, span.end]
        if alignment is not None:
            columns["gar_cosine"] = _number(alignment.cosine.get(i))
            columns["gar_bonus"] = _number(alignment.bonus.get(i))
            columns["gar_outcome"] = rows.info[i].get("gar_outcome")
        out[key] = columns
    return out
