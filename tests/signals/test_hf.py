"""Models that the pass cannot work with are refused with the key and the mend."""

from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model

from tests.signals.tiny import build_model
from verl_grail.config import ConfigError
from verl_grail.signals.fsdp import check_engine
from verl_grail.signals.hf import base_model, check_model, find_parts, leaf_layer
from verl_grail.signals.hooks import Leaf, checkpointing_in_eval, replaced_head


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_parts(kind):
    model = build_model(kind)
    parts = find_parts(model)
    assert parts.embeddings is model.model.embed_tokens and parts.head is model.lm_head
    assert parts.layers == list(model.model.layers)


@pytest.mark.parametrize("key", ["final_logit_softcapping", "logit_scale", "logits_scaling"])
def test_changed_logits(key):
    model = build_model()
    setattr(model.config, key, 2.0)
    with pytest.raises(ConfigError, match=rf"actor_rollout_ref\.model\.path: .*{key}=2\.0"):
        find_parts(model)
    setattr(model.config, key, 1.0)
    find_parts(model)


def test_vision_models():
    model = build_model()
    model.config.vision_config = {}
    with pytest.raises(ConfigError, match="takes images"):
        find_parts(model)


def test_lora_on_the_output_layer():
    config = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "lm_head"])
    with pytest.raises(ConfigError, match=r"lm_head out of actor_rollout_ref\.model\.target_modules"):
        find_parts(get_peft_model(build_model(), config))
    inner = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear")
    adapted = get_peft_model(build_model(), inner)
    find_parts(adapted)
    assert base_model(adapted) is adapted.get_base_model()


def test_reentrant_checkpointing():
    model = build_model()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(ConfigError, match=r"enable_activation_offload=False"):
        check_model(model, "embeddings")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    check_model(model, "embeddings")


def test_leaf_blocks():
    assert [leaf_layer(6, leaf) for leaf in ("first", "middle", "last")] == [0, 2, 4]
    with pytest.raises(ConfigError, match=r"algorithm\.grail\.leaf=last"):
        check_model(build_model(layers=1), "last")


def test_half_precision_with_a_loss_scaler():
    with pytest.raises(ConfigError, match="param_dtype=fp16"):
        check_engine(SimpleNamespace(scaler=object(), module=build_model()), "embeddings")


def test_dropout_that_a_block_applies_by_itself_stays_off():
    from transformers import OPTConfig, OPTForCausalLM

    torch.manual_seed(0)
    model = OPTForCausalLM(
        OPTConfig(vocab_size=50, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, dropout=0.5,
                  word_embed_proj_dim=16, max_position_embeddings=64)
    )  # fmt: skip
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.eval()
    ids = torch.tensor([[3, 4, 5, 6]])
    want = model(ids).logits
    with checkpointing_in_eval(find_parts(model).layers, "embeddings"):
        assert torch.equal(model(ids).logits, want)
    assert model.model.decoder.layers[0].dropout == 0.5


def test_the_model_is_left_as_it_was():
    model = build_model()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.eval()
    parts = find_parts(model)
    hooks = [len(m._forward_hooks) for m in model.modules()]
    leaf = Leaf(parts, "embeddings")
    with (
        pytest.raises(RuntimeError, match="boom"),
        checkpointing_in_eval(parts.layers, "embeddings"),
        replaced_head(parts.head, lambda h: h),
        leaf(),
    ):
        assert all(layer.training for layer in parts.layers) and not parts.layers[0].mlp.training
        raise RuntimeError("boom")
    assert hooks == [len(m._forward_hooks) for m in model.modules()]
    assert not any(m.training for m in model.modules()) and "forward" not in vars(parts.head)
    assert torch.is_grad_enabled()
