"""Temporary changes to the live model: the leaf, the output layer, and checkpointing in eval mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import FullyShardedDataParallel

from verl_grail.signals.hf import ModelParts, leaf_layer


class Leaf:
    """Cuts the graph at an activation and keeps both sides.

    Inside the context the chosen module's output is replaced by a detached clone that requires a gradient; before it,
    no graph is built at all. Parameters are not frozen: FSDP2 settles its mixed-precision dtypes on the first forward
    it sees, and gradients are asked for with respect to the leaf alone, so no parameter gradient is ever formed.
    """

    def __init__(self, parts: ModelParts, leaf: str, move: Callable[[torch.Tensor], torch.Tensor] | None = None):
        self._module = parts.embeddings if leaf == "embeddings" else parts.layers[leaf_layer(len(parts.layers), leaf)]
        self._move = move
        self.value: torch.Tensor | None = None
        """The leaf; after the forward, the tensor to differentiate with respect to."""
        self.activation: torch.Tensor | None = None
        """The activation itself, where ``move`` puts the leaf elsewhere (noise, a point on a path)."""

    def _hook(self, module, args, output):
        activation = (output[0] if isinstance(output, tuple) else output).detach()
        self.activation = activation
        value = activation.clone() if self._move is None else self._move(activation)
        self.value = value.detach().requires_grad_()
        torch.set_grad_enabled(True)
        return (self.value, *output[1:]) if isinstance(output, tuple) else self.value

    @contextmanager
    def __call__(self) -> Iterator[Leaf]:
        handle = self._module.register_forward_hook(self._hook)
        try:
            with torch.no_grad():
                yield self
        finally:
            handle.remove()


@contextmanager
def replaced_head(head: torch.nn.Linear, forward: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Let the output layer answer with ``forward(hidden)`` instead of logits.

    An instance attribute shadows the class's method, so hooks (FSDP, PEFT) around it stay as they are.
    """
    shadowed = head.__dict__.get("forward")
    head.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        if shadowed is None:
            del head.forward
        else:
            head.forward = shadowed  # type: ignore[method-assign]


@contextmanager
def checkpointing_in_eval(layers: Sequence[torch.nn.Module], leaf: str) -> Iterator[None]:
    """Checkpoint the blocks above the leaf although the model is in eval mode.

    Hugging Face blocks checkpoint only while their own ``training`` flag is set. The flag of the block alone is
    touched: the modules inside it stay in eval mode, and dropout that the block applies by itself is set to zero. The
    leaf's own block stays out, or its hook would run a second time inside the recomputation.
    """
    first = 0 if leaf == "embeddings" else leaf_layer(len(layers), leaf) + 1
    flagged = [m for m in layers[first:] if getattr(m, "gradient_checkpointing", False) and not m.training]
    dropout = [(m, k, v) for m in flagged for k, v in vars(m).items() if "dropout" in k and isinstance(v, float)]
    for m in flagged:
        m.training = True
    for m, name, _ in dropout:
        setattr(m, name, 0.0)
    try:
        yield
    finally:
        for m in flagged:
            m.training = False
        for m, name, value in dropout:
            setattr(m, name, value)


def settle_fsdp1(module: torch.nn.Module) -> None:
    """Let FSDP1 modules show their sharded parameters again after a backward to an activation.

    FSDP1 goes back to them in its post-backward hooks, which hang on parameter gradients; none is formed here. Its
    catch-all (torch/distributed/fsdp/_runtime_utils.py, _catch_all_reshard) takes a module that is not sharded (one
    rank) for resharded, and such a module would be left without parameters.
    """
    if not any(isinstance(m, FullyShardedDataParallel) for m in module.modules()):
        return
    # private, so not imported where no FSDP1 module needs it
    from torch.distributed.fsdp._runtime_utils import _reshard

    for m in module.modules():
        handle = getattr(m, "_handle", None) if isinstance(m, FullyShardedDataParallel) else None
        if handle is not None:
            _reshard(m, handle, handle.uses_sharded_strategy)
