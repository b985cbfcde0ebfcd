"""The pass under Ulysses sequence parallelism, as far as it goes without a GPU.

verl's Ulysses hangs on flash attention and on an all-to-all that gloo lacks. Both have stand-ins here: SDPA between
verl's own head and sequence exchanges, and an all-to-all made of broadcasts. Everything else is verl's: mesh, input
slices, autograd through the exchange.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from transformers import AttentionInterface
from transformers.models.qwen3.modeling_qwen3 import repeat_kv
from verl.utils import ulysses

from tests.signals.engines import build_engine, run_pass, run_ranks, schedule_rows
from tests.signals.test_fsdp import TAU, _compare
from tests.signals.tiny import build_model, oar_g_reference, ragged_rows, save_model
from verl_grail.core.oar_g import noise
from verl_grail.signals.schedule import Limits

pytestmark = pytest.mark.layout
ROWS = ragged_rows()


def _all_to_all(output_list, input_list, group=None, async_op=False):
    rank = dist.get_rank(group)
    for source in range(dist.get_world_size(group)):
        sent = [torch.empty_like(t) for t in input_list] if source != rank else list(input_list)
        for t in sent:
            dist.broadcast(t, dist.get_global_rank(group, source), group=group)
        output_list[source].copy_(sent[rank])


def _attention(module, query, key, value, attention_mask, scaling=None, position_ids=None, **_):
    group = ulysses.get_ulysses_sequence_parallel_group()
    repeats = module.num_key_value_groups
    q, k, v = query, repeat_kv(key, repeats), repeat_kv(value, repeats)  # (B, H, S, D)
    q, k, v = (ulysses.gather_seq_scatter_heads(x, seq_dim=2, head_dim=1) for x in (q, k, v))
    parts = [torch.empty_like(position_ids) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, position_ids.contiguous(), group=group)
    positions = torch.cat(parts, -1)[0]
    sequence = (positions == 0).cumsum(0)
    visible = (sequence[:, None] == sequence[None]) & torch.ones(len(positions), len(positions)).tril().bool()
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scaling)
    out = ulysses.gather_heads_scatter_seq(out, head_dim=1, seq_dim=2)
    return out.transpose(1, 2).contiguous(), None


def _job(rank, path, options, order, plans, request):
    AttentionInterface.register("ulysses_sdpa", _attention)
    ulysses.dist.all_to_all = _all_to_all
    engine = build_engine(path, packed=True, attention="ulysses_sdpa", ulysses_sequence_parallel_size=2, **options)
    assert engine.get_data_parallel_size() == 1
    return run_pass(engine, ROWS, order, plans, request)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", [dict(kind="qwen3"), dict(kind="llama", tied=True)], ids=["qwen3", "llama_tied"])
def test_two_ranks_share_each_sequence(tmp_path, kind, checkpointing):
    path, model = save_model(tmp_path, **kind), build_model(**kind)
    order, plans, request = schedule_rows(ROWS, 1, Limits(rows=3), temperature=TAU, vectors=True)
    results = run_ranks(2, _job, path, dict(checkpointing=checkpointing), order[0], plans, request)
    for result in results:  # both ranks hold the whole of every row
        _compare(result, model, ROWS)


def test_oar_g(tmp_path):
    path, model = save_model(tmp_path), build_model()
    options = dict(method="oar_g", noise_std=1e-2, seed=5, step=3)
    order, plans, request = schedule_rows(ROWS, 1, Limits(rows=3), temperature=TAU, **options)
    for result in run_ranks(2, _job, path, {}, order[0], plans, request):
        for i, row in enumerate(ROWS):
            if row.answer[1]:
                want = oar_g_reference(model, row, noise(5, 3, i + 1, (len(row.response), 32), 1e-2))
                torch.testing.assert_close(result[i]["saliency"], want, atol=2e-5 * want.max().item(), rtol=2e-3)
