"""Temporary changes to a Megatron model for the length of a signal pass: frozen parameters, callbacks, recomputation.

Megatron's schedules differentiate with respect to every leaf of the graph, so parameters are frozen here, and only
here: ``.grad`` and ``main_grad`` stay as they are, and the hooks of Megatron's DDP stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.utils import get_model_config

_CALLBACKS = ("finalize_model_grads_func", "grad_scale_func", "no_sync_func", "grad_sync_func", "param_sync_func")
"""Fields of the model's config that the schedules call; the loss scale, left in, would multiply the saliency."""


def unwrap(chunk: torch.nn.Module) -> Any:
    """The GPTModel inside DDP and Float16Module wrappers."""
    while not hasattr(chunk, "decoder"):
        chunk = chunk.module
    return chunk


@contextmanager
def frozen(chunks: Sequence[torch.nn.Module]) -> Iterator[None]:
    """No parameter takes part in gradients, and no training callback runs."""
    parameters = [p for chunk in chunks for p in chunk.parameters() if p.requires_grad]
    # DDP's hook before a forward asserts trainable parameters (overlap_param_gather)
    hooked = [chunk for chunk in chunks if getattr(chunk, "use_forward_hook", False)]
    configs = {id(c): c for c in map(get_model_config, chunks)}.values()
    saved = [(config, {name: getattr(config, name) for name in _CALLBACKS}) for config in configs]
    for chunk in hooked:
        chunk.disable_forward_pre_hook(param_sync=True)  # type: ignore[operator]
    for parameter in parameters:
        parameter.requires_grad_(False)
    for config in configs:
        for name in _CALLBACKS:
            setattr(config, name, None)
    try:
        yield
    finally:
        for config, values in saved:
            for name, value in values.items():
                setattr(config, name, value)
        for parameter in parameters:
            parameter.requires_grad_(True)
        for chunk in hooked:
            chunk.enable_forward_pre_hook()  # type: ignore[operator]


@contextmanager
def recompute_in_eval(chunks: Sequence[torch.nn.Module], except_for: torch.nn.Module | None = None) -> Iterator[None]:
    """Recompute activations as in training although the model is in eval mode.

    Megatron asks the ``training`` flag of the decoder (full recomputation) and of each self-attention (selective); only
    those are set, the modules inside stay in eval mode: no dropout, no auxiliary loss.

    Args:
        except_for: a decoder in which a layer's output is the leaf, whose hook would run again in a recomputation.
    """
    flagged = []
    for chunk in map(unwrap, chunks):
        modules = [] if chunk.decoder is except_for else [chunk.decoder]
        modules += [layer.self_attention for layer in chunk.decoder.layers if hasattr(layer, "self_attention")]
        flagged += [m for m in modules if not m.training]
    for module in flagged:
        module.training = True
    try:
        yield
    finally:
        for module in flagged:
            module.training = False


@contextmanager
def removed(handles: list[Any]) -> Iterator[None]:
    """Remove hooks at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
