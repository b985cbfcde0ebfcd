"""A tiny random model with a chat template, and a benchmark file for it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def write_model(folder: Path) -> Path:
    """A Llama of two layers with random weights; vLLM on CPU wants heads of 32 numbers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    spec = importlib.util.spec_from_file_location("demo_tokenizer", ROOT / "scripts/demo/tokenizer.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    tokenizer = module.train_tokenizer([r"user Compute 1 + 2 assistant so \boxed{3}."] * 3)
    torch.manual_seed(0)
    size = dict(
        hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    special = dict(pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None)
    config = LlamaConfig(
        vocab_size=len(tokenizer), tie_word_embeddings=False, max_position_embeddings=256, **size, **special
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def row(index: int, question: str, gold, **columns) -> dict:
    """A row in verl's schema, with the instruction of `verl_grail.data.build`."""
    from verl_grail.data.build import BOXED

    return {
        "data_source": "tiny",
        "prompt": [{"role": "user", "content": f"{question} {BOXED}"}],
        "reward_model": {"style": "rule", "ground_truth": gold},
        "extra_info": {"index": f"p{index}", "problem": question},
        **columns,
    }


def write_benchmark(path: Path, golds: list[str]) -> Path:
    """A file of additions: problem i asks for ``i + i``."""
    from verl_grail.data.files import write

    write([row(i, f"Compute {i} + {i}.", gold) for i, gold in enumerate(golds)], path)
    return path
