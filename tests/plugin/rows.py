"""Hand-made step rows for tests of the plugin's driver side."""

from __future__ import annotations

import torch

from tests.core.tokenizers_for_tests import byte_level
from verl_grail.core.tokens import TokenBytes
from verl_grail.plugin.step import StepRows

TOKENIZER = byte_level()
BYTES = TokenBytes.from_tokenizer(TOKENIZER)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def make_rows(entries: list[dict], prompt: str = "q") -> StepRows:
    """Rows from entries with ``key``, ``text``, ``reward`` and, if needed, ``info``, ``padding``, columns."""
    responses = [encode(e["text"]) for e in entries]
    width = max(map(len, responses))
    mask = torch.zeros(len(entries), width, dtype=torch.int64)
    rewards = torch.zeros(len(entries), width)
    for i, (e, r) in enumerate(zip(entries, responses, strict=True)):
        mask[i, : len(r)] = 0 if e.get("padding") else 1
        rewards[i, len(r) - 1] = e.get("reward", 0.0)
    columns: dict[str, list] = {}
    for i, e in enumerate(entries):
        for name, value in e.get("columns", {}).items():
            columns.setdefault(name, [None] * len(entries))[i] = value
    return StepRows(
        keys=[e["key"] for e in entries],
        uids=[e["key"].rsplit("_", 2)[0] for e in entries],
        padding=torch.tensor([bool(e.get("padding")) for e in entries]),
        prompts=[encode(prompt) for _ in entries],
        responses=responses,
        response_mask=mask,
        rewards=rewards,
        info=[e.get("info", {}) for e in entries],
        columns=columns,
    )
