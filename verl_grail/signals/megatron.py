"""The signal pass on verl's Megatron engine (verl/workers/engine/megatron/transformer_impl.py).

Megatron's own pipeline schedule runs the planned micro-batches: forward-only ones, and ones with a backward to the
leaf. verl packs the inputs and cuts them over context-parallel ranks as for its own log-prob pass. The output layer
answers in token chunks for its part of the vocabulary, and its surrogate loss is a scalar on every rank of the last
stage; what crosses ranks is (N,) values per response token, (rows, d) vectors and (answer tokens, d) cotangents.

State of one micro-batch hangs on a `_Micro`: with pipelining several are under way at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state as mpu
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from tensordict import TensorDict
from verl.models.mcore import get_mcore_engine_forward_fn
from verl.utils.device import get_device_id

from verl_grail.config import ConfigError
from verl_grail.core.head import Vocabulary
from verl_grail.core.oar_g import influence, noise
from verl_grail.signals.batches import Collected, micro_batch, pass_inputs, positions_of
from verl_grail.signals.headrun import HeadRun, OutputLayer
from verl_grail.signals.hf import check_config, leaf_layer
from verl_grail.signals.hooks import replaced_head
from verl_grail.signals.measure import measure_of
from verl_grail.signals.packed import PackedPart, SequenceShare
from verl_grail.signals.pipeline import frozen, recompute_in_eval, removed, unwrap
from verl_grail.signals.positions import Positions
from verl_grail.signals.request import Column, PassRequest


def check_megatron(engine: Any, leaf: str) -> None:
    """Refuse a built engine that the pass cannot work with.

    Raises:
        ConfigError: names the config key and the mend.
    """
    check_config(engine.model_config.hf_config, type(unwrap(engine.module[0])).__name__)
    if leaf != "embeddings":
        leaf_layer(engine.tf_config.num_layers, leaf)
    for chunk in map(unwrap, engine.module):
        if chunk.post_process and type(chunk.output_layer) is not ColumnParallelLinear:
            raise ConfigError(
                f"actor_rollout_ref.model.path: the output layer is {type(chunk.output_layer).__name__}, not "
                "Megatron's ColumnParallelLinear. If LoRA adapts it, take it out of "
                "actor_rollout_ref.model.target_modules"
            )


class _Micro:
    """One micro-batch on its way through this rank's stages."""

    def __init__(self, rows: list[int], data: TensorDict):
        self.rows, self.data = rows, data
        self.at: Positions = positions_of(data, packed=True)
        self.run: HeadRun
        self.part: PackedPart
        self.surrogate: torch.Tensor
        self.activation: torch.Tensor | None = None
        self.influence: torch.Tensor | None = None
        """(t_local,) saliency or influence of this rank's tokens, where the leaf is."""


