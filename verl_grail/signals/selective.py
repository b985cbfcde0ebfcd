"""A backward whose linear layers skip the positions that no asked-for gradient needs.

By causality the gradient at a token depends on gradients at later tokens only. Saliency is asked for response tokens
and the loss is read at the answer, so prompts and what follows an answer can be left out of every ``grad @ W``: the
gradients of the response's tokens are the same, those of the prompt's are not formed (zero). Attention stays as it is.
No product for a weight's gradient is prepared either, so a layer's input need not be kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from verl_grail.signals.positions import Positions


@dataclass(frozen=True)
class Needed:
    """Flat positions of a rank's part of a micro-batch.

    Attributes:
        rows: (n,) int64, see `needed_rows`.
        total: positions of the part.
    """

    rows: torch.Tensor
    total: int


def needed_rows(at: Positions) -> torch.Tensor:
    """(n,) flat positions of a micro-batch where gradients are needed: in each sequence, from the state that predicts
    the first response token to the one that predicts the answer's last."""
    index = torch.arange(at.rows.shape[0], device=at.rows.device)
    last = torch.full(at.prompt_lengths.shape, -1, device=at.rows.device)
    last = last.scatter_reduce(0, at.rows[at.answer], index[at.answer], "amax")
    return at.predicting[index <= last[at.rows]]


class _Linear(torch.autograd.Function):
    """A linear layer with a gradient for its input alone, formed at some positions."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, rows: torch.Tensor):
        # not among the saved tensors, which a checkpoint would compute this product again for; FSDP fills the same
        # storage again before the block's backward
        ctx.weight, ctx.rows, ctx.dtype = weight, rows, x.dtype
        return torch.nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor):
        (grad,), weight, rows = grads, ctx.weight, ctx.rows
        flat = grad.flatten(0, -2)
        part = flat.index_select(0, rows) @ weight.to(grad.dtype)
        out = part.new_zeros(flat.shape[0], weight.shape[1]).index_copy_(0, rows, part)
        return out.view(*grad.shape[:-1], -1).to(ctx.dtype), None, None, None


def _forward(module: torch.nn.Linear, needed: Needed, x: torch.Tensor) -> torch.Tensor:
    # the weight is read here: FSDP shows the whole of it inside the block's forward only
    if not torch.is_grad_enabled() or x.shape[:-1].numel() != needed.total:
        return torch.nn.functional.linear(x, module.weight, module.bias)
    return _Linear.apply(x, module.weight, module.bias, needed.rows)


def can_select(config: Any) -> bool:
    """Whether rows of a block's linear layers are positions: not where experts get tokens of their own."""
    return not any("expert" in name and value for name, value in config.to_dict().items())


@contextmanager
def selective_backward(layers: Sequence[torch.nn.Module], needed: Needed | None) -> Iterator[None]:
    """Let the blocks' linear layers skip what ``needed`` leaves out; nothing changes if it is None.

    To be held around the backward too, in which checkpointed blocks run again. Layers that are not plain ``Linear``
    (quantised ones, say) keep their own backward.
    """
    if needed is None:
        yield
        return
    replaced: list[torch.nn.Linear] = []
    try:
        for layer in layers:
            for module in layer.modules():
                if type(module) is torch.nn.Linear and "forward" not in vars(module):
                    module.forward = partial(_forward, module, needed)  # type: ignore[method-assign]
                    replaced.append(module)
        yield
    finally:
        for module in replaced:
            del module.forward
