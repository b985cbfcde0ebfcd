"""Per-rollout columns of ``trainer.rollout_data_dir``: tokens, weights, advantages, cosine, bonus, expert solution.

docs/report.md documents every column; ``verl_grail/report`` reads them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from verl_grail.core.gar import as_solutions
from verl_grail.core.grail import RowOutcome
from verl_grail.core.tokens import TokenBytes

if TYPE_CHECKING:
    from verl_grail.config import GarConfig
    from verl_grail.plugin.step import StepRows
    from verl_grail.plugin.trainer import _Update


def token_texts(ids: list[int], token_bytes: TokenBytes) -> list[str]:
    """Text of each token; bytes of a character that is split over tokens show as replacement characters."""
    return [piece.decode(errors="replace") for piece in token_bytes.pieces(ids)]


def _number(value: float | None) -> float | None:
    """JSON has no NaN."""
    return None if value is None or not math.isfinite(value) else round(value, 6)


def left_out_ranges(mask: list[int]) -> list[list[int]]:
    """Half-open ranges of the tokens that a response mask leaves out: a tool's, or an environment's."""
    edges = [i for i in range(len(mask) + 1) if bool(mask[i - 1] if i else 1) != bool(mask[i] if i < len(mask) else 1)]
    return [list(pair) for pair in zip(edges[::2], edges[1::2], strict=True)]


def _first_rows(rows: StepRows) -> set[int]:
    """Of each prompt the row that verl writes first, the padding rows left out."""
    first: dict[str, tuple[tuple[int, ...], int]] = {}
    for i, (key, uid) in enumerate(zip(rows.keys, rows.uids, strict=True)):
        if not rows.padding[i]:
            place = tuple(int(part) if part.isdecimal() else 0 for part in key.rsplit("_", 2)[1:])
            first[uid] = min(first.get(uid, (place, i)), (place, i))
    return {i for _, i in first.values()}


def dump_columns(
    update: _Update, advantages: torch.Tensor, token_bytes: TokenBytes, gar: GarConfig | None = None
) -> dict[str, dict[str, Any]]:
    """Columns by TransferQueue key, the same names for every row; padding rows are left out.

    Args:
        advantages: jagged (B, T), as written by the trainer.
        gar: with it, a prompt's expert solutions go to the first of its rows, and only there: they are as long as a
            response, and every row of the prompt has the same.
    """
    rows, weighting, alignment = update.rows, update.weighting, update.alignment
    first = _first_rows(rows) if gar else set()
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
            "masked": left_out_ranges(rows.response_mask[i, :n].tolist()) or None,
            "advantages": [round(a, 6) for a in advantage.tolist()],
        }
        if weighting is not None:
            columns[f"{weighting.name}_weights"] = [round(w, 4) for w in weighting.weights[i, :n].tolist()]
            columns[f"{weighting.name}_outcome"] = RowOutcome(int(weighting.outcome[i])).name.lower()
            columns["answer_span"] = None if span is None else [span.start, span.end]
            columns["answer_contents"] = None if span is None else [list(content) for content in span.contents]
        if alignment is not None:
            columns["gar_cosine"] = _number(alignment.cosine.get(i))
            columns["gar_bonus"] = _number(alignment.bonus.get(i))
            columns["gar_outcome"] = rows.info[i].get("gar_outcome")
        if gar is not None:
            solutions = as_solutions(rows.columns[gar.solution_key][i], gar.max_solutions) if i in first else []
            columns["expert_solutions"] = solutions or None
        out[key] = columns
    return out
