"""Megatron-core and verl's Megatron engine on CPU: what tests need in place of CUDA and TransformerEngine.

Nothing here is product code. `install` patches torch and megatron-core in the process it is called in (a forked
rank); each patch names the files of megatron-core 0.16 that need it. The modules stand in for TransformerEngine's,
which has no CPU build: a packed, context-parallel attention and fused layer norms under TransformerEngine's parameter
names, so that mbridge's weight mapping is the stock one.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
import torch.distributed as dist

CONFIG = dict(
    masked_softmax_fusion=False,
    gradient_accumulation_fusion=False,
    bias_activation_fusion=False,
    bias_dropout_fusion=False,
    apply_rope_fusion=False,
    persist_layer_norm=False,
    use_cpu_initialization=True,
    attention_softmax_in_fp32=True,
)
"""Options of the transformer config that need no patch."""


def _on_cpu(function):
    def wrapper(*args, **kwargs):
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return function(*args, **kwargs)

    return wrapper


class _Stream:
    """A class, since annotations such as ``torch.cuda.Stream | None`` are evaluated (transformers)."""

    def __init__(self, *args, **kwargs):
        pass

    def __getattr__(self, name):
        return lambda *args, **kwargs: _Stream()


def install() -> None:
    """Patch this process. Paths below are relative to megatron/core."""
    cpu = torch.device("cpu")
    # pipeline_parallel/p2p_communication.py, tensor_parallel/mappings.py, distributed/param_and_grad_buffer.py
    torch.cuda.current_device = lambda: cpu
    # pipeline_parallel/schedules.py (total_num_tokens), transformer/utils.py, optimizer/clip_grads.py
    for name in ("zeros", "ones", "empty", "tensor", "full", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    # pipeline_parallel/p2p_communication.py: shapes are exchanged before the tensors
    torch.cuda.synchronize = lambda *args, **kwargs: None
    # models/common/embeddings/rope_utils.py, models/common/language_module/language_module.py
    torch.Tensor.cuda = lambda self, *args, **kwargs: self
    # tensor_parallel/random.py: activation recomputation saves and restores the generator
    import megatron.core.tensor_parallel.random as random

    torch.cuda.manual_seed = lambda seed: None
    torch.cuda.get_rng_state = lambda *args, **kwargs: torch.zeros(1, dtype=torch.uint8)
    torch.cuda.random.get_rng_state = torch.cuda.get_rng_state
    random._set_cuda_rng_state = lambda *args, **kwargs: None
    # verl/utils/profiler/performance.py
    torch.cuda.mem_get_info = lambda *args, **kwargs: (1 << 34, 1 << 34)
    _install_optimizer()
    _install_experts()


def _install_optimizer() -> None:
    """optimizer/distrib_optimizer.py and optimizer/optimizer.py compare the names of tensor types."""
    original = torch.Tensor.type

    def type_(self, *args, **kwargs):
        if args or kwargs:
            return original(self, *args, **kwargs)
        return original(self).replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_


def _install_experts() -> None:
    """transformer/moe/token_dispatcher.py: streams, and split sizes that are moved from CUDA; moe_utils.py: a name that
    only TransformerEngine binds."""
    import megatron.core.transformer.moe.moe_utils as moe_utils
    import megatron.core.transformer.moe.token_dispatcher as dispatcher

    torch.cuda.Stream = _Stream
    torch.cuda.current_stream = lambda *args, **kwargs: _Stream()
    torch.cuda.stream = lambda *args, **kwargs: contextlib.nullcontext()
    torch.Tensor.record_stream = lambda self, *args: None
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    dispatcher.maybe_move_tensor_to_cpu = lambda tensor, as_numpy=False, record_stream=False: (
        tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
    )


# ------------------------------ modules ------------------------------


class RMSNorm(torch.nn.RMSNorm):
    """Megatron's own wrapper refuses sequence parallelism (transformer/torch_norm.py)."""

    def __init__(self, config, hidden_size, eps=1e-6, **kwargs):
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel


