"""verl's real FSDP2 engine on forked gloo ranks, and one signal pass on it."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from tests.signals.tiny import Row
from verl_grail.signals.fsdp import SignalPass
from verl_grail.signals.request import EMPTY_PLAN, Column, PassRequest
from verl_grail.signals.schedule import Limits, plan_schedule


def _child(rank: int, n_ranks: int, store: str, out: str, fn: Callable, args: tuple) -> None:
    torch.set_num_threads(1)
    # verl reads rank and world size from here
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(n_ranks), LOCAL_RANK=str(rank))
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=n_ranks, timeout=timedelta(seconds=120)
    )
    try:
        result = (True, fn(rank, *args))
    except Exception:
        result = (False, traceback.format_exc())
    torch.save(result, f"{out}.{rank}")
    dist.destroy_process_group()


def run_ranks(n_ranks: int, fn: Callable, *args: Any) -> list[Any]:
    """Run ``fn(rank, *args)`` on forked ranks of one gloo group and return their results.

    Forked, because importing verl takes far longer than any of these passes.
    """
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("fork")
        store, out = f"{folder}/store", f"{folder}/out"
        children = [
            context.Process(target=_child, args=(r, n_ranks, store, out, fn, args), daemon=True) for r in range(n_ranks)
        ]
        for c in children:
            c.start()
        for c in children:
            c.join(180)
        hung = [r for r, c in enumerate(children) if c.is_alive()]
        for c in children:
            c.kill()
        if hung:
            raise AssertionError(f"ranks {hung} did not finish")
        results = [torch.load(f"{out}.{r}", weights_only=False) for r in range(n_ranks)]
    failed = [text for ok, text in results if not ok]
    if failed:
        raise AssertionError("\n".join(failed))
    return [value for _, value in results]


def build_engine(path: str, strategy: str = "fsdp2", **options: Any):
    """verl's engine for the model at ``path``, initialised, in float32 unless ``param_dtype`` says otherwise."""
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine import EngineRegistry

    import verl_grail.cpu.engine  # noqa: F401  (registers the CPU engines)
    from verl_grail.signals.engines import MODEL_TYPE, register_engine

    dtype = options.pop("param_dtype", "fp32")
    model = HFModelConfig(
        path=path,
        load_tokenizer=False,
        use_remove_padding=options.pop("packed", False),
        enable_gradient_checkpointing=options.pop("checkpointing", False),
        lora_rank=options.pop("lora_rank", 0),
        use_fused_kernels=options.pop("fused", False),
        fused_kernel_options={"impl_backend": "torch"},
        override_config={"attn_implementation": options.pop("attention", "sdpa")},
    )
    config = FSDPEngineConfig(
        strategy=strategy,
        use_torch_compile=False,
        mixed_precision={"param_dtype": dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        infer_micro_batch_size_per_gpu=4,
        micro_batch_size_per_gpu=4,
        **options,
    )
    config.use_remove_padding = model.use_remove_padding
    register_engine(strategy)
    engine = EngineRegistry.new(
        model_type=MODEL_TYPE,
        backend=strategy,
        model_config=model,
        engine_config=config,
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


class PlainEngine:
    """A model that nothing shards, in this process; padded inputs, prepared by verl's FSDP engine class."""

    def __init__(self, module: torch.nn.Module):
        self.module = module
        self.use_remove_padding, self.use_ulysses_sp, self.ulysses_parallel_group = False, False, None
        self.pad_to_length, self._autocast_dtype, self.scaler = False, torch.float32, None

    def prepare_model_inputs(self, micro_batch):
        from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

        return FSDPEngineWithLMHead.prepare_model_inputs(self, micro_batch)

    def eval_mode(self):
        self.module.eval()
        return nullcontext()

    def compute_signals(self, data: TensorDict, request: PassRequest) -> dict[str, torch.Tensor]:
        # as `signals.engines.FSDPSignals`, whose module imports every engine that verl finds, Megatron's too
        with self.eval_mode():
            return SignalPass(self, request).run(data)


def batch_of(rows: list[Row], plans: list[tuple[int, ...]]) -> TensorDict:
    """Rows as a worker gets them: jagged tensors and the row plan."""

    def jagged(tensors):
        return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)

    masks = []
    for row in rows:
        mask = torch.ones(len(row.response), dtype=torch.int64)
        mask[row.holes] = 0
        masks.append(mask)
    return tu.get_tensordict(
        {
            "input_ids": jagged([r.ids for r in rows]),
            "position_ids": jagged([torch.arange(len(r.ids)) for r in rows]),
            "prompts": jagged([torch.tensor(r.prompt) for r in rows]),
            "responses": jagged([torch.tensor(r.response) for r in rows]),
            "response_mask": jagged(masks),
            "loss_mask": jagged(masks),
            "signal_plan": torch.tensor(plans, dtype=torch.int64),
        }
    )


def schedule_rows(rows: list[Row], n_ranks: int, limits: Limits, **request: Any):
    """Plan a pass over the rows; returns per-rank row indices, their plans, and the request."""
    lengths = [len(r.ids) for r in rows]
    backward = [r.answer[1] > r.answer[0] for r in rows]
    schedule = plan_schedule(lengths, backward, [True] * len(rows), n_ranks, limits, limits)
    plans = []
    for i, row in enumerate(rows):
        plan = list(EMPTY_PLAN)
        plan[Column.MICRO_BATCH] = schedule.micro_batch[i]
        plan[Column.ANSWER_START], plan[Column.ANSWER_END] = row.answer
        plan[Column.VECTOR_START], plan[Column.VECTOR_END] = row.vector
        plan[Column.NOISE_KEY] = i + 1
        plans.append(tuple(plan))
    share = len(rows) // n_ranks
    order = [schedule.order[r * share : (r + 1) * share] for r in range(n_ranks)]
    return order, plans, PassRequest(schedule.n_forward, schedule.n_backward, **request)


def run_pass(
    engine, rows: list[Row], order: list[int], plans, request: PassRequest
) -> dict[int, dict[str, torch.Tensor]]:
    """One pass over this rank's rows; results by row index, cut to the response where they are full length."""
    data = batch_of([rows[i] for i in order], [plans[i] for i in order])
    return by_row(rows, order, engine.compute_signals(data, request))


def by_row(rows: list[Row], order: list[int], out: dict[str, torch.Tensor]) -> dict[int, dict[str, torch.Tensor]]:
    """A pass's output by row index, cut to the response where it is full length."""
    results: dict[int, dict[str, torch.Tensor]] = {}
    for k, i in enumerate(order):
        p = len(rows[i].prompt)
        results[i] = {}
        for name, value in out.items():
            row = value[k].clone()
            results[i][name] = row[p - 1 : -1] if name in ("log_probs", "entropy") else row
    return results
