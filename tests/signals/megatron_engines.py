"""verl's real Megatron engine on forked gloo ranks, on the CPU modules of `megatron_cpu`, and signal passes on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tests.signals.engines import batch_of, by_row
from tests.signals.tiny import Row
from verl_grail.signals.request import PassRequest


@dataclass(frozen=True)
class Layout:
    """Parallel sizes and options of an engine."""

    tp: int = 1
    pp: int = 1
    vpp: int | None = None
    cp: int = 1
    dp: int = 1
    ep: int = 1
    sequence_parallel: bool | None = None
    """None: wherever there is tensor parallelism, as verl does."""
    distributed_optimizer: bool = False
    per_token_loss: bool = False
    recompute: str | None = None
    dtype: str = "float32"

    @property
    def ranks(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    def __str__(self) -> str:
        default = Layout()
        parts = [f"{k}{v}" for k, v in vars(self).items() if v != getattr(default, k)]
        return "-".join(parts) or "one"


def save_with_tokenizer(folder, model) -> str:
    """A model folder that verl's Megatron engine loads: it wants a tokenizer beside the weights."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(model.config.vocab_size)}, unk_token="t0"))
    names = dict(pad_token="t0", eos_token="t1", bos_token="t2", unk_token="t0")
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(folder)
    return str(folder)


def build_engine(path: str, layout: Layout, **options: Any):
    """verl's Megatron engine for the model at ``path``, initialised with its weights."""
    os.environ["VERL_PLATFORM"] = "nvidia"  # Megatron knows no other; the shim answers for it
    from tests.signals import megatron_cpu

    megatron_cpu.install()
    megatron_cpu.register_bridges()
    from megatron.core import tensor_parallel
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import HFModelConfig, McoreEngineConfig, McoreOptimizerConfig
    from verl.workers.engine.megatron.transformer_impl import MegatronEngineWithLMHead

    from verl_grail.signals.engines import with_signals

    transformer = {**megatron_cpu.CONFIG, "calculate_per_token_loss": layout.per_token_loss}
    sequence_parallel = layout.tp > 1 if layout.sequence_parallel is None else layout.sequence_parallel
    if not sequence_parallel:
        transformer["sequence_parallel"] = False
    if layout.recompute == "full":
        transformer |= dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    elif layout.recompute:
        transformer |= dict(recompute_granularity=layout.recompute)
    config = McoreEngineConfig(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        virtual_pipeline_model_parallel_size=layout.vpp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=layout.ep,
        expert_tensor_parallel_size=1,
        sequence_parallel=sequence_parallel,
        use_distributed_optimizer=layout.distributed_optimizer,
        vanilla_mbridge=True,
        override_transformer_config=transformer,
        dtype="bfloat16",
        use_remove_padding=True,
        **options,
    )
    object.__setattr__(config, "dtype", layout.dtype)  # the config admits 16-bit only; fp32 shows what is exact
    engine = with_signals(MegatronEngineWithLMHead, "megatron")(
        HFModelConfig(path=path, override_config={"attn_implementation": "eager"}),
        config,
        McoreOptimizerConfig(lr=1e-3, clip_grad=1.0, lr_decay_steps=10, total_training_steps=10),
        CheckpointConfig(),
    )
    tensor_parallel.model_parallel_cuda_manual_seed(1, inference_rng_tracker=True)
    engine.initialize()
    return engine


def run_pass(engine, rows: list[Row], order: list[list[int]], plans, request: PassRequest) -> dict[int, dict]:
    """One pass over this data-parallel rank's rows; results by row index on ranks that hold them."""
    from megatron.core import parallel_state as mpu

    mine = order[mpu.get_data_parallel_rank()]
    data = batch_of([rows[i] for i in mine], [plans[i] for i in mine])
    out = engine.compute_signals(data, request)
    if not engine.is_mp_src_rank_with_outputs():
        return {}
    return by_row(rows, mine, out)


def run_log_probs(engine, rows: list[Row], order: list[list[int]], plans) -> None:
    """verl's own log-prob pass over the same rows, two to a micro-batch."""
    from megatron.core import parallel_state as mpu
    from verl.utils import tensordict_utils as tu

    mine = order[mpu.get_data_parallel_rank()]
    data = batch_of([rows[i] for i in mine], [plans[i] for i in mine])
    longest = max(len(row.response) for row in rows)
    options = dict(use_dynamic_bsz=False, micro_batch_size_per_gpu=2, max_response_len=longest, temperature=1.0)
    tu.assign_non_tensor(data, calculate_entropy=True, **options)
    with engine.eval_mode():
        engine.infer_batch(data)
