"""Where response tokens and the states that predict them lie in a micro-batch's flattened hidden states."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verl_grail.signals.request import Column


@dataclass(frozen=True)
class Positions:
    """Flat indices of one micro-batch, all tensors (N,) over its N response tokens, row after row.

    Attributes:
        predicting: index of the state that predicts the token.
        token: index of the token itself.
        labels: the token's id.
        rows: its row.
        answer, vector: bool, in the row's answer loss / gradient-activation vector.
        prompt_lengths, response_lengths: (B,).
    """

    predicting: torch.Tensor
    token: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor
    answer: torch.Tensor
    vector: torch.Tensor
    prompt_lengths: torch.Tensor
    response_lengths: torch.Tensor


def locate_positions(
    input_ids: torch.Tensor,
    responses: torch.Tensor,
    response_mask: torch.Tensor,
    plan: torch.Tensor,
    packed: bool,
) -> Positions:
    """Positions of every response token.

    Args:
        input_ids, responses, response_mask: jagged nested (B, j): prompt + response, response, and its mask.
        plan: (B, len(Column)) int64, see `request.Column`.
        packed: rows lie one after the other (remove_padding) instead of being padded to the longest.
    """
    device = input_ids.values().device
    lengths = input_ids.offsets().diff().to(device)
    response_lengths = responses.offsets().diff().to(device)
    prompt_lengths = lengths - response_lengths
    n_rows = lengths.shape[0]
    offsets = input_ids.offsets()[:-1].to(device)
    base = offsets if packed else torch.arange(n_rows, device=device) * lengths.max()

    rows = torch.repeat_interleave(torch.arange(n_rows, device=device), response_lengths)
    t = torch.arange(rows.shape[0], device=device) - responses.offsets()[:-1].to(device)[rows]
    plan = plan.to(device)[rows]
    generated = response_mask.values().to(device).bool()
    token = base[rows] + prompt_lengths[rows] + t
    return Positions(
        predicting=token - 1,
        token=token,
        labels=responses.values().to(device),
        rows=rows,
        answer=(t >= plan[:, Column.ANSWER_START]) & (t < plan[:, Column.ANSWER_END]),
        vector=(t >= plan[:, Column.VECTOR_START]) & (t < plan[:, Column.VECTOR_END]) & generated,
        prompt_lengths=prompt_lengths,
        response_lengths=response_lengths,
    )


def full_rows(values: torch.Tensor, at: Positions) -> list[torch.Tensor]:
    """Response values (N,) as one (prompt + response,) tensor per row, shifted left by one as verl's log-probs are:
    entry ``P + t - 1`` belongs to response token t; all others are zero."""
    out = []
    for value, prompt in zip(values.split(at.response_lengths.tolist()), at.prompt_lengths.tolist(), strict=True):
        row = value.new_zeros(prompt + value.shape[0])
        row[prompt - 1 : -1] = value
        out.append(row)
    return out


def response_rows(values: torch.Tensor, at: Positions) -> list[torch.Tensor]:
    """Response values (N,) as one (T,) tensor per row."""
    return list(values.split(at.response_lengths.tolist()))
