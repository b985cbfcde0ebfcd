"""Task and model of `seeds.py`: the demo's smaller arithmetic, and its warm-started model in other units.

Adam moves every weight by about the same amount a step. The warm start leaves embeddings of some 0.02 an entry beside
an output layer of 0.1: a rate that is too small for the one spoils the other, and GRPO's accuracy falls before it can
rise. So the residual stream is made `RESIDUAL` times as large, which RMSNorm undoes in front of every block, and the
output layer `OUTPUT` times smaller with a final norm as much larger. The model computes the same (but for the epsilon
of RMSNorm, which is small beside the embeddings' mean square before and smaller after) and learns at other speeds: the
output layer fastest.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import prepare
import torch
from transformers import AutoModelForCausalLM

RESIDUAL, OUTPUT = 16.0, 8.0
TRAIN_PROBLEMS, VAL_PROBLEMS, SEED = 1024, 512, 0


@torch.no_grad()
def rescale(model: torch.nn.Module, residual: float, output: float) -> None:
    """Change the units of a Qwen3 or Llama whose embeddings are not tied, in place.

    Args:
        model: its weights are multiplied.
        residual: what enters the residual stream becomes this many times as large.
        output: the final norm becomes this many times as large, the output layer so many times smaller.
    """
    for name, weight in model.named_parameters():
        if any(part in name for part in ("embed_tokens", "o_proj", "down_proj")):
            weight.mul_(residual)
        elif name.endswith("model.norm.weight"):
            weight.mul_(output)
        elif "lm_head" in name:
            weight.div_(output)


def make(folder: Path) -> Path:
    """The task's folder, as ``scripts/demo/train.py`` wants it; made below ``folder`` unless it is there."""
    plain, out = folder / "warm-started", folder / "rescaled"
    card = prepare.prepare(plain, True, SEED, TRAIN_PROBLEMS, VAL_PROBLEMS)
    card |= {"rescaled": {"residual": RESIDUAL, "output": OUTPUT}}
    if (out / "task.json").exists() and json.loads((out / "task.json").read_text()) == card:
        return out
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(plain, out, ignore=shutil.ignore_patterns("task.json"))
    model: Any = AutoModelForCausalLM.from_pretrained(plain / "model", dtype=torch.float32)
    rescale(model, RESIDUAL, OUTPUT)
    model.save_pretrained(out / "model")
    (out / "task.json").write_text(json.dumps(card, indent=2) + "\n")  # last: the folder is complete
    return out
