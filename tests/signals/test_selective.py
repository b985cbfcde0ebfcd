"""The backward that skips prompts and what follows an answer: same saliency, fewer products, less memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import verl_grail.signals.fsdp as fsdp
from tests.signals.engines import PlainEngine, build_engine, run_pass, run_ranks, schedule_rows
from tests.signals.tiny import Row, build_model, norm, oar_g_reference, ragged_rows, reference, save_model
from tests.signals.traffic import flops_of
from verl_grail.core.oar_g import noise
from verl_grail.signals.positions import Positions
from verl_grail.signals.schedule import Limits
from verl_grail.signals.selective import Needed, can_select, needed_rows, selective_backward

ROWS = ragged_rows()


def positions(prompts, responses, answers) -> Positions:
    """Of packed rows."""
    rows = torch.repeat_interleave(torch.arange(len(prompts)), torch.tensor(responses))
    starts = [sum(prompts[: i + 1]) + sum(responses[:i]) for i in range(len(prompts))]
    token = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, responses, strict=True)])
    t = torch.cat([torch.arange(n) for n in responses])
    a, b = (torch.tensor([x[k] for x in answers])[rows] for k in (0, 1))
    nothing = torch.zeros_like(rows).bool()
    return Positions(
        token - 1, token, token, rows, (t >= a) & (t < b), nothing, torch.tensor(prompts), torch.tensor(responses)
    )


def test_positions_go_from_the_first_prediction_to_the_answers_last():
    at = positions([3, 2, 4], [5, 4, 3], [(2, 4), (0, 0), (1, 3)])
    # row 0: response at 3..7, answer at 5, 6; row 2: response at 18..20, answer at 19, 20
    assert needed_rows(at).tolist() == [2, 3, 4, 5, 17, 18, 19]


def plain(model, rows=ROWS, **request):
    order, plans, asked = schedule_rows(rows, 1, Limits(rows=3), **request)
    return run_pass(PlainEngine(model), rows, order[0], plans, asked)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["qwen3", "llama", "qwen3_moe"])
@pytest.mark.parametrize("alignment", ["token", "predictor"])
def test_saliency_is_that_of_plain_autograd(kind, alignment, checkpointing):
    model = build_model(kind)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert can_select(model.config) is (kind != "qwen3_moe")
    found = plain(model, alignment=alignment)
    for i, row in enumerate(ROWS):
        want, p = reference(model, row).saliency, len(row.prompt)
        want = want[p:] if alignment == "token" else want[p - 1 : -1]
        torch.testing.assert_close(
            found[i]["saliency"], want, atol=1e-5 * max(want.max().item(), 1e-3), rtol=1e-4, msg=f"row {i}"
        )


def test_influence_is_that_of_plain_autograd():
    model = build_model("qwen3")
    found = plain(model, method="oar_g", noise_std=1e-2, seed=7, step=3)
    for i, row in enumerate(ROWS):
        if row.answer[1]:
            want = oar_g_reference(model, row, noise(7, 3, i + 1, (len(row.response), 32), 1e-2))
            torch.testing.assert_close(found[i]["saliency"], want, atol=1e-5 * want.max().item(), rtol=1e-4)


@pytest.mark.parametrize("method", [{}, {"method": "oar_g", "noise_std": 1e-2}, {"ig_steps": 2}])
def test_without_recomputation_the_same_for_fewer_flops(method):
    """A model that trains with checkpointing: ``recompute=False`` saves a forward of the selected rows."""
    model = build_model("llama", attn_implementation="eager")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    found, flops = {}, {}
    for recompute in (True, False):
        order, plans, request = schedule_rows(ROWS, 1, Limits(rows=3), recompute=recompute, **method)
        engine = PlainEngine(model)
        found[recompute] = run_pass(engine, ROWS, order[0], plans, request)
        flops[recompute] = flops_of(lambda a=(engine, ROWS, order[0], plans, request): run_pass(*a))
    for i in range(len(ROWS)):
        torch.testing.assert_close(found[True][i]["saliency"], found[False][i]["saliency"], rtol=1e-5, atol=1e-9)
    assert flops[False] < 0.9 * flops[True]


def _both(rank, path, options, order, plans, request):
    engine = build_engine(path, **options)
    selected = run_pass(engine, ROWS, order[rank], plans, request)
    fsdp.can_select = lambda config: False  # in this forked process
    whole = run_pass(engine, ROWS, order[rank], plans, request)
    return {i: (selected[i]["saliency"], whole[i]["saliency"]) for i in selected}


@pytest.mark.layout
@pytest.mark.parametrize("packed,checkpointing", [(False, True), (True, False)])
def test_in_16_bit_on_two_ranks_the_saliency_is_that_of_the_whole_backward(tmp_path, packed, checkpointing):
    path = save_model(tmp_path, kind="qwen3")
    order, plans, request = schedule_rows(ROWS, 2, Limits(rows=3))
    options = dict(packed=packed, checkpointing=checkpointing, param_dtype="bf16")
    for part in run_ranks(2, _both, path, options, order, plans, request):
        for selected, whole in part.values():
            torch.testing.assert_close(selected, whole, rtol=2e-2, atol=1e-3 * max(whole.max().item(), 1e-6))


SEEN: list[torch.Tensor] = []


def watched(activation: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """A measure of a user's, which may look at the prompt."""
    SEEN.append(gradient)
    return norm(activation, gradient)


