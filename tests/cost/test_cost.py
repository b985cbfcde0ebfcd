"""Formulas of the cost estimates against counts of the real thing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.signals.engines import PlainEngine, run_pass, schedule_rows
from tests.signals.tiny import Row, build_model
from tests.signals.traffic import flops_of
from verl_grail.cost.flops import Workload, attention, body, head, step_cost
from verl_grail.cost.memory import Parallel, memory
from verl_grail.cost.shapes import KNOWN, ModelShape
from verl_grail.signals.schedule import Limits


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_and_forward_flops_are_those_of_transformers(kind, tied):
    model = build_model(
        kind, tied=tied, hidden_size=64, intermediate_size=160, vocab_size=500, attn_implementation="eager"
    )
    shape = ModelShape.from_config(model.config.to_dict())
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=5e-3)
    ids = torch.randint(0, 500, (1, 96))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=ids)
    square = 2 * shape.layers * shape.heads * shape.head_dim * 96 * 96 * 2  # the counter counts the whole square
    causal = 2 * shape.layers * shape.heads * shape.head_dim * 96 * 97
    assert body(shape, 96) + head(shape, 96) == pytest.approx(
        counter.get_total_flops() - square + causal, rel=1e-3
    )  # rotary angles


def test_published_sizes():
    """Parameter counts as the models' cards give them."""
    given = {"Qwen/Qwen3-4B": 4.0e9, "Qwen/Qwen3-8B": 8.2e9, "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": 8.03e9}
    for name, count in given.items():
        assert KNOWN[name].parameters == pytest.approx(count, rel=0.01)
    assert KNOWN["OctoThinker/OctoThinker-3B-Short-Base"].parameters == pytest.approx(3.21e9, rel=0.01)


def test_a_mixture_of_experts_is_not_guessed_at():
    with pytest.raises(ValueError, match="experts"):
        ModelShape.from_config({"num_experts": 4})
    with pytest.raises(ValueError, match="hidden_size"):
        ModelShape.from_config({"num_attention_heads": 4, "num_hidden_layers": 2})


def test_saliency_adds_a_backward_to_activations_alone():
    """One epoch without recomputation: 1 + 3 forwards; every row selected adds one, and attention once more."""
    shape = KNOWN["Qwen/Qwen3-8B"]
    work = Workload(rows=8, prompt=100, response=900, recompute=False, saliency=1.0, answer=0, selective=False)
    cost = step_cost(shape, work)
    assert cost.base == 4 * 8 * (body(shape, 1000) + head(shape, 1000))
    assert cost.saliency == 8 * (body(shape, 1000) + attention(shape, 1000)) and cost.vectors == cost.anchors == 0
    assert step_cost(shape, replace(work, saliency=0.5)).saliency * 2 == cost.saliency
    assert step_cost(shape, replace(work, noisy=True)).saliency == cost.saliency + 8 * body(shape, 1000)
    skipped = 36 * 2 * 100 * shape.block  # the prompt
    assert step_cost(shape, replace(work, selective=True)).saliency == cost.saliency - 8 * skipped


def test_saliency_and_a_path_cost_what_the_pass_computes():
    """FLOPs that a backward, and Integrated Gradients, add, counted on the pass itself."""
    size = dict(hidden_size=64, intermediate_size=160, vocab_size=500, attn_implementation="eager")
    model = build_model("llama", **size)
    shape = ModelShape.from_config(model.config.to_dict())
    counted = {}
    for steps, answer in ((None, (0, 0)), (0, (52, 56)), (1, (52, 56)), (4, (52, 56))):
        rows = [Row([5] * 8, [7] * 56, answer)]
        order, plans, request = schedule_rows(rows, 1, Limits(rows=1), ig_steps=steps or 0)
        counted[steps] = flops_of(lambda a=(rows, order[0], plans, request): run_pass(PlainEngine(model), *a))
    square = 2 * shape.layers * shape.heads * shape.head_dim * 64 * 64 * 2  # the counter counts the whole square
    whole = square - attention(shape, 64)
    work = Workload(rows=1, prompt=8, response=56, recompute=False, saliency=1.0, answer=4)
    # an attention product twice in a backward; rotary angles are left out
    assert counted[0] - counted[None] == pytest.approx(step_cost(shape, work).saliency + 2 * whole, rel=1e-3)
    path = step_cost(shape, replace(work, path=3)).saliency
    assert counted[4] - counted[1] == pytest.approx(path + 3 * 3 * whole, rel=1e-3)


def test_memory_is_spread_over_gpus():
    shape = KNOWN["Qwen/Qwen3-8B"]
    one, eight = (memory(shape, Parallel(n), 10240, 512) for n in (1, 8))
    assert one.state == pytest.approx(16 * shape.parameters, rel=0.02)
    assert eight.state < one.state / 6
    tensor = memory(shape, Parallel(8, tensor=4, fsdp=False), 10240, 512)
    assert tensor.logits == pytest.approx(eight.logits / 4, rel=1e-6) and tensor.signal < eight.signal
    assert eight.signal_pass < eight.training  # what the pass holds is less than the logits of training
