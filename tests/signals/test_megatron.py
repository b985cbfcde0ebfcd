"""The signal pass on verl's Megatron engine (forked gloo ranks, CPU modules) against the plain reference, fp32."""

from __future__ import annotations

import pytest
import torch

from tests.signals.engines import batch_of, run_ranks, schedule_rows
from tests.signals.megatron_engines import Layout, build_engine, run_pass, save_with_tokenizer
from tests.signals.tiny import Row, attribution, build_model, oar_g_reference, ragged_rows, reference
from verl_grail.core.oar_g import noise
from verl_grail.signals.request import EMPTY_PLAN, Column, PassRequest
from verl_grail.signals.schedule import Limits

pytest.importorskip("mbridge")
pytestmark = pytest.mark.layout
ROWS = ragged_rows()
TAU = 0.7
SIZE = dict(vocab_size=128, intermediate_size=64, layers=4)
NAMES = {
    "qwen3": dict(kind="qwen3", tied=False),
    "qwen3_tied": dict(kind="qwen3", tied=True),
    "llama": dict(kind="llama", tied=False),
    "llama_tied": dict(kind="llama", tied=True),
    "qwen3_moe": dict(kind="qwen3_moe", tied=False),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folder and reference model by name."""
    root = tmp_path_factory.mktemp("megatron")
    out = {}
    for name, kind in NAMES.items():
        model = build_model(**kind, **SIZE)
        out[name] = (save_with_tokenizer(root / name, model), model)
    return out


def _job(rank, path, layout, rows, order, plans, request):
    return run_pass(build_engine(path, layout), rows, order, plans, request)


def run(path, layout, limits, rows=ROWS, **request):
    order, plans, request = schedule_rows(rows, layout.dp, limits, temperature=TAU, vectors=True, **request)
    results = {}
    for part in run_ranks(layout.ranks, _job, path, layout, rows, order, plans, request):
        results.update(part)
    return results


def compare(results, model, rows=ROWS, leaf="embeddings", alignment="token", raw=False, loose=1.0):
    assert sorted(results) == list(range(len(rows)))
    for i, row in enumerate(rows):
        want = reference(model, row, TAU, leaf, raw)
        got, p = results[i], len(row.prompt)
        torch.testing.assert_close(got["log_probs"], want.log_probs, atol=5e-6 * loose, rtol=5e-6 * loose)
        torch.testing.assert_close(got["entropy"], want.entropy, atol=5e-6 * loose, rtol=5e-6 * loose)
        s = want.saliency[p:] if alignment == "token" else want.saliency[p - 1 : -1]
        atol = 1e-5 * loose * max(s.max().item(), 1e-3)
        torch.testing.assert_close(got["saliency"], s, atol=atol, rtol=1e-4 * loose)
        torch.testing.assert_close(got["gradient_vector"], want.vector, atol=2e-6 * loose, rtol=1e-4 * loose)


LAYOUTS = [
    Layout(),
    Layout(tp=2),
    Layout(tp=2, sequence_parallel=False),
    Layout(pp=2),
    Layout(pp=2, vpp=2),
    Layout(cp=2),
    Layout(dp=2),
    Layout(tp=2, pp=2),
    Layout(tp=2, cp=2),
    Layout(pp=2, cp=2),
    Layout(tp=2, pp=2, cp=2),
    Layout(tp=2, pp=2, vpp=2),
    Layout(dp=2, distributed_optimizer=True),
    Layout(cp=2, dp=2, per_token_loss=True),
    Layout(tp=2, pp=2, recompute="full"),
    Layout(tp=2, pp=2, recompute="selective"),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_layout_equals_the_reference(models, layout):
    path, model = models["qwen3"]
    compare(run(path, layout, Limits(tokens=40)), model)


@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_a_pass_that_recomputes_nothing(models, recompute):
    path, model = models["qwen3"]
    layout = Layout(tp=2, pp=2, recompute=recompute)
    compare(run(path, layout, Limits(tokens=40), recompute=False), model)


OTHERS = [
    ("qwen3_tied", Layout(tp=2, pp=2)),
    ("qwen3_tied", Layout(cp=2)),
    ("llama", Layout(tp=2, pp=2)),
    ("llama", Layout(cp=2)),
    # with pipeline stages mbridge's Llama looks for an lm_head.weight, which a tied model's folder does not hold
    ("llama_tied", Layout(cp=2)),
]


@pytest.mark.parametrize(("name", "layout"), OTHERS, ids=lambda v: str(v))
def test_other_models(models, name, layout):
    path, model = models[name]
    compare(run(path, layout, Limits(rows=3)), model)


EXPERTS = [
    Layout(),
    Layout(dp=2, ep=2),
    Layout(tp=2, ep=2),
    Layout(tp=2, pp=2, ep=2),
    Layout(pp=2, dp=2, ep=2, distributed_optimizer=True),
    Layout(cp=2, ep=2),
]


@pytest.mark.parametrize("layout", EXPERTS, ids=str)
def test_experts(models, layout):
    """Experts on different ranks: a rank's tokens go through experts of others and come back."""
    path, model = models["qwen3_moe"]
    compare(run(path, layout, Limits(tokens=40)), model)


@pytest.mark.parametrize("leaf", ["first", "middle", "last"])
@pytest.mark.parametrize("layout", [Layout(pp=2), Layout(tp=2, pp=2, vpp=2, recompute="full"), Layout(cp=2)], ids=str)
def test_the_stage_that_owns_the_leaf_is_found(models, leaf, layout):
    path, model = models["qwen3"]
    compare(run(path, layout, Limits(rows=4), leaf=leaf), model, leaf=leaf)


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(cp=2), Layout(pp=2)], ids=str)
def test_predictor_alignment_and_raw_gradient(models, layout):
    path, model = models["qwen3"]
    results = run(path, layout, Limits(rows=4), alignment="predictor", raw_gradient=True)
    compare(results, model, alignment="predictor", raw=True)