def test_a_function_of_the_users_sees_the_prompts_gradients_too(monkeypatch):
    row, model = Row([5, 6, 7], [8, 9, 10, 11, 12, 13], (3, 5)), build_model()
    SEEN.clear()
    plain(model, [row], measure=f"{__name__}:watched")
    assert (SEEN[0][0].norm(dim=-1)[:3] > 0).all()
    monkeypatch.setattr(fsdp, "measure_of", lambda request: watched)
    plain(model, [row])
    # the last token of the prompt predicts the first of the response
    assert [bool(n) for n in SEEN[1][0].norm(dim=-1)] == [False, False, True, *4 * [True], *2 * [False]]


def test_products_are_counted_at_needed_positions_alone(monkeypatch):
    """Of a prompt of 40 tokens and a response of 24 with the answer at 16..20: 20 positions."""
    model = build_model("llama", attn_implementation="eager")
    row = Row([5] * 40, [7] * 24, (16, 20))
    order, plans, request = schedule_rows([row], 1, Limits(rows=1))
    count = partial(flops_of, lambda: run_pass(PlainEngine(model), [row], order[0], plans, request))
    selective = count()
    monkeypatch.setattr(fsdp, "can_select", lambda config: False)
    whole = count()
    mlp, attention = 3 * 32 * 48, 32 * 8 * (2 * 4 + 2 * 2)
    assert whole - selective == 2 * 3 * (mlp + attention) * (64 - 20)


def test_layers_are_as_before_afterwards():
    model = build_model()
    x = torch.randn(1, 6, 32)
    layers = list(model.model.layers)
    linear = layers[0].mlp.gate_proj
    before = linear(x)
    every = torch.arange(6)
    with pytest.raises(RuntimeError, match="stop"), selective_backward(layers, Needed(every, 6)):
        torch.testing.assert_close(linear(x), before, rtol=0, atol=0)
        raise RuntimeError("stop")
    assert not any("forward" in vars(m) for m in model.modules())
    x.requires_grad_()
    linear(x).sum().backward()
    assert linear.weight.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_autocast_the_gradient_is_that_of_the_layer(dtype):
    """verl's FSDP engine runs its forward under autocast; every position asked for, so equal to the bit."""
    layer = build_model().model.layers[0]
    x = torch.randn(1, 6, 32)
    every = torch.arange(6)

    def gradient(needed):
        leaf = x.clone().requires_grad_()
        with selective_backward([layer], needed):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                out = layer.mlp.gate_proj(leaf)
            return torch.autograd.grad(out.float().square().sum(), leaf)[0]

    torch.testing.assert_close(gradient(Needed(every, 6)), gradient(None), rtol=0, atol=0)
