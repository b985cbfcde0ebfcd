"""The signal pass on verl's real FSDP2 engine (forked gloo ranks) against the plain one-process reference, fp32."""

from __future__ import annotations

import pytest
import torch

from tests.signals.engines import PlainEngine, batch_of, build_engine, run_pass, run_ranks, schedule_rows
from tests.signals.tiny import Row, attribution, build_model, oar_g_reference, ragged_rows, reference, save_model
from verl_grail.core.oar_g import noise
from verl_grail.signals.request import EMPTY_PLAN, Column, PassRequest
from verl_grail.signals.schedule import Limits

pytestmark = pytest.mark.layout
ROWS = ragged_rows()
TAU = 0.7


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folder and reference model by name."""
    root = tmp_path_factory.mktemp("models")
    kinds = {
        "qwen3": dict(kind="qwen3", tied=False),
        "qwen3_tied": dict(kind="qwen3", tied=True),
        "llama": dict(kind="llama", tied=False),
        "llama_tied": dict(kind="llama", tied=True),
    }
    return {name: (save_model(root / name, **k), build_model(**k)) for name, k in kinds.items()}


def _pass_job(rank, path, options, rows, order, plans, request):
    return run_pass(build_engine(path, **options), rows, order[rank], plans, request)


def _run(path, n_ranks, options, limits, rows=ROWS, **request):
    order, plans, request = schedule_rows(rows, n_ranks, limits, temperature=TAU, vectors=True, **request)
    results = {}
    for part in run_ranks(n_ranks, _pass_job, path, options, rows, order, plans, request):
        results.update(part)
    return results


def _compare(results, model, rows=ROWS, leaf="embeddings", alignment="token", raw=False):
    for i, row in enumerate(rows):
        want = reference(model, row, TAU, leaf, raw)
        got, p = results[i], len(row.prompt)
        torch.testing.assert_close(got["log_probs"], want.log_probs, atol=3e-6, rtol=3e-6)
        torch.testing.assert_close(got["entropy"], want.entropy, atol=3e-6, rtol=3e-6)
        s = want.saliency[p:] if alignment == "token" else want.saliency[p - 1 : -1]
        torch.testing.assert_close(got["saliency"], s, atol=1e-5 * max(s.max().item(), 1e-3), rtol=1e-4)
        torch.testing.assert_close(got["gradient_vector"], want.vector, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_tied", "llama", "llama_tied"])
@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "checkpointing,limits",
    [(False, Limits(rows=3)), (True, Limits(tokens=40))],
    ids=["by_count", "checkpointed_by_tokens"],
)
def test_every_layout_equals_the_reference(models, name, n_ranks, packed, checkpointing, limits):
    path, model = models[name]
    _compare(_run(path, n_ranks, dict(packed=packed, checkpointing=checkpointing), limits), model)


@pytest.mark.parametrize("leaf", ["first", "middle", "last"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_leaf_ablations(tmp_path, leaf, checkpointing):
    kind = dict(kind="qwen3", layers=5)
    path, model = save_model(tmp_path, **kind), build_model(**kind)
    _compare(_run(path, 2, dict(checkpointing=checkpointing), Limits(rows=4), leaf=leaf), model, leaf=leaf)


def test_predictor_alignment_and_raw_gradient(models):
    path, model = models["qwen3"]
    results = _run(path, 1, {}, Limits(rows=4), alignment="predictor", raw_gradient=True)
    _compare(results, model, alignment="predictor", raw=True)


def test_a_measure_of_ones_own(models):
    path, model = models["qwen3"]
    results = _run(path, 2, {}, Limits(rows=4), measure="tests.signals.tiny:attribution")
    for i, row in enumerate(ROWS):
        want = reference(model, row, TAU, measure=attribution).saliency[len(row.prompt) :]
        torch.testing.assert_close(results[i]["saliency"], want, atol=1e-5 * max(want.max().item(), 1e-3), rtol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_oar_g(models, packed, n_ranks):
    path, model = models["qwen3"]
    request = dict(method="oar_g", noise_std=1e-2, seed=5, step=3)
    results = _run(path, n_ranks, dict(packed=packed), Limits(rows=3), **request)
    for i, row in enumerate(ROWS):
        want = torch.zeros(len(row.response))
        if row.answer[1]:
            want = oar_g_reference(model, row, noise(5, 3, i + 1, (len(row.response), 32), 1e-2))
        torch.testing.assert_close(results[i]["saliency"], want, atol=2e-5 * max(want.max().item(), 1e-6), rtol=2e-3)
        torch.testing.assert_close(results[i]["log_probs"], reference(model, row, TAU).log_probs, atol=3e-6, rtol=3e-6)


def _lora_job(rank, path, options, rows, order, plans, request):
    engine = build_engine(path, **options)
    # peft starts B at zero, so the adapter would change nothing: move it, equally on every rank
    torch.manual_seed(7)
    full = {}
    for n, p in engine.module.named_parameters():
        if p.requires_grad:
            value = torch.randn(p.shape) * 0.3
            full[n] = value
            local = p.to_local() if hasattr(p, "to_local") else p
            chunk = value.chunk(torch.distributed.get_world_size())[rank] if hasattr(p, "to_local") else value
            local.data.copy_(chunk)
    return run_pass(engine, rows, order[rank], plans, request), full


@pytest.mark.parametrize("n_ranks", [1, 2])
def test_lora_actor(models, n_ranks):
    from peft import LoraConfig, get_peft_model

    path, _ = models["qwen3"]
    order, plans, request = schedule_rows(ROWS, n_ranks, Limits(rows=4), temperature=TAU, vectors=True)
    parts = run_ranks(n_ranks, _lora_job, path, dict(lora_rank=4, checkpointing=True), ROWS, order, plans, request)
    config = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules="all-linear", bias="none")
    peft = get_peft_model(build_model("qwen3"), config).eval()
    with torch.no_grad():
        for n, p in peft.named_parameters():
            if p.requires_grad:
                p.copy_(parts[0][1][n])
    results = {}
    for part, _ in parts:
        results.update(part)
    _compare(results, peft.get_base_model())
    assert not torch.allclose(results[0]["log_probs"], reference(build_model("qwen3"), ROWS[0], TAU).log_probs)


# ------------------------------ beside verl's own pass ------------------------------


def _verl_job(rank, path, options, rows, order, plans, request):
    from verl.utils import tensordict_utils as tu

    engine = build_engine(path, **options)
    ours = run_pass(engine, rows, order[rank], plans, request)
    data = batch_of([rows[i] for i in order[rank]], [plans[i] for i in order[rank]])
    tu.assign_non_tensor(
        data,
        use_remove_padding=options.get("packed", False),
        use_dynamic_bsz=False,
        micro_batch_size_per_gpu=2,
        use_fused_kernels=False,
        temperature=TAU,
        calculate_entropy=True,
    )
    with engine.eval_mode():
        out = engine.infer_batch(data)["model_output"]
    theirs = {}
    for k, i in enumerate(order[rank]):
        p = len(rows[i].prompt)
        theirs[i] = {n: out[n][k][p - 1 : -1].clone() for n in ("log_probs", "entropy")}
    return ours, theirs


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_log_probs_and_entropy_are_verls(tmp_path, packed, n_ranks):
    # logits of a usual size: verl's entropy formula rounds at 1e-6 only there
    kind = dict(kind="qwen3", initializer_range=0.1)
    path = save_model(tmp_path, **kind)
    order, plans, request = schedule_rows(ROWS, n_ranks, Limits(rows=2), temperature=TAU)
    for ours, theirs in run_ranks(n_ranks, _verl_job, path, dict(packed=packed), ROWS, order, plans, request):
        for i in theirs:
            for name in ("log_probs", "entropy"):
                torch.testing.assert_close(ours[i][name], theirs[i][name], atol=1e-6, rtol=0)


def _train_job(rank, path, options, rows, order, plans, request, with_pass):
    """Gradients of one training step; with_pass: after a signal pass that is the first forward of the process."""
    engine = build_engine(path, **options)
    if with_pass:
        run_pass(engine, rows, order[rank], plans, request)
        assert all(p.grad is None for p in engine.module.parameters())
        assert all(p.requires_grad for p in engine.module.parameters())
        assert not any(m.training for m in engine.module.modules())
        assert "forward" not in engine.module.get_output_embeddings().__dict__
    engine.module.train()
    ids = torch.tensor([rows[order[rank][0]].ids.tolist()])
    loss = engine.module(input_ids=ids, use_cache=False).logits.float().logsumexp(-1).mean()
    loss.backward()
    return {n: p.grad.full_tensor() for n, p in engine.module.named_parameters()}, loss.item()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_training_gradients_are_the_same_with_the_pass_and_without(models, dtype, checkpointing):
    """fp32 masters with bf16 compute too: FSDP2 settles its dtypes on the first forward, which here is the pass."""
    path, _ = models["qwen3"]
    order, plans, request = schedule_rows(ROWS, 2, Limits(rows=2), vectors=True)
    options = dict(param_dtype=dtype, checkpointing=checkpointing)
    runs = [
        run_ranks(2, _train_job, path, options, ROWS, order, plans, request, with_pass) for with_pass in (False, True)
    ]
    for (without, loss_a), (with_, loss_b) in zip(*runs, strict=True):
        assert loss_a == loss_b
        for name, grad in without.items():
            assert grad.dtype == torch.float32
            assert torch.equal(grad, with_[name]), name


# ------------------------------ collectives ------------------------------


def _save_unequal(folder):
    """Qwen3-MoE with one dense block: blocks of different sizes, so mismatched collectives cannot go unnoticed."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=97, hidden_size=32, intermediate_size=80, moe_intermediate_size=24, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts=4, num_experts_per_tok=2,
            mlp_only_layers=[1], decoder_sparse_step=1, initializer_range=0.25, tie_word_embeddings=False,
            max_position_embeddings=256, attn_implementation="sdpa", experts_implementation="eager",
        )
    ).float().eval()  # fmt: skip
    model.save_pretrained(folder)
    return str(folder), model


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("selected_rank", [0, 1])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_all_selected_rows_on_one_rank(models, tmp_path, unequal, selected_rank, checkpointing):
    path, model = _save_unequal(tmp_path) if unequal else models["qwen3"]
    selected = [r for r in ROWS if r.answer[1]][:4]
    plain = [Row(r.prompt, r.response, (0, 0), r.vector, r.holes) for r in ROWS[:4]]
    rows = selected + plain
    plans = []
    for i, row in enumerate(rows):
        plan = list(EMPTY_PLAN)
        # 2 forward micro-batches (0, 1), 2 backward ones (2, 3); each rank has rows in one kind only
        plan[Column.MICRO_BATCH] = (2 if i < 4 else 0) + i % 2
        plan[Column.ANSWER_START], plan[Column.ANSWER_END] = row.answer
        plan[Column.VECTOR_START], plan[Column.VECTOR_END] = row.vector
        plans.append(tuple(plan))
    order = [[0, 1, 2, 3], [4, 5, 6, 7]]
    if selected_rank:
        order.reverse()
    request = PassRequest(2, 2, vectors=True, temperature=TAU)
    results = {}
    for part in run_ranks(2, _pass_job, path, dict(checkpointing=checkpointing), rows, order, plans, request):
        results.update(part)
    _compare(results, model, rows)


