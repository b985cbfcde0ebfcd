"""Settings of the signal pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from verl_grail.config.section import Section


@dataclass
class SignalsConfig(Section):
    """How the signal pass runs on the actor workers (``algorithm.signals``)."""

    key = "algorithm.signals"

    head_chunk_tokens: int = 512
    """Positions that go through the output layer at a time; memory grows with this times the vocabulary."""
    backward_micro_batch_size_per_gpu: Optional[int] = None  # noqa: UP045
    """Rows per micro-batch with a backward; null: actor.ppo_micro_batch_size_per_gpu, which fits training."""
    backward_max_token_len_per_gpu: Optional[int] = None  # noqa: UP045
    """Tokens per such micro-batch under use_dynamic_bsz; null: actor.ppo_max_token_len_per_gpu."""
    recompute: bool = True
    """Whether blocks are recomputed in that backward where the actor's training does it. False saves a forward of the
    selected rollouts, for the memory of a micro-batch's activations: make those micro-batches small."""

    def __post_init__(self) -> None:
        self._number("head_chunk_tokens", 1, 1 << 20)
        for name in ("backward_micro_batch_size_per_gpu", "backward_max_token_len_per_gpu"):
            if getattr(self, name) is not None:
                self._number(name, 1, 1 << 30)
