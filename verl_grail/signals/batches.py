"""A rank's rows as micro-batches, and the results of the micro-batches as rows again; the same for every engine."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from verl_grail.core.head import HeadResult
from verl_grail.signals.positions import Positions, full_rows, locate_positions, response_rows
from verl_grail.signals.request import PASS_FIELDS, Column, PassRequest


def pass_inputs(data: TensorDict, packed: bool, temperature: float) -> TensorDict:
    """The fields of the pass, and the keys that ``prepare_model_inputs`` reads."""
    tensors = {name: data[name] for name in PASS_FIELDS}
    plan = tensors["signal_plan"]  # TransferQueue may hand equal rows back as a jagged tensor
    tensors["signal_plan"] = torch.stack(list(plan.unbind())) if plan.is_nested else plan
    return tu.get_tensordict(
        tensors,
        non_tensor_dict={"use_remove_padding": packed, "use_fused_kernels": False, "temperature": temperature},
    )


def micro_batch(data: TensorDict, index: int) -> tuple[list[int], TensorDict]:
    """Rows of one micro-batch of the plan and their data; no rows and a stand-in where this rank has none."""
    rows = torch.nonzero(data["signal_plan"][:, Column.MICRO_BATCH] == index).flatten().tolist()
    return rows, tu.index_select_tensor_dict(data, rows) if rows else stand_in(data)


def positions_of(micro: TensorDict, packed: bool) -> Positions:
    """Positions of a micro-batch's response tokens."""
    fields = ("input_ids", "responses", "response_mask", "signal_plan")
    return locate_positions(*(micro[f] for f in fields), packed)


class Collected:
    """Results of a pass by row of ``data``; rows that were not run, or not for a signal, hold zeros.

    Args:
        data: this rank's rows.
        width: hidden size.
    """

    def __init__(self, data: TensorDict, width: int):
        lengths = data["input_ids"].offsets().diff().tolist()
        self._log_probs = [torch.zeros(n) for n in lengths]
        self._entropy = [torch.zeros(n) for n in lengths]
        self._saliency = [torch.zeros(n) for n in data["responses"].offsets().diff().tolist()]
        self._vectors = torch.zeros(len(lengths), width)

    def add(self, rows: list[int], at: Positions, result: HeadResult, saliency: torch.Tensor | None) -> None:
        """Results of one micro-batch; ``saliency`` (N,) over its response tokens."""
        counts = torch.bincount(at.rows[at.vector], minlength=len(at.prompt_lengths)).clamp(min=1)
        means = (result.vector_sum / counts.unsqueeze(1)).cpu()
        log_probs, entropy = full_rows(result.log_probs, at), full_rows(result.entropy, at)
        for i, row in enumerate(rows):
            self._log_probs[row], self._entropy[row] = log_probs[i].cpu(), entropy[i].cpu()
            self._vectors[row] = means[i]
        if saliency is not None:
            self.add_saliency(rows, at, saliency)

    def add_saliency(self, rows: list[int], at: Positions, saliency: torch.Tensor) -> None:
        """Saliency or influence (N,) of one micro-batch's response tokens."""
        for row, values in zip(rows, response_rows(saliency, at), strict=False):  # a stand-in's row has no place
            self._saliency[row] = values.cpu()

    def output(self, request: PassRequest) -> dict[str, torch.Tensor]:
        """``log_probs`` and ``entropy`` (jagged, prompt + response, as verl's), ``saliency`` (jagged, response) where
        there are backward micro-batches, ``gradient_vector`` (B, d) float32 if asked for."""
        out: dict[str, torch.Tensor] = {}
        if request.log_probs:
            out["log_probs"], out["entropy"] = jagged(self._log_probs), jagged(self._entropy)
        if request.n_backward:
            out["saliency"] = jagged(self._saliency)
        if request.vectors:
            out["gradient_vector"] = self._vectors
        return out


def stand_in(data: TensorDict) -> TensorDict:
    """Two tokens of the first row, for a micro-batch in which this rank has no rows; its results are dropped."""
    ids, positions = data["input_ids"][0][:2], data["position_ids"][0][:2]
    plan = torch.zeros_like(data["signal_plan"][:1])
    tensors = {
        "input_ids": jagged([ids]),
        "position_ids": jagged([positions]),
        "prompts": jagged([ids[:1]]),
        "responses": jagged([ids[1:]]),
        "response_mask": jagged([torch.zeros_like(ids[1:])]),
        "signal_plan": plan,
    }
    keys = ("use_remove_padding", "use_fused_kernels", "temperature")
    return tu.get_tensordict(tensors, non_tensor_dict={k: tu.get_non_tensor_data(data, k, None) for k in keys})


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    """Rows of any lengths as one nested tensor."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
