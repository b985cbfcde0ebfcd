"""Which rank of a Megatron model holds which token of a packed micro-batch (thd layout), and sums over those ranks.

verl packs sequences one after the other, each padded so that it divides over the ranks, and cuts each over the
context-parallel ranks (verl/models/mcore/util.py, preprocess_thd_engine): ``zigzag`` gives a rank one chunk from either
end, ``contiguous`` an interval of the whole buffer. Sequence parallelism cuts what a rank holds once more, over the
tensor-parallel ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core import parallel_state as mpu

from verl_grail.signals.positions import Positions


def place(
    row: torch.Tensor, position: torch.Tensor, starts: torch.Tensor, ranks: int, layout: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Context-parallel rank and index there of token ``position`` of sequence ``row``; all (N,) int64.

    Args:
        starts: (B + 1,) padded start of each sequence in the packed buffer, the end last.
        ranks: context-parallel ranks.
        layout: ``zigzag`` or ``contiguous``.
    """
    start = starts[row]
    if ranks == 1:
        return torch.zeros_like(row), start + position
    if layout == "contiguous":
        share = starts[-1] // ranks
        return (start + position) // share, (start + position) % share
    half = (starts[row + 1] - start) // (2 * ranks)
    chunk = position // half
    front = chunk < ranks
    owner = torch.where(front, chunk, 2 * ranks - 1 - chunk)
    return owner, start // ranks + position - chunk * half + torch.where(front, 0, half)


class PackedPart:
    """This context-parallel rank's share of a micro-batch; a `headrun.Part`.

    Args:
        starts: padded sequence starts (``PackedSeqParams.cu_seqlens_q_padded``).
        layout: verl's context-parallel layout of the model.
    """

    def __init__(self, at: Positions, starts: torch.Tensor, layout: str):
        self._at, self._starts, self._layout = at, starts.to(at.token.device, torch.int64), layout
        self._ranks = mpu.get_context_parallel_world_size()
        lengths = at.prompt_lengths + at.response_lengths
        self._base = torch.cumsum(lengths, 0) - lengths  # of `Positions`, which count unpadded
        self.mine, self.predicting = self.where(at.predicting)

    def where(self, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For flat positions (N,) as `Positions` count: which are here, (N,) bool, and the indices here of those."""
        rows = self._at.rows
        owner, index = place(rows, flat - self._base[rows], self._starts, self._ranks, self._layout)
        mine = owner == mpu.get_context_parallel_rank()
        return mine, index[mine]

    def gather(self, values: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
        """Values of this rank's entries -> values of all N entries."""
        if self._ranks == 1:
            return values
        out = values.new_zeros(mine.shape[0])
        out[mine] = values
        return self.total(out)

    def pick(self, here: torch.Tensor, flat: torch.Tensor) -> torch.Tensor:
        """Values (N,) at flat positions, where ``here`` holds those of this rank's tokens."""
        mine, index = self.where(flat)
        return self.gather(here[index], mine)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sum over the context-parallel ranks."""
        if self._ranks > 1:
            torch.distributed.all_reduce(value, group=mpu.get_context_parallel_group())
        return value


class SequenceShare:
    """What sequence parallelism leaves a tensor-parallel rank of its context-parallel rank's tokens."""

    def __init__(self, config: Any):
        self.ranks = mpu.get_tensor_model_parallel_world_size() if config.sequence_parallel else 1
        self.rank = mpu.get_tensor_model_parallel_rank() if self.ranks > 1 else 0

    def gather(self, mine: torch.Tensor) -> torch.Tensor:
        """(t_local, ...) -> (t, ...): the shares of all ranks, in order."""
        if self.ranks == 1:
            return mine
        out = mine.new_empty(self.ranks * mine.shape[0], *mine.shape[1:])
        group = mpu.get_tensor_model_parallel_group()
        torch.distributed.all_gather_into_tensor(out, mine.contiguous(), group=group)
        return out

    def here(self, index: torch.Tensor, local_length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which of the indices into the gathered tokens are this rank's own, and their local indices."""
        start = self.rank * local_length
        mine = (index >= start) & (index < start + local_length)
        return mine, index[mine] - start
