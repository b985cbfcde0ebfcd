"""What the driver knows about the rows of one local update, read once from TransferQueue before the log-prob pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta

from verl_grail.plugin.estimators import Sessions

_FIELDS = ["uid", "prompts", "responses", "response_mask", "rm_scores", "extra_fields", "acc"]
"""``acc``: a colocated reward model's extra keys are fields of their own, everybody else's are in extra_fields."""


@dataclass
class StepRows:
    """Rows of one update in batch order, with padding rows among them.

    Attributes:
        keys: TransferQueue keys ``{uid}_{session}_{output}``.
        uids: prompt group of each row.
        padding: (B,) bool.
        prompts, responses: token ids per row.
        response_mask: (B, T) int64, padded with zeros to the longest response.
        rewards: (B, T) float32 token-level rewards as the reward manager paid them.
        info: reward_extra_info of each row; empty where there is none.
        columns: further per-row fields (expert solutions).
    """

    keys: list[str]
    uids: list[str]
    padding: torch.Tensor
    prompts: list[list[int]]
    responses: list[list[int]]
    response_mask: torch.Tensor
    rewards: torch.Tensor
    info: list[dict[str, Any]]
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def sessions(self) -> Sessions:
        """Final outputs of multi-output sessions."""
        return Sessions.from_keys(self.keys)

    @cached_property
    def lengths(self) -> list[int]:
        """Tokens of each row, prompt and response."""
        return [len(p) + len(r) for p, r in zip(self.prompts, self.responses, strict=True)]

    @cached_property
    def index(self) -> np.ndarray:
        """Prompt groups as verl's estimators take them."""
        return np.array(self.uids, dtype=object)

    @cached_property
    def correct(self) -> torch.Tensor:
        """(B,) bool: the verifier's verdict, ``acc`` of the reward, else score > 0."""
        return torch.tensor([_accepted(i, s) for i, s in zip(self.info, self.rewards.sum(1).tolist(), strict=True)])

    @cached_property
    def ungraded(self) -> torch.Tensor:
        """(B,) bool: the reward function said (``graded`` 0) that the gold of the row's session cannot be read."""
        s = self.sessions
        final = [self.info[row].get("graded", 1.0) == 0 for row in s.final_rows]
        return torch.tensor([final[s.final_of_row[row]] for row in range(len(self))], dtype=torch.bool) & ~self.padding

    @property
    def left_out(self) -> torch.Tensor:
        """(B,) bool: rows that no statistics of rewards may see, padding and those without a verdict."""
        return self.padding | self.ungraded

    def truncated(self, max_response_length: int, context: int | None, end_ids: frozenset[int]) -> torch.Tensor:
        """(B,) bool: responses that filled their limit without an end-of-sequence token.

        Args:
            max_response_length: limit of a response, in tokens.
            context: limit of prompt and response together (rollout.max_model_len), or None.
        """
        limits = [min(max_response_length, (context or 1 << 60) - len(p)) for p in self.prompts]
        return torch.tensor(
            [len(r) >= n and r[-1] not in end_ids for r, n in zip(self.responses, limits, strict=True)],
            dtype=torch.bool,
        )

    def origin(self, row: int) -> int:
        """First output of the row's session: its prompt is the data set's own, without any history."""
        session = self.sessions.final_of_row[row]
        members = [i for i, s in enumerate(self.sessions.final_of_row) if s == session]
        return min(members, key=lambda i: int(self.keys[i].rpartition("_")[2]))


def _accepted(info: dict[str, Any], score: float) -> bool:
    """``acc`` if it is a number, else the score's sign: a user's reward may leave it out, or write anything into it."""
    acc = info.get("acc")
    return float(acc if isinstance(acc, bool | int | float | np.number | np.bool_) else score) > 0


def _list(value: Any) -> list[Any]:
    return value.tolist() if hasattr(value, "tolist") else list(value)


def read_rows(batch: KVBatchMeta, columns: list[str]) -> StepRows:
    """Fetch the rows of a batch; columns that the data set lacks come back as None."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[*_FIELDS, *columns])
    n = len(batch)
    extra = _list(data["extra_fields"]) if "extra_fields" in data else [{}] * n
    info = [(e or {}).get("reward_extra_info") or {} if isinstance(e, dict) else {} for e in extra]
    if "acc" in data:
        info = [{"acc": acc, **i} for acc, i in zip(_list(data["acc"]), info, strict=True)]
    return StepRows(
        keys=list(batch.keys),
        uids=[str(u) for u in _list(data["uid"])],
        padding=torch.tensor([bool(tag.get("is_padding", False)) for tag in batch.tags]),
        prompts=[p.tolist() for p in data["prompts"].unbind()],
        responses=[r.tolist() for r in data["responses"].unbind()],
        response_mask=torch.nested.to_padded_tensor(data["response_mask"], 0),
        rewards=torch.nested.to_padded_tensor(data["rm_scores"], 0.0),
        info=info,
        columns={c: _list(data[c]) if c in data else [None] * n for c in columns},
    )
