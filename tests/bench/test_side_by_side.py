"""The bench's counted parts against the real passes, its baseline against autograd, its arithmetic, its results."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from pathlib import Path

import measuring
import papers
import pytest
import torch
from counting import Parts, added, causal_flops, count_parts, qwen3_config
from setting import DEEP, TINY, make_rollouts
from ways import METHODS, Ways

import verl_grail.signals.fsdp as fsdp
from tests.signals.engines import PlainEngine, build_engine, run_pass, run_ranks, schedule_rows
from tests.signals.tiny import Row, build_model, reference
from verl_grail.cost.flops import Workload, step_cost
from verl_grail.cost.shapes import KNOWN, ModelShape
from verl_grail.signals.schedule import Limits

RESULTS = Path(__file__).parents[2] / "scripts" / "bench" / "results" / "side_by_side.json"
PROMPT, RESPONSE, ANSWER = 24, 40, 5
SIZE = dict(
    layers=3, hidden_size=64, intermediate_size=96, vocab_size=300, num_attention_heads=4, head_dim=16,
    attn_implementation="eager",
)  # fmt: skip


def model_and_shape(checkpointing: bool = False):
    model = build_model("qwen3", **SIZE)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, ModelShape.from_config(model.config.to_dict())


def live_flops(model, answer=(0, 0), vector=(0, 0), **request) -> int:
    """FLOPs of the real pass over one sequence."""
    rows = [Row([5] * PROMPT, [7] * RESPONSE, answer, vector)]
    order, plans, asked = schedule_rows(rows, 1, Limits(rows=1), **request)
    call = lambda: run_pass(PlainEngine(model), rows, order[0], plans, asked)  # noqa: E731
    return causal_flops(call, PROMPT + RESPONSE).total


@pytest.mark.parametrize("checkpointing", [False, True])
def test_parts_counted_without_content_are_those_of_the_real_pass(monkeypatch, checkpointing):
    model, shape = model_and_shape(checkpointing)
    parts = count_parts(qwen3_config(shape), PROMPT, RESPONSE, ANSWER, checkpointing)
    at_the_end = (RESPONSE - ANSWER, RESPONSE)
    assert live_flops(model) == parts.forward
    assert live_flops(model, at_the_end) == parts.forward + parts.saliency
    assert live_flops(model, vector=(0, RESPONSE), vectors=True) == parts.forward + parts.vector == parts.anchor
    monkeypatch.setattr(fsdp, "can_select", lambda config: False)
    assert live_flops(model, at_the_end) == parts.forward + parts.saliency_whole
    assert parts.saliency < parts.saliency_whole


def _count_verl(rank, path, checkpointing, setting):
    ways = Ways(build_engine(path, attention="eager", checkpointing=checkpointing), setting, make_rollouts(setting))
    tokens = setting.prompt + setting.response
    calls = (ways.log_probs, ways.train, ways.authors_saliency, ways.authors_vectors)
    return [causal_flops(call, tokens).total for call in calls]


@pytest.mark.layout
@pytest.mark.parametrize("checkpointing", [False, True])
def test_verls_and_the_authors_parts_are_those_of_the_live_engine(tmp_path, checkpointing):
    model, shape = model_and_shape()
    model.save_pretrained(tmp_path)
    setting = TINY.changed(vocab=300, prompt=PROMPT, response=RESPONSE, prompts=1, group=4, micro_batch=2)
    (counted,) = run_ranks(1, _count_verl, str(tmp_path), checkpointing, setting)
    parts = count_parts(qwen3_config(shape), PROMPT, RESPONSE, ANSWER, checkpointing)
    one_micro_batch = [parts.log_prob, parts.train, parts.authors_saliency]
    # rotary angles are computed once for a micro-batch of two
    assert counted[:3] == pytest.approx([4 * n for n in one_micro_batch], rel=1e-3)
    assert counted[3] == (2 + 1) * parts.authors_vector  # half of the rollouts, and the expert solution


def test_the_authors_way_computes_the_signals():
    """The baseline does what it stands for: saliency and vectors of plain autograd."""
    setting = TINY.changed(vocab=97, prompt=6, response=14, answer=3, prompts=1, group=2, passing=1.0, micro_batch=2)
    rollouts, model = make_rollouts(setting), build_model()
    ways = Ways(PlainEngine(model), setting, rollouts)
    saliency, vectors = ways.authors_saliency(), ways.authors_vectors()
    for i, row in enumerate(rollouts.rows):
        want = reference(model, row)
        torch.testing.assert_close(saliency[i], want.saliency, atol=1e-5 * want.saliency.max().item(), rtol=1e-4)
        torch.testing.assert_close(vectors[i], want.vector, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(vectors[2], reference(model, rollouts.anchors[0]).vector, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", papers.MODELS)
def test_the_formulas_of_check_are_what_is_counted_at_the_papers_sizes(name):
    parts = papers.counted(KNOWN[name])
    tokens = dict(prompt=papers.PROMPT, response=papers.RESPONSE, answer=papers.ANSWER)
    cost = step_cost(KNOWN[name], Workload(rows=1, recompute=False, saliency=1.0, vectors=1.0, anchors=1, **tokens))
    found = [parts.log_prob, parts.train, parts.saliency, parts.vector, parts.anchor]
    # rotary angles are left out of the formulas
    assert found == pytest.approx([cost.log_probs, cost.training, cost.saliency, cost.vectors, cost.anchors], rel=1e-6)


def test_what_is_added_by_hand():
    parts = Parts(
        log_prob=100, train=300, forward=90, saliency=80, saliency_attention=20, saliency_whole=95, vector=10,
        anchor=160, body=85, authors_saliency=200, authors_vector=120,
    )  # fmt: skip
    found = added(parts, epochs=2, selected=0.5)
    assert found == pytest.approx({
        "plugin": (90 - 100 + 40) / 700, "limit": 47.5 / 700, "authors": 200 / 700
    })  # fmt: skip
    found = added(parts, epochs=1, passing=0.5, group=16)
    assert found["plugin"] == pytest.approx((90 - 100 + 5 + 10) / 400)
    assert found["authors"] == pytest.approx((0.5 + 1 / 16) * 120 / 400) and found["limit"] == pytest.approx(15 / 400)
    noisy = added(parts, epochs=1, selected=1.0, noisy=True)
    assert noisy["plugin"] == pytest.approx((90 - 100 + 80 + 85) / 400)
    assert noisy["limit"] == pytest.approx((95 + 85) / 400)


def test_times_are_ratios_within_a_round():
    naps = {"verl": 0.01, "other": 0.03}
    calls = {name: lambda s=s: time.sleep(s) for name, s in naps.items()}
    ratios = measuring.paired_times(calls, 3)
    assert ratios["verl"] == [1.0] * 3 and len(ratios["other"]) == 3
    assert 1.5 < measuring.summary(ratios["other"])["median"] < 6
    assert measuring.summary([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}


def test_rollouts_have_the_shares_that_are_asked_for():
    rollouts = make_rollouts(TINY.changed(prompts=3, group=8, selected=0.25, passing=0.5))
    assert sum(r.answer != (0, 0) for r in rollouts.rows) == 6 and sum(r.vector != (0, 0) for r in rollouts.rows) == 12
    assert len(rollouts.anchors) == 3 and rollouts.anchors[1].prompt == rollouts.rows[8].prompt


def test_kept_results_are_what_the_code_counts():
    """Counts do not depend on the machine: those of one model are made again, the targets follow from them."""
    kept = json.loads(RESULTS.read_text())["papers"]
    name = papers.MODELS[0]
    again = asdict(papers.counted(KNOWN[name]))
    assert kept["models"][name]["parts"] == again
    for was, now in zip(kept["targets"], papers.targets(kept), strict=True):
        assert was == {k: pytest.approx(v, rel=1e-4) if isinstance(v, float) else v for k, v in now.items()}
    assert papers.shares(Parts(**again))["gar, half passing"]["1"]["plugin"] == pytest.approx(
        kept["models"][name]["added"]["gar, half passing"]["1"]["plugin"], rel=1e-4
    )


def test_the_cost_falls_with_epochs_and_with_fewer_selected_rows():
    parts = papers.counted(replace(KNOWN["Qwen/Qwen3-4B"], layers=2))
    by_epochs = [added(parts, n, selected=1.0)["plugin"] for n in (1, 2, 4)]
    assert by_epochs == sorted(by_epochs, reverse=True)
    assert added(parts, 1, selected=0.5)["plugin"] < added(parts, 1, selected=1.0)["plugin"]


def _peaks(rank, folder, setting):
    return measuring.pass_memory(setting, Path(folder))


@pytest.mark.layout
def test_a_backward_stays_near_the_memory_of_verls_pass(tmp_path):
    """With checkpointing, at Qwen3-8B's V / (L d) and half of its depth: at most 1.3 times verl's log-prob pass."""
    setting = DEEP["as Qwen3-8B"].changed(layers=18, vocab=1186, prompts=1)
    (found,) = run_ranks(1, _peaks, str(tmp_path), setting)
    peaks = {name: peak["to_log_probs"] for name, peak in found.items()}
    assert all(peaks[f"plugin: {name}"] <= 1.3 for name in METHODS)
    assert peaks["plugin: no signal"] < 0.8 and peaks["verl: log-probs, fused head"] < 0.8
    # the bound can fail: without recomputation, and with all of the responses' logits
    assert peaks["plugin: grail, recompute=False"] > 1.3 and peaks["authors' way: grail"] > peaks["plugin: grail"]
