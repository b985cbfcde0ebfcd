"""The signal pass on verl's FSDP engine (verl/workers/engine/fsdp/transformer_impl.py, FSDPEngineWithLMHead).

One forward per micro-batch gives log-probs, entropy and gradient-activation vectors; micro-batches of selected rows
also run a backward to the leaf. The engine prepares the inputs (padding, packing, Ulysses slices) exactly as for its
own log-prob pass; what differs is that the output layer answers in token chunks, inside the model's forward, where
its weight is unsharded.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name

from verl_grail.config import ConfigError
from verl_grail.core.grail import saliency_norm
from verl_grail.core.head import HeadQuery, HeadResult, answer_sums, kl_cotangent, run_head
from verl_grail.core.oar_g import influence, noise
from verl_grail.signals.hf import ModelParts, check_model
from verl_grail.signals.hooks import Leaf, checkpointing_in_eval, replaced_head, settle_fsdp1
from verl_grail.signals.positions import Positions, full_rows, locate_positions, response_rows
from verl_grail.signals.request import PASS_FIELDS, Column, PassRequest


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


class _HeadRun:
    """The output layer of one forward: called with hidden states, it keeps results and returns the surrogate.

    The surrogate is a scalar whose gradient is that of the answer loss, ``sum_t <h_t, dL/dh_t>`` with the cotangents
    held constant. It leaves the model as its output, because FSDP2 hangs its backward hooks on outputs.

    Args:
        grail: form GRAIL's cotangents.
        mean_logits: keep OAR-G's mean answer logits (its clean forward).
        clean: those of the clean forward: form OAR-G's cotangents, and nothing else.
    """

    def __init__(
        self,
        owner: SignalPass,
        at: Positions,
        grail: bool = False,
        mean_logits: bool = False,
        clean: torch.Tensor | None = None,
    ):
        self._head, self._request, self._engine = owner.parts.head, owner.request, owner.engine
        self._at, self._grail, self._mean_logits, self._clean = at, grail, mean_logits, clean
        self.part: Slice
        self.result: HeadResult
        self.mean: torch.Tensor
        self.surrogate: torch.Tensor

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.flatten(0, -2)
        part = self.part = Slice(self._engine, self._at, flat.shape[0])
        states = flat[part.predicting]
        cotangent = (self._results if self._clean is None else self._oar_g_cotangent)(states.detach())
        if not torch.is_grad_enabled():
            return hidden.new_zeros(1, 1, 1)
        answer = self._at.answer[part.mine]
        # the zero keeps the graph whole where a stand-in, or this rank's part, has no answer position
        surrogate = (states[answer].float() * cotangent).sum() + hidden.sum() * 0
        return surrogate.view(1, 1, 1)

    def _project(self, states: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(states, self._head.weight, self._head.bias)

    def _query(self, answer: bool, vector: bool) -> HeadQuery:
        at, mine, request = self._at, self.part.mine, self._request
        return HeadQuery(
            labels=at.labels[mine],
            rows=at.rows[mine],
            answer=at.answer[mine] if answer else torch.zeros_like(at.answer[mine]),
            vector=at.vector[mine] if vector else torch.zeros_like(at.vector[mine]),
            n_rows=at.prompt_lengths.shape[0],
            temperature=request.temperature,
            raw_gradient=request.raw_gradient,
        )

    def _results(self, states: torch.Tensor) -> torch.Tensor:
        part, query = self.part, self._query(self._grail, self._request.vectors)
        result = run_head(states, self._project, self._head.weight, query, self._request.chunk)
        self.result = HeadResult(
            part.gather(result.log_probs, part.mine),
            part.gather(result.entropy, part.mine),
            result.cotangent,
            part.total(result.vector_sum),
        )
        if self._mean_logits:
            self.mean = self._answer_logits(states)[0]
        return result.cotangent

    def _answer_logits(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total, count = (self.part.total(x) for x in answer_sums(states, self._query(True, False)))
        return self._project((total / count.clamp(min=1).unsqueeze(1)).to(states.dtype)).float(), count

    def _oar_g_cotangent(self, states: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            noisy, count = self._answer_logits(states)
            rows = kl_cotangent(self._clean, noisy, self._head.weight, count)
            return rows[self._at.rows[self.part.mine][self._at.answer[self.part.mine]]]


class SignalPass:
    """One pass over the rows of this rank; every rank runs the same micro-batches (see `schedule`)."""

    def __init__(self, engine: Any, request: PassRequest):
        self.engine = engine
        self.request = request
        self.parts = check_engine(engine, request.leaf)

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
        data = _inputs(data, self.engine.use_remove_padding, request.temperature)
        plan = data["signal_plan"]
        n_rows = plan.shape[0]
        lengths = data["input_ids"].offsets().diff().tolist()
        response_lengths = data["responses"].offsets().diff().tolist()
        log_probs = [torch.zeros(n) for n in lengths]
        entropy = [torch.zeros(n) for n in lengths]
        saliency = [torch.zeros(n) for n in response_lengths]
        vectors = torch.zeros(n_rows, self.parts.head.in_features)

        with checkpointing_in_eval(self.parts.layers, request.leaf):
            for index in range(request.n_forward + request.n_backward):
                rows = torch.nonzero(plan[:, Column.MICRO_BATCH] == index).flatten().tolist()
                micro = tu.index_select_tensor_dict(data, rows) if rows else _stand_in(data)
                micro = micro.to(get_device_id())
                at = locate_positions(
                    micro["input_ids"],
                    micro["responses"],
                    micro["response_mask"],
                    micro["signal_plan"],
                    self.engine.use_remove_padding,
                )
                backward = index >= request.n_forward
                result, micro_saliency = self._micro_batch(micro, at, backward)
                counts = torch.bincount(at.rows[at.vector], minlength=len(at.prompt_lengths)).clamp(min=1)
                means = (result.vector_sum / counts.unsqueeze(1)).cpu()
                outputs = (full_rows(result.log_probs, at), full_rows(result.entropy, at))
                s_rows = None if micro_saliency is None else response_rows(micro_saliency, at)
                for i, row in enumerate(rows):
                    log_probs[row], entropy[row] = outputs[0][i].cpu(), outputs[1][i].cpu()
                    vectors[row] = means[i]
                    if s_rows is not None:
                        saliency[row] = s_rows[i].cpu()

        out: dict[str, torch.Tensor] = {}
        if request.log_probs:
            out["log_probs"], out["entropy"] = _jagged(log_probs), _jagged(entropy)
        if request.n_backward:
            out["saliency"] = _jagged(saliency)
        if request.vectors:
            out["gradient_vector"] = vectors
        return out

    def _micro_batch(self, micro: TensorDict, at: Positions, backward: bool) -> tuple[HeadResult, torch.Tensor | None]:
        """Head results of a micro-batch and, with a backward, saliency or influence of its N response tokens."""
        request = self.request
        if not backward:
            with torch.no_grad():
                return self._forward(micro, _HeadRun(self, at)).result, None
        if request.method == "grail":
            run, leaf = _HeadRun(self, at, grail=True), Leaf(self.parts, request.leaf)
            gradient = self._gradient(micro, run, leaf)
            flat = saliency_norm(leaf.activation, gradient).flatten()
            return run.result, run.part.pick(flat, at.token - 1 if request.alignment == "predictor" else at.token)
        clean = _HeadRun(self, at, mean_logits=True)
        with torch.no_grad():
            self._forward(micro, clean)
        run = _HeadRun(self, at, clean=clean.mean)
        leaf = Leaf(self.parts, "embeddings", add=lambda e: self._noise(micro, at, e))
        gradient = self._gradient(micro, run, leaf)
        return clean.result, run.part.pick(influence(leaf.activation, gradient).flatten(), at.token)

    def _gradient(self, micro: TensorDict, run: _HeadRun, leaf: Leaf) -> torch.Tensor:
        with leaf():
            self._forward(micro, run)
            (gradient,) = torch.autograd.grad(run.surrogate, [leaf.value])
        settle_fsdp1(self.engine.module)
        return gradient

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

    def _forward(self, micro: TensorDict, run: _HeadRun) -> _HeadRun:
        """One forward of the model whose output layer is ``run``."""
        inputs, _ = self.engine.prepare_model_inputs(micro_batch=micro)
        with self._autocast(), replaced_head(self.parts.head, run):
            run.surrogate = self.engine.module(**inputs, use_cache=False).logits.sum()
        return run

    def _autocast(self):
        dtype = getattr(self.engine, "_autocast_dtype", torch.bfloat16)
        return nullcontext() if dtype == torch.float32 else torch.autocast(get_device_name(), dtype=dtype)


def _inputs(data: TensorDict, packed: bool, temperature: float) -> TensorDict:
    """The fields of the pass, and the keys that ``prepare_model_inputs`` reads."""
    tensors = {name: data[name] for name in PASS_FIELDS}
    plan = tensors["signal_plan"]  # TransferQueue may hand equal rows back as a jagged tensor
    tensors["signal_plan"] = torch.stack(list(plan.unbind())) if plan.is_nested else plan
    return tu.get_tensordict(
        tensors,
        non_tensor_dict={"use_remove_padding": packed, "use_fused_kernels": False, "temperature": temperature},
    )


def _stand_in(data: TensorDict) -> TensorDict:
    """Two tokens of the first row, for a micro-batch in which this rank has no rows; its results are dropped."""
    ids, positions = data["input_ids"][0][:2], data["position_ids"][0][:2]
    plan = torch.zeros_like(data["signal_plan"][:1])
    tensors = {
        "input_ids": _jagged([ids]),
        "position_ids": _jagged([positions]),
        "prompts": _jagged([ids[:1]]),
        "responses": _jagged([ids[1:]]),
        "response_mask": _jagged([torch.zeros_like(ids[1:])]),
        "signal_plan": plan,
    }
    keys = ("use_remove_padding", "use_fused_kernels", "temperature")
    return tu.get_tensordict(tensors, non_tensor_dict={k: tu.get_non_tensor_data(data, k, None) for k in keys})


def _jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
