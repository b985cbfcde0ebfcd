"""Peak memory of the pass beside verl's own log-prob pass, by the profiler's allocation events."""

from __future__ import annotations

import pytest
import torch

from tests.signals.engines import batch_of, build_engine, run_pass, run_ranks, schedule_rows
from tests.signals.tiny import Row, save_model
from tests.signals.traffic import peak_bytes
from verl_grail.signals.schedule import Limits

pytestmark = pytest.mark.layout


def _memory_job(rank, path, rows, order, plans, requests):
    from verl.utils import tensordict_utils as tu

    engine = build_engine(path)
    data = batch_of(rows, plans)
    tu.assign_non_tensor(
        data, use_remove_padding=False, use_dynamic_bsz=False, micro_batch_size_per_gpu=len(rows),
        use_fused_kernels=False, temperature=1.0, calculate_entropy=True,
    )  # fmt: skip
    with engine.eval_mode():
        engine.infer_batch(data)  # first-use allocations stay out of the comparison
        theirs = peak_bytes(lambda: engine.infer_batch(data))
    return theirs, [peak_bytes(lambda r=r: run_pass(engine, rows, order[0], plans, r)) for r in requests]


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Peak bytes of verl's log-prob pass and of ours at a realistic V / (L d) of about 1."""
    kind = dict(kind="qwen3", vocab_size=6000, layers=3)
    path = save_model(tmp_path_factory.mktemp("wide"), **kind)
    g = torch.Generator().manual_seed(0)
    rows = [Row([5, 6, 7], torch.randint(3, 90, (120,), generator=g).tolist(), (0, 0), (5, 100)) for _ in range(6)]
    order, plans, request = schedule_rows(rows, 1, Limits(rows=6), chunk=64)
    with_vectors = schedule_rows(rows, 1, Limits(rows=6), chunk=64, vectors=True)[2]
    (result,) = run_ranks(1, _memory_job, path, rows, order, plans, [request, with_vectors])
    return result


@pytest.mark.parametrize("which", [0, 1], ids=["log_probs", "with_vectors"])
def test_peak_memory_is_not_above_verls_pass(peaks, which):
    theirs, ours = peaks
    full_logits = 6 * 123 * 6000 * 4
    assert theirs > full_logits
    assert ours[which] < theirs
    assert ours[which] < full_logits  # the logits of the micro-batch never exist, not even once
