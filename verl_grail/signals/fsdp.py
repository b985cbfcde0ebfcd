"""The signal pass on verl's FSDP engine (verl/workers/engine/fsdp/transformer_impl.py, FSDPEngineWithLMHead).

One forward per micro-batch gives log-probs, entropy and gradient-activation vectors; micro-batches of selected rows
also run a backward to the leaf. The engine prepares the inputs (padding, packing, Ulysses slices) exactly as for its
own log-prob pass; what differs is that the output layer answers in token chunks, inside the model's forward, where
its weight is unsharded.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils.device import get_device_id, get_device_name

from verl_grail.config import ConfigError
from verl_grail.core.grail import path_scales
from verl_grail.core.head import HeadResult
from verl_grail.core.oar_g import influence, noise
from verl_grail.signals.batches import Collected, micro_batch, pass_inputs, positions_of
from verl_grail.signals.headrun import HeadRun, OutputLayer
from verl_grail.signals.hf import ModelParts, base_model, check_model
from verl_grail.signals.hooks import Leaf, checkpointing_in_eval, replaced_head, settle_fsdp1
from verl_grail.signals.measure import measure_of
from verl_grail.signals.positions import Positions
from verl_grail.signals.request import Column, PassRequest
from verl_grail.signals.selective import Needed, can_select, needed_rows, selective_backward


def check_engine(engine: Any, leaf: str) -> ModelParts:
    """Refuse an engine or model that the pass cannot work with; returns the model's parts.

    Raises:
        ConfigError: names the config key and the mend.
    """
    if getattr(engine, "scaler", None) is not None:
        raise ConfigError(
            "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp16 underflows answer-loss gradients: "
            "set it to bf16 or fp32"
        )
    return check_model(engine.module, leaf)


class Slice:
    """This rank's part of the flattened micro-batch under Ulysses; the whole of it without."""

    def __init__(self, engine: Any, at: Positions, length: int):
        self.group = engine.ulysses_parallel_group if engine.use_ulysses_sp else None
        self.length = length
        self.start = 0 if self.group is None else torch.distributed.get_rank(self.group) * length
        self.mine = self.holds(at.predicting)
        """(N,) bool: response tokens whose predicting state is here."""
        self.predicting = at.predicting[self.mine] - self.start

    def holds(self, index: torch.Tensor) -> torch.Tensor:
        """Which of the flat indices lie in this part."""
        return (index >= self.start) & (index < self.start + self.length)

    def gather(self, values: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
        """Values of this rank's entries -> values of all N entries."""
        if self.group is None:
            return values
        out = values.new_zeros(mine.shape[0])
        out[mine] = values
        return self.total(out)

    def pick(self, flat: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """``flat[index]`` where ``flat`` holds this rank's part of the sequence."""
        mine = self.holds(index)
        return self.gather(flat[index[mine] - self.start], mine)

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks that share the sequences."""
        if self.group is not None:
            torch.distributed.all_reduce(value, group=self.group)
        return value


class _Head:
    """Stands in for the output layer during one forward.

    It returns a scalar whose gradient is that of the answer loss, ``sum_t <h_t, dL/dh_t>`` with the cotangents held
    constant. The scalar leaves the model as its output, because FSDP2 hangs its backward hooks on outputs.
    """

    def __init__(self, owner: SignalPass, run: HeadRun):
        self._head, self._engine, self._run = owner.parts.head, owner.engine, run
        self.part: Slice
        self.surrogate: torch.Tensor

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        flat, at = hidden.flatten(0, -2), self._run.at
        part = self.part = Slice(self._engine, at, flat.shape[0])
        states = flat[part.predicting]
        # read here: FSDP shows the whole weight inside the forward only
        cotangent = self._run.evaluate(states.detach(), part, OutputLayer(self._project, self._head.weight))
        if not torch.is_grad_enabled():
            return hidden.new_zeros(1, 1, 1)
        # the zero keeps the graph whole where a stand-in, or this rank's part, has no answer position
        surrogate = (states[at.answer[part.mine]].float() * cotangent).sum() + hidden.sum() * 0
        return surrogate.view(1, 1, 1)

    def _project(self, states: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(states, self._head.weight, self._head.bias)


class SignalPass:
    """One pass over the rows of this rank; every rank runs the same micro-batches (see `schedule`)."""

    def __init__(self, engine: Any, request: PassRequest):
        self.engine = engine
        self.request = request
        self.parts = check_engine(engine, request.leaf)
        self._measure = measure_of(request)
        # a user's function may look at the prompt's gradients
        self._selective = request.measure is None and can_select(base_model(engine.module).config)

    def run(self, data: TensorDict) -> dict[str, torch.Tensor]:
        """Run the pass; the engine must be in its eval mode.

        Args:
            data: this rank's rows with the fields of `PASS_FIELDS`.

        Returns:
            ``log_probs`` and ``entropy`` (jagged, prompt + response, as verl's), ``saliency`` (jagged, response) where
            there are backward micro-batches, ``gradient_vector`` (B, d) float32 if asked for. Rows that were not run,
            or not for that signal, hold zeros.
        """
        request = self.request
        data = pass_inputs(data, self.engine.use_remove_padding, request.temperature)
        collected = Collected(data, self.parts.head.in_features)
        with checkpointing_in_eval(self.parts.layers, request.leaf) if request.recompute else nullcontext():
            for index in range(request.n_forward + request.n_backward):
                rows, micro = micro_batch(data, index)
                micro = micro.to(get_device_id())
                at = positions_of(micro, self.engine.use_remove_padding)
                result, saliency = self._micro_batch(micro, at, index >= request.n_forward)
                collected.add(rows, at, result, saliency)
        return collected.output(request)

    def _micro_batch(self, micro: TensorDict, at: Positions, backward: bool) -> tuple[HeadResult, torch.Tensor | None]:
        """Head results of a micro-batch and, with a backward, saliency or influence of its N response tokens."""
        request = self.request
        if not backward:
            run = HeadRun(request, at)
            with torch.no_grad():
                self._forward(self._inputs(micro), run)
            return run.result, None
        if request.method == "grail":
            run, part, activation, gradient = (self._on_path if request.ig_steps else self._at_leaf)(micro, at)
            flat = self._measure(activation, gradient).flatten()
            return run.result, part.pick(flat, at.predicting if request.alignment == "predictor" else at.token)
        clean = HeadRun(request, at, mean_logits=True)
        with torch.no_grad():
            self._forward(self._inputs(micro), clean)
        leaf = Leaf(self.parts, "embeddings", move=lambda e: e + self._noise(micro, at, e))
        part, gradient = self._gradient(micro, HeadRun(request, at, clean=clean.mean), leaf)
        return clean.result, part.pick(influence(leaf.activation, gradient).flatten(), at.token)

    def _at_leaf(self, micro: TensorDict, at: Positions) -> tuple[HeadRun, Slice, torch.Tensor, torch.Tensor]:
        run, leaf = HeadRun(self.request, at, grail=True), Leaf(self.parts, self.request.leaf)
        part, gradient = self._gradient(micro, run, leaf)
        return run, part, leaf.activation, gradient

    def _on_path(self, micro: TensorDict, at: Positions) -> tuple[HeadRun, Slice, torch.Tensor, torch.Tensor]:
        """As `_at_leaf`, with the mean gradient on the line from zero to the leaf (Integrated Gradients), float32.

        Every rank goes through all points with every micro-batch, stand-ins included, so collectives still meet.
        """
        request = self.request
        run = HeadRun(request, at)
        with torch.no_grad():
            self._forward(self._inputs(micro), run)
        total: Any = 0.0
        for scale in path_scales(request.ig_steps):
            leaf = Leaf(self.parts, request.leaf, move=partial(torch.mul, other=scale))
            part, gradient = self._gradient(micro, HeadRun(request, at, alone=True), leaf)
            total = total + gradient.float()
        return run, part, leaf.activation, total / request.ig_steps

    def _gradient(self, micro: TensorDict, run: HeadRun, leaf: Leaf) -> tuple[Slice, torch.Tensor]:
        inputs = self._inputs(micro)
        with leaf(), selective_backward(self.parts.layers, self._needed(run.at, inputs["input_ids"].numel())):
            head = self._forward(inputs, run)
            (gradient,) = torch.autograd.grad(head.surrogate, [leaf.value])
        settle_fsdp1(self.engine.module)
        return head.part, gradient

    def _needed(self, at: Positions, length: int) -> Needed | None:
        """Positions of this rank's part that the backward goes through; None: all, also the prompt's."""
        if not self._selective:
            return None
        part = Slice(self.engine, at, length)
        rows = needed_rows(at)
        return Needed(rows[part.holds(rows)] - part.start, length)

    def _noise(self, micro: TensorDict, at: Positions, embeddings: torch.Tensor) -> torch.Tensor:
        """Noise on the response embeddings of the whole micro-batch, cut to this rank's part."""
        request, width = self.request, embeddings.shape[-1]
        rows = [
            noise(request.seed, request.step, int(key), (int(n), width), request.noise_std)
            for key, n in zip(micro["signal_plan"][:, Column.NOISE_KEY], at.response_lengths, strict=True)
        ]
        part = Slice(self.engine, at, embeddings.shape[:-1].numel())
        mine = part.holds(at.token)
        flat = embeddings.new_zeros(part.length, width, dtype=torch.float32)
        flat[at.token[mine] - part.start] = torch.cat(rows).to(flat.device)[mine]
        return flat.view(embeddings.shape).to(embeddings.dtype)

    def _inputs(self, micro: TensorDict) -> dict[str, Any]:
        """The model's arguments, as the engine prepares them."""
        return self.engine.prepare_model_inputs(micro_batch=micro)[0]

    def _forward(self, inputs: dict[str, Any], run: HeadRun) -> _Head:
        """One forward of the model whose output layer answers for ``run``."""
        head = _Head(self, run)
        with self._autocast(), replaced_head(self.parts.head, head):
            head.surrogate = self.engine.module(**inputs, use_cache=False).logits.sum()
        return head

    def _autocast(self):
        dtype = getattr(self.engine, "_autocast_dtype", torch.bfloat16)
        return nullcontext() if dtype == torch.float32 else torch.autocast(get_device_name(), dtype=dtype)
