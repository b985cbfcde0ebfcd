"""Integrated Gradients of the answer loss against plain autograd, completeness, and on two FSDP2 ranks."""

from __future__ import annotations

import pytest
import torch

from tests.signals.engines import PlainEngine, build_engine, run_pass, run_ranks, schedule_rows
from tests.signals.tiny import Row, attribution, build_model, norm, ragged_rows, reference, save_model
from verl_grail.core.grail import path_scales
from verl_grail.signals.request import EMPTY_PLAN, Column, PassRequest
from verl_grail.signals.schedule import Limits

ROWS = ragged_rows()
TAU = 0.7


def answer_loss(model, row: Row, logits: torch.Tensor) -> torch.Tensor:
    p, (a, b) = len(row.prompt), row.answer
    labels = row.ids[p + a : p + b]
    return torch.nn.functional.cross_entropy(logits[0, p + a - 1 : p + b - 1] / TAU, labels, reduction="sum")


def path_reference(model, row: Row, steps: int, leaf: str = "embeddings", measure=norm) -> torch.Tensor:
    """Saliency (prompt + response,) by definition: the leaf x the mean of dL/d leaf at (k + 1/2) / steps of it."""
    saliency = torch.zeros(len(row.ids))
    if row.answer[1] == 0:
        return saliency
    blocks = model.model.layers
    module = {"embeddings": model.get_input_embeddings(), "middle": blocks[len(blocks) // 2 - 1]}[leaf]
    total, kept = 0.0, {}
    for k in range(steps):

        def scaled(_module, _args, output, k=k):
            kept["whole"] = output.detach()
            kept["leaf"] = (output.detach() * ((k + 0.5) / steps)).requires_grad_()
            return kept["leaf"]

        handle = module.register_forward_hook(scaled)
        loss = answer_loss(model, row, model(input_ids=row.ids.unsqueeze(0)).logits)
        handle.remove()
        total = total + torch.autograd.grad(loss, kept["leaf"])[0] / steps
    return measure(kept["whole"], total)[0]


def compare(results, model, steps: int, rows=ROWS, alignment="token", **options) -> None:
    """Saliency against `path_reference`; log-probs, entropy and vectors as without a path."""
    for i, row in enumerate(rows):
        got, p, plain = results[i], len(row.prompt), reference(model, row, TAU)
        torch.testing.assert_close(got["log_probs"], plain.log_probs, atol=3e-6, rtol=3e-6)
        torch.testing.assert_close(got["entropy"], plain.entropy, atol=3e-6, rtol=3e-6)
        torch.testing.assert_close(got["gradient_vector"], plain.vector, atol=1e-6, rtol=1e-4)
        want = path_reference(model, row, steps, **options)
        want = want[p:] if alignment == "token" else want[p - 1 : -1]
        torch.testing.assert_close(got["saliency"], want, atol=1e-5 * max(want.max().item(), 1e-3), rtol=1e-4)


def plain_pass(model, rows=ROWS, **request):
    order, plans, request = schedule_rows(rows, 1, Limits(rows=3), temperature=TAU, vectors=True, **request)
    return run_pass(PlainEngine(model), rows, order[0], plans, request)


def test_the_points_of_the_midpoint_rule():
    assert path_scales(1) == [0.5] and path_scales(4) == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_the_pass_equals_plain_autograd(kind):
    model = build_model(kind)
    compare(plain_pass(model, ig_steps=5), model, 5)


def test_with_checkpointing_another_leaf_alignment_and_measure():
    model = build_model("qwen3", layers=4)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    options = dict(leaf="middle", alignment="predictor")
    results = plain_pass(model, ig_steps=3, measure="tests.signals.tiny:attribution", **options)
    compare(results, model, 3, measure=attribution, **options)


def signed(activation: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """A token's attribution, for ``algorithm.grail.measure``."""
    return (activation * gradient).sum(-1)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_attributions_add_up_to_the_change_of_the_loss(kind):
    """Completeness: sum over all tokens -> L(e) - L(0), as 1 / steps^2.

    The norms' epsilon is large, so that the loss is smooth on the path: RMSNorm does not see the length of its input,
    so with the usual epsilon most happens next to zero.
    """
    model = build_model(kind, rms_norm_eps=1.0)
    # the predictor alignment of a one-token prompt takes in every token but the last, which has no gradient
    row = Row([5], [7, 40, 12, 33, 60, 21, 9], answer=(4, 6))
    e = model.get_input_embeddings()(row.ids.unsqueeze(0)).detach()
    with torch.no_grad():
        change = answer_loss(model, row, model(inputs_embeds=e).logits)
        change = (change - answer_loss(model, row, model(inputs_embeds=0 * e).logits)).item()
    gaps = []
    for steps in (4, 16, 64):
        signal = dict(measure=f"{__name__}:signed", alignment="predictor")
        total = plain_pass(model, [row], ig_steps=steps, **signal)[0]["saliency"].sum().item()
        gaps.append(abs(total - change) / abs(change))
    at_the_leaf = plain_pass(model, [row], **signal)[0]["saliency"].sum().item()
    assert gaps[1] < gaps[0] / 10 and gaps[2] < gaps[1] / 5 and gaps[2] < 1e-3
    assert abs(at_the_leaf - change) / abs(change) > 0.05  # which gradient x activation does not


def _job(rank, path, options, rows, order, plans, request):
    return run_pass(build_engine(path, **options), rows, order[rank], plans, request)


@pytest.mark.layout
@pytest.mark.parametrize("packed,checkpointing", [(False, True), (True, False)])
def test_all_selected_rows_on_one_of_two_ranks(tmp_path, packed, checkpointing):
    """The other rank goes through every point of the path with stand-ins."""
    path, model = save_model(tmp_path, kind="qwen3"), build_model("qwen3")
    selected = [r for r in ROWS if r.answer[1]][:4]
    rows = selected + [Row(r.prompt, r.response, (0, 0), r.vector, r.holes) for r in ROWS[:4]]
    plans = []
    for i, row in enumerate(rows):
        plan = list(EMPTY_PLAN)
        plan[Column.MICRO_BATCH] = (2 if i < 4 else 0) + i % 2
        plan[Column.ANSWER_START], plan[Column.ANSWER_END] = row.answer
        plan[Column.VECTOR_START], plan[Column.VECTOR_END] = row.vector
        plans.append(tuple(plan))
    request = PassRequest(2, 2, vectors=True, temperature=TAU, ig_steps=3)
    options = dict(packed=packed, checkpointing=checkpointing)
    results = {}
    for part in run_ranks(2, _job, path, options, rows, [[0, 1, 2, 3], [4, 5, 6, 7]], plans, request):
        results.update(part)
    compare(results, model, 3, rows)
