"""What the signal pass sends on top of verl's log-prob pass: a few numbers per token, none of them d wide."""

from __future__ import annotations

import pytest

from tests.signals.engines import run_ranks, schedule_rows
from tests.signals.megatron_engines import Layout, build_engine, run_log_probs, run_pass, save_with_tokenizer
from tests.signals.tiny import Row, build_model
from tests.signals.traffic import cost_of
from verl_grail.signals.schedule import Limits

pytest.importorskip("mbridge")
pytestmark = pytest.mark.layout
TOKENS, ANSWER, ROWS = 40, 4, 4


def _rows(answers: bool, vectors: bool) -> list[Row]:
    span = (TOKENS - ANSWER, TOKENS) if answers else (0, 0)
    ids = list(range(5, 5 + TOKENS))
    return [Row([3, 4], ids, span, (0, TOKENS) if vectors else (0, 0)) for _ in range(ROWS)]


def _job(rank, path, layout, passes):
    engine = build_engine(path, layout)
    costs = {k: cost_of(lambda a=(engine, *args): run_pass(*a)) for k, args in passes.items()}
    costs["log_prob"] = cost_of(lambda: run_log_probs(engine, *passes["forward"][:3]))
    return costs


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(pp=2), Layout(cp=2), Layout(tp=2, pp=2)], ids=str)
def test_what_is_sent_on_top_does_not_grow_with_tokens_times_width(tmp_path, layout):
    total, ours = {}, {}
    for width in (32, 64):
        model = build_model(vocab_size=128, intermediate_size=64, layers=4, hidden_size=width)
        path = save_with_tokenizer(tmp_path / str(width), model)
        passes = {}
        for name, answers, vectors in (("forward", False, False), ("gar", False, True), ("grail", True, False)):
            rows = _rows(answers, vectors)
            passes[name] = (rows, *schedule_rows(rows, layout.dp, Limits(rows=2), vectors=vectors))
        ranks = run_ranks(layout.ranks, _job, path, layout, passes)
        total[width] = {name: sum(r[name].bytes for r in ranks) for name in ranks[0]}
        ours[width] = {name: sum(r[name].ours for r in ranks) for name in ranks[0]}
    per_token = 8 * 4 * ROWS * TOKENS * layout.ranks  # at most eight float32 for each, from each rank
    extra = {w: t["forward"] - t["log_prob"] for w, t in total.items()}
    assert total[32]["log_prob"] > 0 and extra[32] == extra[64] <= per_token
    for width in (32, 64):
        row = 4 * width * layout.ranks  # one float32 vector, from each rank
        assert ours[width]["gar"] - ours[width]["forward"] <= ROWS * row
        assert ours[width]["grail"] - ours[width]["forward"] <= ROWS * ANSWER * row + per_token
    # the bound can fail: width does cross ranks where it has to
    if layout.tp > 1:
        assert ours[64]["gar"] > ours[64]["forward"] and ours[64]["grail"] - ours[64]["forward"] > per_token / 8


def test_a_pass_that_does_not_recompute_saves_forwards_of_selected_rows(tmp_path):
    layout = Layout(pp=2, recompute="full")
    path = save_with_tokenizer(tmp_path, build_model(vocab_size=128, intermediate_size=64, layers=4))
    rows = _rows(True, False)
    passes = {
        name: (rows, *schedule_rows(rows, layout.dp, Limits(rows=2), recompute=recompute))
        for name, recompute in (("forward", True), ("kept", False))
    }
    ranks = run_ranks(layout.ranks, _job, path, layout, passes)
    again, kept, log_prob = (sum(r[name].flops for r in ranks) for name in ("forward", "kept", "log_prob"))
    assert 0.5 * log_prob < again - kept < log_prob