def test_a_measure_of_ones_own(models):
    path, model = models["qwen3"]
    results = run(path, Layout(tp=2, pp=2), Limits(rows=4), measure="tests.signals.tiny:attribution")
    for i, row in enumerate(ROWS):
        want = reference(model, row, TAU, measure=attribution).saliency[len(row.prompt) :]
        torch.testing.assert_close(results[i]["saliency"], want, atol=1e-5 * max(want.max().item(), 1e-3), rtol=1e-4)


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=2, pp=2), Layout(tp=2, cp=2), Layout(dp=2)], ids=str)
def test_oar_g(models, layout):
    path, model = models["qwen3"]
    results = run(path, layout, Limits(rows=3), method="oar_g", noise_std=1e-2, seed=5, step=3)
    for i, row in enumerate(ROWS):
        want = torch.zeros(len(row.response))
        if row.answer[1]:
            want = oar_g_reference(model, row, noise(5, 3, i + 1, (len(row.response), 32), 1e-2))
        torch.testing.assert_close(results[i]["saliency"], want, atol=2e-5 * max(want.max().item(), 1e-6), rtol=2e-3)
        torch.testing.assert_close(results[i]["log_probs"], reference(model, row, TAU).log_probs, atol=5e-6, rtol=5e-6)


def _lopsided_job(rank, path, layout, rows, order, plans, request):
    return run_pass(build_engine(path, layout), rows, order, plans, request)


def test_all_selected_rows_on_one_data_parallel_rank(models):
    """Rank 0 has every row with a backward and rank 1 none: stand-ins keep the schedules the same."""
    path, model = models["qwen3"]
    layout = Layout(tp=2, dp=2)
    rows = [Row(r.prompt, r.response, r.answer if i < 4 else (0, 0), r.vector, r.holes) for i, r in enumerate(ROWS)]
    rows[2] = Row(rows[2].prompt, rows[2].response, (3, 5), rows[2].vector)
    order, plans = [list(range(4)), list(range(4, 8))], []
    for i, row in enumerate(rows):
        plan = list(EMPTY_PLAN)
        plan[Column.MICRO_BATCH] = 1 + i // 2 if i < 4 else 0
        plan[Column.ANSWER_START], plan[Column.ANSWER_END] = row.answer
        plan[Column.VECTOR_START], plan[Column.VECTOR_END] = row.vector
        plans.append(tuple(plan))
    request = PassRequest(1, 2, temperature=TAU, vectors=True)
    results = {}
    for part in run_ranks(layout.ranks, _lopsided_job, path, layout, rows, order, plans, request):
        results.update(part)
    compare(results, model, rows)


