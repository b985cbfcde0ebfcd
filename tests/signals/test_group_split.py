"""A prompt group whose rollouts run on two ranks gets the same bonus as on one."""

from __future__ import annotations

import pytest
import torch

from tests.signals.engines import build_engine, run_pass, run_ranks, schedule_rows
from tests.signals.tiny import Row, build_model, reference, save_model
from verl_grail.core.gar import anchor_alignment, group_bonus
from verl_grail.signals.schedule import Limits

pytestmark = pytest.mark.layout


def _rows() -> list[Row]:
    g = torch.Generator().manual_seed(1)
    draws = [torch.randint(3, 97, (int(n),), generator=g).tolist() for n in (8, 9, 10, 11, 12, 13, 9, 10)]
    # one prompt: six passing rollouts, its expert solution (row 6), and a filler
    return [Row([5, 6, 7], response, (0, 0), (1, len(response) - 1)) for response in draws]


def _job(rank, path, rows, order, plans, request):
    return run_pass(build_engine(path), rows, order[rank], plans, request)


def test_the_mean_is_over_the_whole_group(tmp_path):
    path, rows = save_model(tmp_path), _rows()
    order, plans, request = schedule_rows(rows, 2, Limits(rows=2), vectors=True)
    group, expert = set(range(6)), 6
    assert all(group & set(share) for share in order), "the group is meant to be split"
    vectors = {}
    for part in run_ranks(2, _job, path, rows, order, plans, request):
        vectors.update({i: out["gradient_vector"] for i, out in part.items()})
    cosine = anchor_alignment(torch.stack([vectors[i] for i in sorted(group)]), vectors[expert].unsqueeze(0))
    bonus = group_bonus(cosine, ["a"] * 6)

    model = build_model()
    plain = [reference(model, row).vector for row in rows]
    cos = [float(torch.nn.functional.cosine_similarity(plain[i], plain[expert], dim=0)) for i in range(6)]
    want = torch.tensor([0.5 * max(0.0, c - sum(cos) / 6) for c in cos])
    torch.testing.assert_close(bonus, want, atol=1e-5, rtol=0)
    # a mean over each rank's own rollouts, as in the published code, would pay something else
    local = torch.zeros(6)
    for share in order:
        members = sorted(group & set(share))
        local[members] = group_bonus(cosine[members], ["a"] * len(members))
    assert not torch.allclose(local, want, atol=1e-4)