class _GatherContext(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        out = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(out, x.contiguous(), group=group)
        return torch.stack(out)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient[ctx.group.rank()], None


def _tokens_of(lengths: list[int], ranks: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequence and position of each token that a context-parallel rank holds (zigzag)."""
    sequences, positions = [], []
    for i, length in enumerate(lengths):
        position = torch.arange(length)
        if ranks > 1:
            chunks = position.chunk(2 * ranks)
            position = torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]])
        positions.append(position)
        sequences.append(torch.full((len(position),), i))
    return torch.cat(sequences), torch.cat(positions)


class PackedAttention(torch.nn.Module):
    """Causal grouped-query attention on packed sequences over context-parallel ranks, for TEDotProductAttention.

    Megatron's own (transformer/dot_product_attention.py) refuses packed sequences and context parallelism.
    """

    def __init__(self, config, softmax_scale=None, pg_collection=None, **kwargs):
        super().__init__()
        self.scale = softmax_scale or 1.0 / math.sqrt(config.kv_channels)
        self.group = pg_collection.cp

    def forward(self, query, key, value, attention_mask, packed_seq_params=None, **kwargs):
        ranks, rank = self.group.size(), self.group.rank()
        starts = packed_seq_params.cu_seqlens_q_padded
        lengths = (starts[1:] - starts[:-1]).tolist()
        places = [_tokens_of(lengths, ranks, r) for r in range(ranks)]
        sequence, position = places[rank]
        keys = [place[0] for place in places], [place[1] for place in places]
        if ranks > 1:
            key = _GatherContext.apply(key, self.group).flatten(0, 1)
            value = _GatherContext.apply(value, self.group).flatten(0, 1)
        k_sequence, k_position = torch.cat(keys[0]), torch.cat(keys[1])
        allowed = (sequence[:, None] == k_sequence) & (k_position <= position[:, None])
        share = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
        scores = torch.einsum("ind,jnd->nij", query.float(), key.float()) * self.scale
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        out = torch.einsum("nij,jnd->ind", weights, value.float()).to(query.dtype)
        return out.reshape(out.shape[0], -1)


class GroupedLinear(torch.nn.Module):
    """One weight per expert of this rank, under TransformerEngine's names; for both of its grouped linear layers.

    Without expert tensor parallelism.
    """

    def __init__(self, num_gemms, input_size, output_size, *, config, pg_collection, **kwargs):
        super().__init__()
        self.num_gemms = num_gemms
        for i in range(num_gemms):
            weight = torch.nn.Parameter(torch.zeros(output_size, input_size, dtype=config.params_dtype))
            weight.allreduce = pg_collection.ep.size() == 1  # distributed/distributed_data_parallel.py
            self.register_parameter(f"weight{i}", weight)

    def forward(self, x, splits):
        weights = [getattr(self, f"weight{i}") for i in range(self.num_gemms)]
        return torch.cat(
            [torch.nn.functional.linear(p, w) for p, w in zip(x.split(splits), weights, strict=True)]
        ), None


def register_bridges() -> None:
    """mbridge's Qwen3, Llama and Qwen3-MoE with CPU modules; `register_model` is its extension point."""
    from mbridge.core import register_model
    from mbridge.models.llama import LLaMABridge
    from mbridge.models.qwen3 import Qwen3Bridge
    from mbridge.models.qwen3moe import Qwen3MoEBridge
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.moe.experts import TEGroupedMLP
    from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    class NormedLinear(ColumnParallelLinear):
        """TELayerNormColumnParallelLinear: the norm's weight is a parameter of the layer."""

        def __init__(self, input_size, output_size, *, config, **kwargs):
            super().__init__(input_size, output_size, config=config, **kwargs)
            self.eps = config.layernorm_epsilon
            self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))
            self.layer_norm_weight.sequence_parallel = config.sequence_parallel

        def forward(self, x, *args, **kwargs):
            normed = torch.nn.functional.rms_norm(x, x.shape[-1:], self.layer_norm_weight, self.eps)
            return super().forward(normed, *args, **kwargs)

    def block(config, vp_stage=None):
        norm = RMSNorm if config.qk_layernorm else IdentityOp
        attention = SelfAttentionSubmodules(
            linear_qkv=NormedLinear,
            core_attention=PackedAttention,
            linear_proj=RowParallelLinear,
            q_layernorm=norm,
            k_layernorm=norm,
        )
        if config.num_moe_experts:
            grouped = MLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=GroupedLinear)
            experts = ModuleSpec(module=TEGroupedMLP, submodules=grouped)
            mlp = ModuleSpec(module=MoELayer, submodules=MoESubmodules(experts=experts))
        else:
            mlp = ModuleSpec(
                module=MLP, submodules=MLPSubmodules(linear_fc1=NormedLinear, linear_fc2=RowParallelLinear)
            )
        layer = TransformerLayerSubmodules(
            input_layernorm=IdentityOp,
            self_attention=ModuleSpec(
                module=SelfAttention, params={"attn_mask_type": AttnMaskType.causal}, submodules=attention
            ),
            self_attn_bda=get_bias_dropout_add,
            pre_mlp_layernorm=RMSNorm if config.num_moe_experts else IdentityOp,
            mlp=mlp,
            mlp_bda=get_bias_dropout_add,
        )
        count = get_num_layers_to_build(config, vp_stage=vp_stage)
        specs = [ModuleSpec(module=TransformerLayer, submodules=layer)] * count
        return TransformerBlockSubmodules(layer_specs=specs, layer_norm=RMSNorm)

    def on_cpu(bridge: Any) -> Any:
        class CpuBridge(bridge):  # type: ignore[misc, valid-type]
            def _get_transformer_layer_spec(self, vp_stage=None):
                self.has_vp_stage = True
                return block(self.config, vp_stage)

        return CpuBridge

    for name, bridge in (("qwen3", Qwen3Bridge), ("llama", LLaMABridge), ("qwen3_moe", Qwen3MoEBridge)):
        register_model(name)(on_cpu(bridge))
