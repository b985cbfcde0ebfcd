"""Models, rollouts and the live engine that the ways of `ways.py` are compared on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tests.signals.tiny import Row, build_model


@dataclass(frozen=True)
class Setting:
    """A model and one step's rollouts.

    Attributes:
        layers, width, vocab: of the model; its feed-forward part is three times as wide.
        prompts, group: prompts of a step, and rollouts of each (K).
        prompt, response, answer: tokens of each; the answer ends two tokens before the response.
        selected: share of the rollouts that get GRAIL's or OAR-G's weights.
        passing: share that passes GAR's verifier.
        epochs: passes of training over the step's rollouts.
        micro_batch: rollouts in a micro-batch, in every pass.
        checkpointing: whether blocks are recomputed in a backward.
        tied: whether the output layer is the embeddings.
    """

    layers: int
    width: int
    vocab: int
    prompts: int = 2
    group: int = 4
    prompt: int = 64
    response: int = 192
    answer: int = 8
    selected: float = 1.0
    passing: float = 0.5
    epochs: int = 1
    micro_batch: int = 4
    checkpointing: bool = False
    tied: bool = False

    @property
    def rows(self) -> int:
        """Rollouts of a step."""
        return self.prompts * self.group

    def model_size(self) -> dict[str, Any]:
        """For `tests.signals.tiny.build_model`."""
        return dict(
            tied=self.tied, layers=self.layers, hidden_size=self.width, intermediate_size=3 * self.width,
            vocab_size=self.vocab,
            num_attention_heads=4, head_dim=self.width // 4, initializer_range=0.05,
            max_position_embeddings=4 * (self.prompt + self.response),
        )  # fmt: skip

    def changed(self, **fields: Any) -> Setting:
        """With other values."""
        return replace(self, **fields)


TINY = Setting(layers=4, width=64, vocab=512)
SMALL = Setting(layers=8, width=256, vocab=3072)
"""V / (L d) = 1.5, between Qwen3-8B's 1.03 and Qwen3-4B's 1.65."""
DEEP = {
    "as Qwen3-8B": Setting(layers=36, width=64, vocab=2373, checkpointing=True, tied=True),
    "as Qwen3-4B": Setting(layers=36, width=64, vocab=3802, checkpointing=True, tied=True),
    "few layers": SMALL.changed(checkpointing=True, tied=True),
}
"""For memory: depth and V / (L d) of the papers' models, and a shallow model, in which one recomputed block weighs
more. Tied, because verl's fused head takes only that from FSDP2."""


@dataclass(frozen=True)
class Rollouts:
    """``rows``: rollouts with the ranges of their signals; ``anchors``: an expert solution of each prompt."""

    rows: list[Row]
    anchors: list[Row]


def make_rollouts(setting: Setting, seed: int = 0) -> Rollouts:
    """Random tokens; the first of each group are selected and pass, as many as the shares say."""
    g = torch.Generator().manual_seed(seed)

    def ids(n: int) -> list[int]:
        return torch.randint(3, setting.vocab, (n,), generator=g).tolist()

    rows, anchors = [], []
    for _ in range(setting.prompts):
        prompt = ids(setting.prompt)
        end = setting.response - 2
        for k in range(setting.group):
            answer = (end - setting.answer, end) if k < round(setting.selected * setting.group) else (0, 0)
            vector = (0, setting.response) if k < round(setting.passing * setting.group) else (0, 0)
            rows.append(Row(prompt, ids(setting.response), answer, vector))
        anchors.append(Row(prompt, ids(setting.response), (0, 0), (0, setting.response)))
    return Rollouts(rows, anchors)


def join_world() -> None:
    """A group of this process alone, which verl's engine asks for."""
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


def live_engine(setting: Setting, folder: Path, **options: Any) -> Any:
    """verl's FSDP2 engine (one rank) with a random Qwen3 of the setting's size; ``options`` of `build_engine`."""
    from tests.signals.engines import build_engine

    build_model("qwen3", **setting.model_size()).save_pretrained(folder)
    return build_engine(str(folder), checkpointing=setting.checkpointing, **options)
