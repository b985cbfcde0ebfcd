"""What the trainer asks of a signal pass: one request for the pass, one row of integers for each sequence."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum


class Column(IntEnum):
    """Columns of a row plan, an int64 tensor (B, len(Column)) that travels with the rows."""

    MICRO_BATCH = 0
    """Index of the row's micro-batch on its rank; -1: the row is not run."""
    ANSWER_START = 1
    ANSWER_END = 2
    """Half-open range of response tokens in the answer loss; empty: no backward for the row."""
    VECTOR_START = 3
    VECTOR_END = 4
    """Half-open range of response tokens in the gradient-activation vector; empty: none."""
    NOISE_KEY = 5
    """OAR-G: identity of the row for its noise."""


PASS_FIELDS = ("input_ids", "position_ids", "prompts", "responses", "response_mask", "signal_plan")
"""Fields that a batch must hold for a pass; ``signal_plan`` is the row plan, int64 (B, len(Column))."""

NO_RANGE = (0, 0)
EMPTY_PLAN = (-1, *NO_RANGE, *NO_RANGE, 0)


@dataclass(frozen=True)
class PassRequest:
    """Options of one signal pass, the same on every rank.

    Micro-batches ``0 .. n_forward - 1`` are forward-only, ``n_forward .. n_forward + n_backward - 1`` have a backward.
    Every rank runs all of them, with a stand-in where it has no rows, because sharded parameters make each forward and
    backward a collective.

    Attributes:
        method: ``grail`` or ``oar_g``: what a backward micro-batch computes.
        log_probs: return log-probs and entropy of the responses.
        vectors: return gradient-activation vectors.
        raw_gradient: vectors of the raw gradient (ablation).
        leaf: ``embeddings``, ``first``, ``middle`` or ``last``.
        alignment: ``token`` or ``predictor``.
        measure: function for `core.answers.load_function` in the place of GRAIL's saliency norm.
        ig_steps: points at which the gradient is taken and averaged on the line from zero to the leaf (Integrated
            Gradients), each a forward and a backward of every backward micro-batch; 0: at the leaf alone.
        temperature: of log-probs and answer loss.
        chunk: positions per output-layer chunk.
        recompute: recompute blocks in a backward where the model's training does.
        noise_std, seed, step: OAR-G's noise.
    """

    n_forward: int
    n_backward: int
    method: str = "grail"
    log_probs: bool = True
    vectors: bool = False
    raw_gradient: bool = False
    leaf: str = "embeddings"
    alignment: str = "token"
    measure: str | None = None
    ig_steps: int = 0
    temperature: float = 1.0
    chunk: int = 512
    recompute: bool = True
    noise_std: float = 0.0
    seed: int = 0
    step: int = 0

    def to_dict(self) -> dict:
        """Plain dictionary, for the trip through the trainer's metadata."""
        return asdict(self)
