"""Sizes of a decoder model, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a dense decoder of the Llama and Qwen families.

    Attributes:
        layers, width, ffn, heads, kv_heads, head_dim, vocab: as in its ``config.json``.
        tied: whether the output layer is the embeddings.
    """

    layers: int
    width: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ModelShape:
        """From a ``config.json``.

        Raises:
            ValueError: not such a decoder (experts, other attention).
        """
        if config.get("num_experts") or config.get("num_local_experts"):
            raise ValueError("a mixture of experts")
        try:
            heads = config["num_attention_heads"]
            return cls(
                layers=config["num_hidden_layers"],
                width=config["hidden_size"],
                ffn=config["intermediate_size"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or config["hidden_size"] // heads,
                vocab=config["vocab_size"],
                tied=bool(config.get("tie_word_embeddings", False)),
            )
        except KeyError as e:
            raise ValueError(f"no {e.args[0]} in its configuration") from None

    @property
    def block(self) -> int:
        """Weights of one layer's matrices."""
        attention = self.width * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.width * self.ffn

    @property
    def head(self) -> int:
        """Weights of the output layer."""
        return self.width * self.vocab

    @property
    def parameters(self) -> int:
        """All weights but norms and biases, which are less than a thousandth."""
        return self.layers * self.block + self.head * (1 if self.tied else 2)


_LLAMA_8B = ModelShape(32, 4096, 14336, 32, 8, 128, 128256)
_QWEN3_4B = ModelShape(36, 2560, 9728, 32, 8, 128, 151936, tied=True)
_QWEN3_8B = ModelShape(36, 4096, 12288, 32, 8, 128, 151936)
KNOWN = {
    "Qwen/Qwen3-4B": _QWEN3_4B,
    "Qwen/Qwen3-8B": _QWEN3_8B,
    "Qwen/Qwen3-4B-Base": _QWEN3_4B,
    "Qwen/Qwen3-8B-Base": _QWEN3_8B,
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _LLAMA_8B,
    "OctoThinker/OctoThinker-3B-Short-Base": ModelShape(28, 3072, 8192, 24, 8, 128, 128256, tied=True),
    "OctoThinker/OctoThinker-8B-Short-Base": _LLAMA_8B,
}
"""Models of the papers, for where their configuration cannot be fetched."""
