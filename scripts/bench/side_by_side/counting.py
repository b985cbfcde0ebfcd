"""FLOPs of a step's parts for one sequence, counted on the meta device, so at the papers' sizes too.

Each part runs the modules and the hooks of the real pass with tensors that have a shape and no content; PyTorch's
counter sums the products. Eager attention is counted as it would run with a causal kernel: half of the square. A step's
cost is a sum over its sequences, so it follows from its parts; `tests/bench` holds the parts against the real passes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PretrainedConfig, Qwen3Config, Qwen3ForCausalLM

from tests.signals.traffic import counting
from verl_grail.core.head import back_project
from verl_grail.cost.shapes import ModelShape
from verl_grail.signals.hf import find_parts
from verl_grail.signals.hooks import Leaf, checkpointing_in_eval, replaced_head
from verl_grail.signals.selective import Needed, selective_backward


@dataclass(frozen=True)
class Parts:
    """FLOPs for one sequence.

    Attributes:
        log_prob: verl's log-prob pass.
        train: forward and backward of one epoch.
        forward: the signal pass without a backward.
        saliency: what a backward adds to it: the body's, and the cotangents.
        saliency_attention: of that, the products of attention.
        saliency_whole: the same without skipping the prompt.
        vector: what a gradient-activation vector of the whole response adds.
        anchor: the signal pass over an expert solution as long as the response.
        body: forward of all blocks.
        authors_saliency: the authors' forward and backward of GRAIL.
        authors_vector: their forward and autograd of GAR.
    """

    log_prob: int
    train: int
    forward: int
    saliency: int
    saliency_attention: int
    saliency_whole: int
    vector: int
    anchor: int
    body: int
    authors_saliency: int
    authors_vector: int


def qwen3_config(shape: ModelShape) -> Qwen3Config:
    """A configuration of these sizes."""
    return Qwen3Config(
        vocab_size=shape.vocab, hidden_size=shape.width, intermediate_size=shape.ffn, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
    )  # fmt: skip


@dataclass(frozen=True)
class Flops:
    """``attention``: products of attention, causal; ``linear``: all others."""

    linear: int
    attention: int

    @property
    def total(self) -> int:
        """Both."""
        return self.linear + self.attention


def causal_flops(call: Callable[[], Any], tokens: int) -> Flops:
    """FLOPs of ``call``, whose batched products are those of attention, over ``tokens`` positions."""
    counter: FlopCounterMode = counting()
    with counter:
        call()
    by_op = counter.get_flop_counts()["Global"]
    square = sum(flops for op, flops in by_op.items() if "bmm" in str(op))
    return Flops(sum(by_op.values()) - square, square * (tokens + 1) // (2 * tokens))


class MetaModel:
    """A model without content, and one sequence: ``prompt`` + ``response`` tokens, the answer at the end of it."""

    def __init__(self, config: PretrainedConfig, prompt: int, response: int, answer: int, checkpointing: bool = False):
        config._attn_implementation = "eager"
        with torch.device("meta"):
            self.model = Qwen3ForCausalLM(config).eval()
            self.ids = torch.zeros(1, prompt + response, dtype=torch.int64)
            self.rows = torch.arange(response)
            # a whole mask: transformers would look into a narrower one
            self.mask = torch.zeros(1, 1, prompt + response, prompt + response)
        if checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.parts = find_parts(self.model)
        self.tokens, self.response, self.answer = prompt + response, response, answer

    def count(self, call: Callable[[], Any]) -> int:
        """FLOPs of a call."""
        return causal_flops(call, self.tokens).total

    def logits(self, keep: int = 0) -> torch.Tensor:
        """A forward with the output layer at the last ``keep`` positions (0: at all)."""
        return self.model(input_ids=self.ids, attention_mask=self.mask, use_cache=False, logits_to_keep=keep).logits

    @torch.no_grad()
    def log_prob(self) -> None:
        """verl's pass."""
        self.logits()

    def train(self) -> None:
        """verl's forward and backward; every parameter has a gradient."""
        self.model.train()
        self.logits().sum().backward()
        self.model.eval()

    def signal(self, backward: bool, selective: bool = True, vector: bool = False) -> None:
        """The plugin's pass: the head at response tokens, cotangents at the answer, vectors over the response."""
        weight = self.parts.head.weight

        def answer_with(hidden: torch.Tensor) -> torch.Tensor:
            states = hidden[0, -self.response :]
            p = torch.nn.functional.linear(states.detach(), weight)
            if vector:
                back_project(p, weight)
            if not torch.is_grad_enabled():
                return hidden.new_zeros(1, 1, 1)
            cotangent = back_project(p[: self.answer], weight)
            return ((states[: self.answer] * cotangent).sum() + hidden.sum() * 0).view(1, 1, 1)

        leaf, layers = Leaf(self.parts, "embeddings"), self.parts.layers
        needed = Needed(self.rows, self.tokens) if selective else None
        with checkpointing_in_eval(layers, "embeddings"), replaced_head(self.parts.head, answer_with):
            if not backward:
                with torch.no_grad():
                    self.logits()
                return
            with leaf(), selective_backward(layers, needed):
                torch.autograd.grad(self.logits().sum(), [leaf.value])

    def authors_saliency(self) -> None:
        """All logits of the response (and, as TRL has it, of one position more), and a backward to the embeddings."""
        leaf = Leaf(self.parts, "embeddings")
        with checkpointing_in_eval(self.parts.layers, "embeddings"), leaf():
            torch.autograd.grad(self.logits(self.response + 1).sum(), [leaf.value])

    @torch.no_grad()
    def body(self) -> torch.Tensor:
        """All blocks."""
        return self.model.model(input_ids=self.ids, attention_mask=self.mask, use_cache=False).last_hidden_state

    @torch.no_grad()
    def authors_vector(self) -> None:
        """A forward, and autograd through the output layer at the same positions."""
        hidden = self.body()[:, -self.response - 1 :]
        with torch.enable_grad():
            torch.autograd.grad(self.parts.head(hidden.requires_grad_()).sum(), [hidden])


