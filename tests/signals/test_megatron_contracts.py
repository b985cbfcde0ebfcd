"""What the Megatron pass leans on in megatron-core and in verl's engine; a failure names the seam that moved."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch

pytest.importorskip("mbridge")


def source(thing) -> str:
    return " ".join(inspect.getsource(thing).split())


def test_the_schedule_scales_a_loss_of_two_values():
    """`MegatronPass._loss` undoes it."""
    from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss

    text = source(forward_step_calc_loss)
    assert "assert len(outputs) == 2" in text
    assert "output_tensor *= cp_group_size output_tensor /= num_microbatches" in text


def test_the_schedule_skips_the_backward_of_an_output_without_a_graph():
    """The first stage, where it lies wholly before the leaf."""
    from megatron.core.pipeline_parallel.schedules import backward_step

    assert "if output_tensor[0].requires_grad:" in source(backward_step)


def test_the_schedules_call_these_callbacks_of_the_config():
    from megatron.core.model_parallel_config import ModelParallelConfig

    from verl_grail.signals.pipeline import _CALLBACKS

    assert set(_CALLBACKS) <= {f.name for f in dataclasses.fields(ModelParallelConfig)}


def test_the_output_layer_is_called_with_hidden_states_and_a_tied_weight():
    from megatron.core.models.gpt import GPTModel

    text = source(GPTModel)
    assert (
        "self.output_layer( hidden_states, weight=output_weight, runtime_gather_output=runtime_gather_output )" in text
    )
    assert "self.decoder( hidden_states=decoder_input," in text and "packed_seq_params=packed_seq_params" in text


def test_later_stages_take_their_input_from_an_attribute():
    from megatron.core.transformer.transformer_block import TransformerBlock

    text = source(TransformerBlock)
    assert "self.input_tensor = input_tensor" in text
    assert "if not self.pre_process: # See set_input_tensor() hidden_states = self.input_tensor" in text


def test_recomputation_asks_these_training_flags():
    from megatron.core.transformer.attention import Attention
    from megatron.core.transformer.transformer_block import TransformerBlock

    assert "recompute_granularity == 'full' and self.training" in source(TransformerBlock)
    assert "self.checkpoint_core_attention and self.training" in source(Attention)


def test_layers_know_their_number_from_one():
    from megatron.core.transformer.transformer_layer import TransformerLayer

    assert "self.layer_number = layer_number + get_transformer_layer_offset" in source(TransformerLayer.__init__)


def test_ddp_can_leave_its_forward_hooks():
    from megatron.core.distributed import DistributedDataParallel

    assert "param_sync" in inspect.signature(DistributedDataParallel.disable_forward_pre_hook).parameters
    assert callable(DistributedDataParallel.enable_forward_pre_hook)
    assert "self.use_forward_hook" in source(DistributedDataParallel.__init__)


def test_verl_packs_and_hands_over_what_it_packed():
    from verl.models.mcore.model_forward import gptmodel_forward_model_engine
    from verl.models.mcore.util import preprocess_thd_engine

    text = source(preprocess_thd_engine)
    assert "align_size = tp_size * cp_size * cp_layout_factor" in text
    assert "cu_seqlens_q_padded=cu_seqlens_padded" in text
    forward = source(gptmodel_forward_model_engine)
    assert "output_dict = logits_processor(output_orig, **args)" in forward
    parameters = inspect.signature(gptmodel_forward_model_engine).parameters
    assert {"logits_processor", "logits_processor_args", "data_format", "cp_layout", "pad_token_id"} <= set(parameters)


def test_verls_engine_has_these_parts():
    from verl.workers.engine.megatron.transformer_impl import MegatronEngine

    text = source(MegatronEngine)
    for name in ("self.module", "self.tf_config", "self.model_config", "self.engine_config"):
        assert name in text
    assert MegatronEngine._get_context_parallel_layout and MegatronEngine.is_mp_src_rank_with_outputs


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tokens_lie_where_verl_puts_them(layout, ranks, monkeypatch):
    """`packed.place` against verl's own packing, rank by rank."""
    from verl.models.mcore import util

    from verl_grail.signals.packed import place

    monkeypatch.setattr(util, "_PACKED_SEQ_PARAMS_HAS_CP_PARTITION_MODE", False)
    monkeypatch.setattr(util, "_packed_seq_params_supports", lambda name: False)
    monkeypatch.setattr(util.mpu, "get_tensor_model_parallel_world_size", lambda: 2)
    monkeypatch.setattr(util.mpu, "get_context_parallel_world_size", lambda: ranks)
    lengths = [5, 17, 1, 12]
    ids = [torch.arange(n) + 100 * (i + 1) for i, n in enumerate(lengths)]
    nested = torch.nested.as_nested_tensor(ids, layout=torch.jagged)
    if layout == "contiguous" and ranks > 1:
        monkeypatch.setattr(util, "_PACKED_SEQ_PARAMS_HAS_CP_PARTITION_MODE", True)
        monkeypatch.setattr(util, "PackedSeqParams", lambda **k: type("P", (), k)())
    packed = []
    for rank in range(ranks):
        monkeypatch.setattr(util.mpu, "get_context_parallel_rank", lambda rank=rank: rank)
        tokens, params, _ = util.preprocess_thd_engine(nested, cp_layout=layout)
        packed.append(tokens[0])
    starts = params.cu_seqlens_q_padded.long()
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    positions = torch.cat([torch.arange(n) for n in lengths])
    owner, index = place(rows, positions, starts, ranks, layout)
    got = torch.stack([packed[r][i] for r, i in zip(owner.tolist(), index.tolist(), strict=True)])
    assert torch.equal(got, torch.cat(ids))
