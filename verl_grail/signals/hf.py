"""The parts of a Hugging Face causal language model that a signal pass touches, and what it cannot work with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_layers import GradientCheckpointingLayer

from verl_grail.config import ConfigError

_MODEL = "actor_rollout_ref.model.path"
_SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


@dataclass(frozen=True)
class ModelParts:
    """Modules of the (possibly FSDP- or PEFT-wrapped) model: token embedding, decoder blocks and output layer."""

    embeddings: torch.nn.Module
    layers: list[torch.nn.Module]
    head: torch.nn.Linear


def base_model(module: torch.nn.Module) -> torch.nn.Module:
    """The transformers model inside FSDP1 and PEFT wrappers."""
    module = getattr(module, "_fsdp_wrapped_module", module)
    return module.get_base_model() if hasattr(module, "get_base_model") else module


def check_config(config: Any, name: str) -> None:
    """Refuse what a Hugging Face config tells, for any engine.

    Raises:
        ConfigError: scaled or soft-capped logits, or a vision model.
    """
    for key in _SCALED_LOGITS:
        if getattr(config, key, None) not in (None, 1, 1.0):
            raise ConfigError(
                f"{_MODEL}: {name} changes its logits after the output layer ({key}={getattr(config, key)}); the "
                "gradients of GRAIL and GAR do not account for that yet. Use another model, or a stock trainer mode"
            )
    if hasattr(config, "vision_config"):
        raise ConfigError(f"{_MODEL}: {name} takes images; GRAIL and GAR work on text models only so far")


def find_parts(module: torch.nn.Module) -> ModelParts:
    """Locate the parts, or refuse the model.

    Raises:
        ConfigError: no plain linear output layer, scaled or soft-capped logits, a vision model, or no decoder blocks.
    """
    model = base_model(module)
    name = type(model).__name__
    check_config(model.config, name)
    head = getattr(model.get_output_embeddings(), "_fsdp_wrapped_module", model.get_output_embeddings())
    if type(head).__name__.removeprefix("FSDP") != "Linear" or not isinstance(head, torch.nn.Linear):
        raise ConfigError(
            f"{_MODEL}: the output layer of {name} is {type(head).__name__}, not a plain Linear. If LoRA adapts it, "
            "take lm_head out of actor_rollout_ref.model.target_modules"
        )
    embeddings = model.get_input_embeddings()
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not layers:
        raise ConfigError(f"{_MODEL}: {name} has no decoder blocks that transformers can checkpoint, so none to hook")
    return ModelParts(embeddings, layers, head)


def leaf_layer(n_layers: int, leaf: str) -> int:
    """Index of the block whose output is the leaf: block 1 (``first``), L//2 (``middle``), L-1 (``last``), from 1."""
    block = {"first": 1, "middle": n_layers // 2, "last": n_layers - 1}[leaf]
    if block < 1:
        raise ConfigError(f"algorithm.grail.leaf={leaf} needs more blocks than the {n_layers} of this model")
    return block - 1


def check_model(module: torch.nn.Module, leaf: str) -> ModelParts:
    """`find_parts`, plus what only shows on the built model: the leaf's block and reentrant checkpointing."""
    parts = find_parts(module)
    if leaf != "embeddings":
        leaf_layer(len(parts.layers), leaf)
    for layer in parts.layers:
        if not getattr(layer, "gradient_checkpointing", False):
            continue
        function = getattr(layer, "_gradient_checkpointing_func", None)
        if getattr(function, "keywords", {}).get("use_reentrant", True):
            raise ConfigError(
                "gradient checkpointing is reentrant, which cannot take gradients with respect to activations: set "
                "actor_rollout_ref.model.enable_activation_offload=False (verl then checkpoints without reentry)"
            )
    return parts
