"""FLOPs of a training step and of what the signals add to it (a multiplication and an addition are two)."""

from __future__ import annotations

from dataclasses import dataclass

from verl_grail.cost.shapes import ModelShape


@dataclass(frozen=True)
class Workload:
    """One step.

    Attributes:
        rows: rollouts.
        prompt, response: tokens of each, at most.
        updates: passes over the batch with a forward and a backward (epochs).
        recompute: whether activations are recomputed in training's backward.
        recompute_signals: whether they are in the signal pass's too.
        saliency: share of the rows that get a backward in the signal pass.
        answer: tokens of an answer's span, which ends the response.
        selective: whether linear layers skip the prompt in that backward (`signals.selective`: FSDP).
        noisy: whether that backward is that of a second, noisy forward (OAR-G).
        path: points of Integrated Gradients, each a forward and a backward of its own; 0: a backward of the pass's
            forward.
        vectors: share of the rows that get a gradient-activation vector, over the whole response.
        anchors: expert solutions, each as long as a prompt and a response.
    """

    rows: int
    prompt: int
    response: int
    updates: int = 1
    recompute: bool = True
    recompute_signals: bool = True
    saliency: float = 0.0
    answer: int = 16
    selective: bool = True
    noisy: bool = False
    path: int = 0
    vectors: float = 0.0
    anchors: int = 0


def attention(shape: ModelShape, tokens: int) -> int:
    """Forward of the products QK and AV of all layers over one sequence, half of the square each."""
    return shape.layers * 2 * shape.heads * shape.head_dim * tokens * (tokens + 1)


def body(shape: ModelShape, tokens: int) -> int:
    """Forward of all layers over one sequence, with causal attention."""
    return shape.layers * 2 * shape.block * tokens + attention(shape, tokens)


def head(shape: ModelShape, tokens: int) -> int:
    """One product with the output layer."""
    return 2 * shape.head * tokens


def saliency_backward(shape: ModelShape, work: Workload) -> int:
    """Backward of all layers to activations alone, over one sequence, without recomputation.

    A product with a weight costs what it does in a forward, those of attention twice as much, since both factors have a
    gradient. ``work.selective``: products with weights at the response alone.
    """
    tokens = work.prompt + work.response
    through = work.response if work.selective else tokens
    return shape.layers * 2 * shape.block * through + 2 * attention(shape, tokens)


@dataclass(frozen=True)
class StepCost:
    """FLOPs of the parts of a step.

    Attributes:
        log_probs: verl's own pass before the update.
        training: forward and backward of all updates.
        saliency, vectors, anchors: what the signals add.
    """

    log_probs: int
    training: int
    saliency: int
    vectors: int
    anchors: int

    @property
    def base(self) -> int:
        """The step without signals."""
        return self.log_probs + self.training

    def share(self, part: int) -> float:
        """``part`` against the step without signals."""
        return part / self.base


def step_cost(shape: ModelShape, work: Workload) -> StepCost:
    """Parts of a step.

    A backward to activations and weights costs two forwards; recomputation adds one. verl's passes evaluate the output
    layer at every token, ours at the response's; that saving is not taken off here.
    """
    tokens = work.prompt + work.response
    forward = body(shape, tokens) + head(shape, tokens)
    again = body(shape, tokens) if work.recompute else 0
    selected = round(work.rows * work.saliency)
    # the output layer's part has a closed form, at the answer's tokens only; its logits there come with the pass's
    # forward, but for a path's own forwards
    own_forwards = work.path or int(work.noisy)
    backward = saliency_backward(shape, work) + again * work.recompute_signals + head(shape, work.answer)
    signal = max(work.path, 1) * backward + own_forwards * body(shape, tokens) + work.path * head(shape, work.answer)
    return StepCost(
        log_probs=work.rows * forward,
        training=work.updates * work.rows * (3 * forward + again),
        saliency=selected * signal,
        vectors=round(work.rows * work.vectors) * head(shape, work.response),
        anchors=work.anchors * (body(shape, tokens) + 2 * head(shape, work.response)),
    )
