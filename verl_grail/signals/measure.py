"""What is measured of a token at the leaf: GRAIL's saliency norm, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable

import torch

from verl_grail.core.answers import load_function
from verl_grail.core.grail import saliency_norm
from verl_grail.signals.request import PassRequest

Measure = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Activation and gradient at the leaf, (..., d) each -> one number per token, (...)."""


def measure_of(request: PassRequest) -> Measure:
    """The measure that a request asks for.

    Raises:
        ValueError: the user's function cannot be loaded on this worker, or, when called, returns another shape.
    """
    if request.measure is None:
        return saliency_norm
    own = load_function(request.measure, "algorithm.grail.measure", ())

    def measured(activation: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        found = own(activation.float(), gradient.float())
        if found.shape != activation.shape[:-1]:
            raise ValueError(
                f"algorithm.grail.measure={request.measure} returned shape {tuple(found.shape)} for activations of "
                f"shape {tuple(activation.shape)}: it must return one number per token"
            )
        return found.float()

    return measured