def test_rows_that_are_not_run_hold_zeros(models):
    """Bypass mode: only rows that need a signal are run."""
    path, model = models["llama"]
    order, plans, request = schedule_rows(ROWS, 2, Limits(rows=2), log_probs=False, vectors=True, temperature=TAU)
    skipped = [i for i, r in enumerate(ROWS) if not r.answer[1]]
    for i in skipped:
        plan = list(plans[i])
        plan[Column.MICRO_BATCH] = -1
        plans[i] = tuple(plan)
    results = {}
    for part in run_ranks(2, _pass_job, path, {}, ROWS, order, plans, request):
        results.update(part)
    for i, row in enumerate(ROWS):
        assert "log_probs" not in results[i]
        want = reference(model, row, TAU)
        if i in skipped:
            assert (results[i]["saliency"] == 0).all() and (results[i]["gradient_vector"] == 0).all()
        else:
            s = want.saliency[len(row.prompt) :]
            torch.testing.assert_close(results[i]["saliency"], s, atol=1e-5 * s.max().item(), rtol=1e-4)


def _nan_job(rank, path, order, plans, request):
    engine = build_engine(path)
    with torch.no_grad():  # token 50's embedding is broken, as after a bad update
        weight = engine.module.get_input_embeddings().weight
        local = weight.to_local()
        rows_before = sum(c.shape[0] for c in torch.arange(97).chunk(2)[:rank])
        if 0 <= 50 - rows_before < local.shape[0]:
            local[50 - rows_before] = float("nan")
    return run_pass(engine, ROWS, order[rank], plans, request)