class MegatronPass:
    """One pass over the rows of this data-parallel rank; every rank of the model runs the same micro-batches."""

    def __init__(self, engine: Any, request: PassRequest):
        check_megatron(engine, request.leaf)
        assert not request.ig_steps, "refused at start-up (plugin/startup.py)"
        self._measure = measure_of(request)
        self.engine, self.request, self.config = engine, request, engine.tf_config
        self.chunks = list(map(unwrap, engine.module))
        self.layout = engine._get_context_parallel_layout(self.chunks[0])
        self.share = SequenceShare(self.config)
        self.leaf_number = 0 if request.leaf == "embeddings" else leaf_layer(self.config.num_layers, request.leaf) + 1
        """Layer (from 1) whose output is the leaf; 0: the embeddings."""
        self._now: _Micro
        self._count = 0
        self._backward = self._noisy = False

    def run(self, data: TensorDict) -> dict[str, torch.Tensor]:
        """Run the pass; the engine must be in its eval mode.

        Args:
            data: this rank's rows with the fields of `PASS_FIELDS`.

        Returns:
            As `batches.Collected.output`; complete on the ranks of the last stage.
        """
        request = self.request
        data = pass_inputs(data, True, request.temperature).to(get_device_id())
        forward = self._micro_batches(data, 0, request.n_forward)
        backward = self._micro_batches(data, request.n_forward, request.n_backward)
        with frozen(self.engine.module), removed(self._hooks()), self._replaced_heads():
            for micro in forward:
                micro.run = HeadRun(request, micro.at)
            self._schedule(forward, backward=False)
            recompute = recompute_in_eval(self.engine.module, self._leaf_decoder())
            with recompute if request.recompute else nullcontext():
                runs = [m.run for m in forward] + self._run_backward(backward)
        collected = Collected(data, self.config.hidden_size)
        if mpu.is_pipeline_last_stage(ignore_virtual=True):
            for micro, run in zip(forward + backward, runs, strict=True):
                collected.add(micro.rows, micro.at, run.result, None)
        for micro, values in zip(backward, self._on_every_stage(backward), strict=True):
            collected.add_saliency(micro.rows, micro.at, values)
        return collected.output(request)

    # ------------------------------ schedules ------------------------------

    def _micro_batches(self, data: TensorDict, first: int, count: int) -> list[_Micro]:
        """``count`` micro-batches of the plan, filled up with stand-ins to what virtual stages divide."""
        group = self.config.microbatch_group_size_per_vp_stage if len(self.chunks) > 1 else 1
        total = -(-count // group) * group
        return [_Micro(*micro_batch(data, first + i if i < count else -2)) for i in range(total)]

    def _run_backward(self, micros: list[_Micro]) -> list[HeadRun]:
        """Forward and backward of micro-batches; the runs that hold log-probs, entropy and vectors."""
        if self.request.method == "grail":
            for micro in micros:
                micro.run = HeadRun(self.request, micro.at, grail=True)
            self._schedule(micros, backward=True)
            return [m.run for m in micros]
        for micro in micros:
            micro.run = HeadRun(self.request, micro.at, mean_logits=True)
        self._schedule(micros, backward=False)
        clean = [m.run for m in micros]
        for micro in micros:  # only the last stage has the mean logits, and only it evaluates the run
            micro.run = HeadRun(self.request, micro.at, clean=getattr(micro.run, "mean", None))
        self._noisy = True
        try:
            self._schedule(micros, backward=True)
        finally:
            self._noisy = False
        return clean

    def _schedule(self, micros: list[_Micro], backward: bool) -> None:
        if not micros:
            return
        self._backward, self._count = backward, len(micros)
        iterators = [iter(micros) for _ in self.chunks]
        with torch.set_grad_enabled(backward):
            get_forward_backward_func()(
                forward_step_func=self._forward_step,
                data_iterator=iterators if len(iterators) > 1 else iterators[0],
                model=self.engine.module,
                num_microbatches=len(micros),
                seq_length=1,  # shapes travel with the tensors (variable_seq_lengths)
                micro_batch_size=1,
                forward_only=not backward,
            )

    def _forward_step(self, iterator: Iterator[_Micro], model: torch.nn.Module):
        micro = self._now = next(iterator)
        model_config = self.engine.model_config

        def keep(surrogate: torch.Tensor) -> dict:
            micro.surrogate = surrogate
            return {}

        output = get_mcore_engine_forward_fn(model_config.hf_config)(
            model,
            micro.data["input_ids"],
            {},
            logits_processor=keep,
            logits_processor_args={},
            pad_token_id=model_config.tokenizer.pad_token_id,
            data_format="thd",
            cp_layout=self.layout,
        )
        return (micro.surrogate if unwrap(model).post_process else output), self._loss

    def _loss(self, surrogate: torch.Tensor) -> tuple[torch.Tensor, dict]:
        # forward_step_calc_loss multiplies by the context-parallel ranks and divides by the micro-batches
        return surrogate.sum() * self._count / mpu.get_context_parallel_world_size(), {}

    # ------------------------------ the output layer ------------------------------

    @contextmanager
    def _replaced_heads(self) -> Iterator[None]:
        with ExitStack() as stack:
            for chunk in self.chunks:
                if chunk.post_process:
                    stack.enter_context(replaced_head(chunk.output_layer, partial(self._head, chunk.output_layer)))
            yield

    def _head(self, layer: ColumnParallelLinear, hidden: torch.Tensor, weight: torch.Tensor | None = None, **_: Any):
        """Stands in for the output layer: hidden (t_local, 1, d) -> a scalar (1, 1, 1) and no bias."""
        micro = self._now
        at, part, flat = micro.at, micro.part, hidden.flatten(0, -2)
        states = self.share.gather(flat.detach())[part.predicting]
        cotangent = micro.run.evaluate(states, part, self._output_layer(layer, weight))
        if not torch.is_grad_enabled():
            return hidden.new_zeros(1, 1, 1), None
        mine, local = self.share.here(part.predicting[at.answer[part.mine]], flat.shape[0])
        # the zero keeps the graph whole where this rank has no answer position
        surrogate = (flat[local].float() * cotangent[mine]).sum() + hidden.sum() * 0
        return surrogate.view(1, 1, 1), None

    @staticmethod
    def _output_layer(layer: ColumnParallelLinear, weight: torch.Tensor | None) -> OutputLayer:
        weight = (layer.weight if weight is None else weight).detach()  # tied to the embeddings: handed over
        group, ranks = mpu.get_tensor_model_parallel_group(), mpu.get_tensor_model_parallel_world_size()

        def reduce(op: Any, value: torch.Tensor) -> torch.Tensor:
            if ranks > 1:
                torch.distributed.all_reduce(value, op=op, group=group)
            return value

        vocabulary = Vocabulary(
            start=mpu.get_tensor_model_parallel_rank() * weight.shape[0],
            sum=partial(reduce, torch.distributed.ReduceOp.SUM),
            max=partial(reduce, torch.distributed.ReduceOp.MAX),
        )
        return OutputLayer(lambda h: torch.nn.functional.linear(h, weight, layer.bias), weight, vocabulary)

    # ------------------------------ the leaf ------------------------------

    def _leaf_decoder(self) -> torch.nn.Module | None:
        """The decoder in the middle of which the leaf is."""
        for chunk in self.chunks:
            if any(layer.layer_number == self.leaf_number for layer in chunk.decoder.layers):
                return chunk.decoder
        return None

    def _hooks(self) -> list[Any]:
        handles = []
        for chunk in self.chunks:
            decoder, numbers = chunk.decoder, [layer.layer_number for layer in chunk.decoder.layers]
            cut = bool(numbers) and min(numbers) <= self.leaf_number  # the leaf is inside this chunk, or after it
            link: dict[str, torch.Tensor] = {}
            handles.append(decoder.register_forward_pre_hook(partial(self._enter, chunk, cut, link), with_kwargs=True))
            if not cut:
                continue
            inside = [layer for layer in decoder.layers if layer.layer_number == self.leaf_number]
            target, hook = (inside[0], self._leaf_output) if inside else (decoder, self._bridge)
            handles.append(target.register_forward_hook(partial(hook, link)))
        return handles

    def _enter(self, chunk: Any, cut: bool, link: dict, decoder: Any, args: tuple, kwargs: dict):
        """Before a chunk's layers: note the packing; make the embeddings the leaf, or cut the graph before it."""
        micro = self._now
        micro.part = PackedPart(micro.at, kwargs["packed_seq_params"].cu_seqlens_q_padded, self.layout)
        if not self._backward:
            return None
        if chunk.pre_process and self.leaf_number == 0:
            kwargs["hidden_states"] = self._leaf(micro, kwargs["hidden_states"].detach())
            return args, kwargs
        if cut and not chunk.pre_process:
            # the schedule sends a gradient of the input back: a zero, and none of the layers before the leaf is run
            link["input"], decoder.input_tensor = decoder.input_tensor, decoder.input_tensor.detach()
        return None

    def _leaf_output(self, link: dict, module: Any, args: tuple, output: Any) -> Any:
        """After the layer whose output is the leaf."""
        if not self._backward:
            return None
        hidden = output[0] if isinstance(output, tuple) else output
        value = _linked(self._leaf(self._now, hidden.detach()), link)
        return (value, *output[1:]) if isinstance(output, tuple) else value

    def _bridge(self, link: dict, decoder: Any, args: tuple, output: torch.Tensor) -> torch.Tensor | None:
        """After a chunk that lies wholly before the leaf."""
        return _linked(output, link) if self._backward else None

    def _leaf(self, micro: _Micro, activation: torch.Tensor) -> torch.Tensor:
        # a clone: verl frees the storage of what a checkpoint saved (apply_patch_megatron_recomputation_backward)
        value = activation.clone() if not self._noisy else activation + self._noise(micro, activation)
        micro.activation = activation
        value.requires_grad_()
        value.register_post_accumulate_grad_hook(partial(self._on_gradient, micro))
        return value

    def _on_gradient(self, micro: _Micro, leaf: torch.Tensor) -> None:
        gradient, leaf.grad = leaf.grad, None
        assert gradient is not None and micro.activation is not None
        measure = influence if self._noisy else self._measure
        micro.influence = measure(micro.activation, gradient).flatten()
        micro.activation = None  # nothing of size (t, d) stays

    def _noise(self, micro: _Micro, activation: torch.Tensor) -> torch.Tensor:
        """OAR-G: this rank's share of the noise on the response embeddings."""
        request, width, at = self.request, activation.shape[-1], micro.at
        rows = [
            noise(request.seed, request.step, int(key), (int(n), width), request.noise_std)
            for key, n in zip(micro.data["signal_plan"][:, Column.NOISE_KEY], at.response_lengths, strict=True)
        ]
        flat = torch.zeros(activation.shape[:-1].numel(), width, device=activation.device)
        mine, index = micro.part.where(at.token)
        here, local = self.share.here(index, flat.shape[0])
        flat[local] = torch.cat(rows).to(flat.device)[mine][here]
        return flat.view(activation.shape).to(activation.dtype)

    def _on_every_stage(self, micros: list[_Micro]) -> list[torch.Tensor]:
        """Saliency or influence (N,) of each micro-batch's response tokens, from the stage that holds the leaf."""
        if not micros:
            return []
        sizes = [m.at.token.shape[0] for m in micros]
        flat = torch.zeros(sum(sizes), device=get_device_id())
        for out, micro in zip(flat.split(sizes), micros, strict=True):
            if micro.influence is not None:
                at = micro.at.predicting if self.request.alignment == "predictor" else micro.at.token
                out.copy_(micro.part.pick(self.share.gather(micro.influence), at))
        if mpu.get_pipeline_model_parallel_world_size() > 1:
            torch.distributed.all_reduce(flat, group=mpu.get_pipeline_model_parallel_group())
        return list(flat.split(sizes))


def _linked(value: torch.Tensor, link: dict[str, torch.Tensor]) -> torch.Tensor:
    """``value`` with a zero gradient to the chunk's input, if it has one."""
    received = link.pop("input", None)
    return value if received is None else value + (received * 0).sum()