def count_parts(
    config: PretrainedConfig, prompt: int, response: int, answer: int, checkpointing: bool = False
) -> Parts:
    """All parts of one sequence's cost."""
    meta = MetaModel(config, prompt, response, answer, checkpointing)
    forward = meta.count(lambda: meta.signal(backward=False))
    with_vector = meta.count(lambda: meta.signal(backward=False, vector=True))
    backward, without = (causal_flops(lambda b=b: meta.signal(backward=b), meta.tokens) for b in (True, False))
    return Parts(
        log_prob=meta.count(meta.log_prob),
        train=meta.count(meta.train),
        forward=forward,
        saliency=backward.total - forward,
        saliency_attention=backward.attention - without.attention,
        saliency_whole=meta.count(lambda: meta.signal(backward=True, selective=False)) - forward,
        vector=with_vector - forward,
        anchor=with_vector,
        body=meta.count(meta.body),
        authors_saliency=meta.count(meta.authors_saliency),
        authors_vector=meta.count(meta.authors_vector),
    )


def added(
    parts: Parts, epochs: int, selected: float = 0.0, passing: float = 0.0, group: int = 16, noisy: bool = False
) -> dict[str, float]:
    """What signals add to a GRPO step, as shares of it: its log-prob pass and ``epochs`` of training.

    Args:
        selected: share of rollouts with GRAIL's (``noisy``: OAR-G's) backward.
        passing: share of rollouts with a vector; then each prompt has an expert solution.
        group: rollouts of a prompt.

    Returns:
        ``plugin`` (its pass takes the place of verl's log-prob pass), ``limit`` (on top of verl's pass, a backward
        through the whole body to activations for selected rows, one product with the output layer for each vector, and
        the forwards that cannot be had otherwise: OAR-G's noisy one, expert solutions) and ``authors`` (for selected
        and passing rows alone).
    """
    base = parts.log_prob + epochs * parts.train
    noise = selected * parts.body if noisy else 0
    vectors = passing * parts.vector + (parts.anchor / group if passing else 0)
    theirs = epochs * selected * parts.authors_saliency
    theirs += (passing + 1 / group) * parts.authors_vector if passing else 0
    return {
        "plugin": (parts.forward - parts.log_prob + vectors + selected * parts.saliency + noise) / base,
        "limit": (vectors + selected * parts.saliency_whole + noise) / base,
        "authors": theirs / base,
    }