def test_rows_with_non_finite_values_do_not_touch_the_others(models):
    path, model = models["qwen3"]
    order, plans, request = schedule_rows(ROWS, 2, Limits(rows=3), temperature=TAU, vectors=True)
    results = {}
    for part in run_ranks(2, _nan_job, path, order, plans, request):
        results.update(part)
    broken = [i for i, row in enumerate(ROWS) if 50 in row.ids]
    assert 0 < len(broken) < len(ROWS) - 2
    for i, row in enumerate(ROWS):
        finite = torch.isfinite(results[i]["log_probs"]).all() and torch.isfinite(results[i]["gradient_vector"]).all()
        assert finite == (i not in broken)
        if finite and row.answer[1]:
            s = reference(model, row, TAU).saliency[len(row.prompt) :]
            torch.testing.assert_close(results[i]["saliency"], s, atol=1e-5 * s.max().item(), rtol=1e-4)
    assert any(not torch.isfinite(results[i]["saliency"]).all() for i in broken if ROWS[i].answer[1])


# ------------------------------ FSDP1 on torch's own wrapper ------------------------------


class _Fsdp1Engine(PlainEngine):
    """verl's engine cannot build FSDP1 on the CPU (sync_module_states=True), so torch's own wrapper stands in."""

    def __init__(self, model, **options):
        import functools

        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

        policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={type(model.model.layers[0])})
        device = torch.device("cpu")
        super().__init__(FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=device, **options))


def _fsdp1_job(rank, checkpointing, options, rows, order, plans, request):
    model = build_model("qwen3")
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    engine = _Fsdp1Engine(model, **options)
    results = run_pass(engine, rows, order[rank], plans, request)
    assert all(p.grad is None for p in engine.module.parameters())
    engine.module.train()  # a training step still works after the pass
    engine.module(input_ids=torch.tensor([[3, 4, 5]]), use_cache=False).logits.sum().backward()
    assert any(p.grad is not None for p in engine.module.parameters())
    return results


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("use_orig_params", [False, True])
def test_fsdp1(models, n_ranks, checkpointing, use_orig_params):
    order, plans, request = schedule_rows(ROWS, n_ranks, Limits(rows=3), temperature=TAU, vectors=True)
    options = dict(use_orig_params=use_orig_params)
    results = {}
    for part in run_ranks(n_ranks, _fsdp1_job, checkpointing, options, ROWS, order, plans, request):
        results.update(part)
    _compare(results, models["qwen3"][1])
