"""Recipes that run two steps each, on tiny models of the same architecture, by overrides alone: one per family and
backend.

qwen3 on Megatron is in test_megatron.py, on two nodes. The Llamas have random weights: they answer nothing, so what is
shown is that the whole command runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.e2e.conftest import ROOT, launch, run_overrides, task_overrides
from tests.e2e.test_megatron import megatron_overrides


@pytest.fixture(scope="module")
def llamas(task, tmp_path_factory):
    """A tiny Llama with the task's tokenizer by family; vLLM on CPU wants heads of 32 numbers.

    The recipes give a folder named after OctoThinker a chat template. Its 3B model ties its embeddings.
    """
    tokenizer = AutoTokenizer.from_pretrained(task / "model")
    size = dict(
        hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
    )
    special = dict(pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None)
    folders = {}
    for family, name in (("deepseek", "DeepSeek-tiny"), ("octothinker", "OctoThinker-tiny")):
        tied = family == "octothinker"
        model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=tied, **size, **special))
        folders[family] = tmp_path_factory.mktemp("llamas") / name
        model.save_pretrained(folders[family])
        tokenizer.save_pretrained(folders[family])
    return folders


RECIPES = [
    ("qwen3", "qwen3-4b", "grail", "fsdp2"),
    ("qwen3_base", "qwen3-4b-base", "gar_grpo", "fsdp2"),
    ("qwen3_base", "qwen3-8b-base", "gar_reinforce_pp", "megatron"),
    ("deepseek", "deepseek-r1-distill-llama-8b", "oar_g", "fsdp2"),
    ("deepseek", "deepseek-r1-distill-llama-8b", "grail", "megatron"),
    ("octothinker", "octothinker-3b-short", "grail", "fsdp2"),
    ("octothinker", "octothinker-3b-short", "oar_g", "megatron"),
]


@pytest.mark.parametrize(("family", "model", "method", "backend"), RECIPES)
def test_a_recipe_runs(task, cluster, preloaded, llamas, tmp_path, family, model, method, backend):
    # the recipe's own mode and grader
    left_out = ["trainer_mode", "custom_reward_function"] + (["fsdp_config"] if backend == "megatron" else [])
    small = [o for o in task_overrides(task, 1, "grail_sync") if not any(x in o for x in left_out)]
    small += [*run_overrides(tmp_path, cluster, 2), *preloaded.overrides]
    # room for a chat template that the tokenizer was not made for; vLLM's log-probs those of the actor
    small += ["data.max_prompt_length=96", "actor_rollout_ref.rollout.max_model_len=224"]
    small += [
        "actor_rollout_ref.rollout.top_k=-1",
        f"actor_rollout_ref.model.path={llamas.get(family, task / 'model')}",
    ]
    if backend == "megatron":
        # Megatron's schedule wants its warm-up shorter than the run
        small += [*megatron_overrides(1, 1), "actor_rollout_ref.actor.optim.lr_warmup_steps=0"]
    env = dict(
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        TRAIN_FILES=str(task / "train.parquet"),
        VAL_FILES=str(task / "val.parquet"),
        MODEL=str(llamas.get(family, task / "model")),
        GPUS_PER_NODE="1",
        TP="1",
    )
    recipe = ROOT / f"recipes/{family}/run_{model}_{method}_{backend}.sh"
    run = launch(["bash", str(recipe), *small], tmp_path, **env)
    assert sorted(run.metrics) == [1, 2]
    for metrics in run.metrics.values():
        assert metrics["training/rollout_probs_diff_max"] < 1e-4
    first = run.metrics[1]
    assert ("gar/rows/pass" in first) == method.startswith("gar") and ("grail/weight_mean" in first) == (
        method == "grail"
    )
    assert ("oar_g/weight_mean" in first) == (method == "oar_g")
    if family.startswith("qwen3"):  # the demo's own model, which answers half of the problems
        assert first["actor/grad_norm"] > 0 and first["critic/score/max"] > 0
        assert first.get("grail/rows/weighted", 1) > 0 and first.get("gar/rows/pass", 1) > 0