def _train_job(rank, path, layout, rows, order, plans, request, with_pass):
    """Gradients of one training step, after a signal pass or without one, and verl's own log-probs and entropy."""
    from megatron.core import parallel_state as mpu
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import no_padding_2_padding

    engine = build_engine(path, layout)
    chunks = engine.module
    mine = order[mpu.get_data_parallel_rank()]
    data = batch_of([rows[i] for i in mine], [plans[i] for i in mine])
    options = dict(use_dynamic_bsz=False, micro_batch_size_per_gpu=2, max_response_len=30, temperature=TAU)
    tu.assign_non_tensor(data, calculate_entropy=True, **options)
    before = [p.main_grad.clone() for c in chunks for p in c.parameters() if hasattr(p, "main_grad")]
    ours = run_pass(engine, rows, order, plans, request) if with_pass else {}
    after = [p.main_grad for c in chunks for p in c.parameters() if hasattr(p, "main_grad")]
    untouched = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    no_grad = all(p.grad is None and p.requires_grad for c in chunks for p in c.parameters())

    with engine.eval_mode():
        theirs = engine.infer_batch(data.clone())

    def loss(model_output, data, dp_group=None):
        log_probs = no_padding_2_padding(model_output["log_probs"], data)
        mask = torch.nested.to_padded_tensor(data["response_mask"], 0)
        mask = torch.nn.functional.pad(mask, (0, log_probs.shape[1] - mask.shape[1]))
        return -(log_probs * mask).sum() / data["batch_num_tokens"] * data["dp_size"], {}

    with engine.train_mode():
        engine.optimizer_zero_grad()
        engine.forward_backward_batch(data.clone(), loss)
        gradients = [p.main_grad.clone() for c in chunks for p in c.parameters() if hasattr(p, "main_grad")]
    own = {}
    if engine.is_mp_src_rank_with_outputs():
        for k, i in enumerate(mine):
            p = len(rows[i].prompt)
            own[i] = {n: theirs["model_output"][n][k][p - 1 : -1] for n in ("log_probs", "entropy")}
    return ours, own, gradients, untouched and no_grad


TRAINED = [
    ("qwen3", Layout(tp=2)),
    ("qwen3", Layout(pp=2)),
    ("qwen3", Layout(dp=2, distributed_optimizer=True)),
    ("qwen3", Layout(cp=2)),
    ("qwen3_moe", Layout(dp=2, ep=2)),
]


@pytest.mark.parametrize(("name", "layout"), TRAINED, ids=str)
def test_verls_own_pass_agrees_and_training_gradients_do_not_change(models, name, layout):
    path, _ = models[name]
    order, plans, request = schedule_rows(ROWS, layout.dp, Limits(rows=3), temperature=TAU, vectors=True)
    args = (path, layout, ROWS, order, plans, request)
    with_pass = run_ranks(layout.ranks, _train_job, *args, True)
    without = run_ranks(layout.ranks, _train_job, *args, False)
    seen = 0
    for (ours, own, gradients, untouched), (_, _, plain, _) in zip(with_pass, without, strict=True):
        assert untouched
        for i, theirs in own.items():
            seen += 1
            torch.testing.assert_close(ours[i]["log_probs"], theirs["log_probs"], atol=2e-6, rtol=2e-6)
            torch.testing.assert_close(ours[i]["entropy"], theirs["entropy"], atol=2e-6, rtol=2e-6)
        assert any(g.abs().max() > 0 for g in gradients)
        for a, b in zip(gradients, plain, strict=True):
            assert torch.equal(a, b)
    assert seen == len(ROWS)


def test_bf16(models):
    path, model = models["qwen3"]
    results = run(path, Layout(tp=2, pp=2, dtype="bfloat16"), Limits(rows=4))
    for i, row in enumerate(ROWS):
        want = reference(model, row, TAU)
        torch.testing.assert_close(results[i]["log_probs"], want.log_probs, atol=0.6, rtol=0.1)
        s = want.saliency[len(row.prompt) :]
        if s.max() > 0:  # the ranking of tokens survives 16 bits
            assert torch.corrcoef(torch.stack([results[i]["saliency"], s]))[0, 1] > 0.98
