"""Memory of one GPU, in bytes: what stays, and the largest passing tensors."""

from __future__ import annotations

from dataclasses import dataclass

from verl_grail.cost.shapes import ModelShape


@dataclass(frozen=True)
class Parallel:
    """How an actor is spread.

    Attributes:
        gpus: of the trainer.
        tensor, pipeline, context: sizes of model parallelism (FSDP: 1, 1, and Ulysses' size).
        fsdp: sharded in all of its state over all GPUs; else Megatron with the distributed optimizer.
    """

    gpus: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    fsdp: bool = True


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU.

    Attributes:
        state: weights, gradients and the optimizer's moments of the actor.
        activations: saved per layer with recomputation, for the token budget of a training micro-batch.
        signal_activations: in the signal pass's backward, for the same tokens.
        logits: of such a micro-batch in verl's training pass, 16-bit and float32.
        signal: what the signal pass holds at once on top of activations: chunks of logits, cotangents and vectors.
    """

    state: int
    activations: int
    signal_activations: int
    logits: int
    signal: int

    @property
    def training(self) -> int:
        """Training's peak; the signal pass runs before it and holds no full logits."""
        return self.state + self.activations + self.logits

    @property
    def signal_pass(self) -> int:
        """The signal pass's peak."""
        return self.state + self.signal_activations + self.signal


def memory(shape: ModelShape, parallel: Parallel, tokens: int, chunk: int, recompute_signals: bool = True) -> Memory:
    """Estimate for one GPU.

    Args:
        tokens: of a micro-batch, over all ranks that share its sequences.
        chunk: positions that go through the output layer at a time (algorithm.signals.head_chunk_tokens).
        recompute_signals: whether the signal pass recomputes layers too (algorithm.signals.recompute).
    """
    part = shape.parameters / (parallel.tensor * parallel.pipeline)
    if parallel.fsdp:
        # float32 weights, gradients and both moments, all sharded; two layers gathered in 16 bit at a time
        state = 16 * shape.parameters / parallel.gpus + 2 * 2 * shape.block
    else:
        replicas = parallel.gpus / (parallel.tensor * parallel.pipeline)
        state = 6 * part + 12 * part / replicas  # 16-bit weights, float32 gradients; masters and moments are spread
    local = tokens / (parallel.context * parallel.tensor)
    layers = shape.layers / parallel.pipeline
    one_layer = 34 * shape.width + 6 * shape.ffn  # bytes a token, inside the layer that is being recomputed
    activations = local * (2 * shape.width * layers + one_layer)
    kept = activations if recompute_signals else local * one_layer * layers
    vocab = shape.vocab / parallel.tensor
    here = tokens / parallel.context
    # logits in 16 bit, their float32 copy, and the gradient
    logits = here * vocab * (2 + 4 + 4)
    signal = chunk * vocab * (2 + 3 * 4) + here * 2 * shape.width
    return Memory(*map(int, (state, activations, kept, logits, signal)))
