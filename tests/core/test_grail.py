"""GRAIL weights against a plain row-by-row reference written from the formula."""

import math

import pytest
import torch

from verl_grail.core.grail import RowOutcome, grail_weights, saliency_norm
from verl_grail.core.regions import regions_from_spans
from verl_grail.core.spans import AnswerSpan

SPANS = [
    AnswerSpan(5, 9, ((6, 8),)),
    AnswerSpan(3, 6, ((4, 5),)),
    None,
    AnswerSpan(0, 2, ((1, 2),)),
    AnswerSpan(6, 8, ((7, 8),)),
]
MASK = torch.ones(5, 10, dtype=torch.int64)
MASK[1, 8:] = 0
MASK[4, 2] = 0


def plain(s, mask, span, w_mean, sigma_w, w_min, w_max, delimiter_weight, stats):
    """One row, from the definition; None where the row falls back to ones."""
    if span is None:
        return None
    kept = [t for t in range(len(mask)) if mask[t]]
    scored = kept if stats == "all" else [t for t in kept if t < span.start]
    if not scored or len({s[t] for t in scored}) == 1:
        return None
    logs = [math.log(s[t] + 1e-8) for t in scored]
    mu = sum(logs) / len(logs)
    sd = math.sqrt(sum((x - mu) ** 2 for x in logs) / len(logs) + 1e-8)
    w = [1.0] * len(mask)
    for t, x in zip(scored, logs, strict=True):
        w[t] = min(max(w_mean + sigma_w * (x - mu) / sd, w_min), w_max)
    for t in kept:
        if span.content_start <= t < span.content_end:
            w[t] = w_max
        elif span.start <= t < span.end:
            w[t] = w_min if delimiter_weight == "w_min" else w_mean
        elif t >= span.end:
            w[t] = w_mean
    return w


@pytest.mark.parametrize("stats", ["reasoning", "all"])
@pytest.mark.parametrize("delimiter_weight", ["w_mean", "w_min"])
@pytest.mark.parametrize("bounds", [(1.0, 0.5, 0.5, 5.0), (1.0, 2.0, 0.8, 1.5), (2.0, 0.5, 0.0, 3.0)])
def test_weights_equal_the_plain_reference(stats, delimiter_weight, bounds):
    torch.manual_seed(0)
    saliency = torch.rand(5, 10).double().pow(4).float()
    options = dict(zip(("w_mean", "sigma_w", "w_min", "w_max"), bounds, strict=True))
    options |= {"stats": stats, "delimiter_weight": delimiter_weight}
    outcome = torch.zeros(5, dtype=torch.long)
    got = grail_weights(saliency, regions_from_spans(SPANS, MASK), MASK, outcome, **options)
    for row, span in enumerate(SPANS):
        want = plain(saliency[row].tolist(), MASK[row].tolist(), span, **options)
        expected = [1.0] * 10 if want is None else want
        torch.testing.assert_close(got.weights[row], torch.tensor(expected), atol=2e-5, rtol=0)
        assert (got.outcome[row] == RowOutcome.WEIGHTED) == (want is not None)
    assert got.outcome.tolist()[2] == RowOutcome.NO_ANSWER
    assert got.outcome.tolist()[3] == (RowOutcome.NO_SCORED_TOKENS if stats == "reasoning" else RowOutcome.WEIGHTED)


def test_masked_tokens_keep_weight_one_and_stay_out_of_the_statistics():
    saliency = torch.rand(5, 10)
    regions = regions_from_spans(SPANS, MASK)
    a = grail_weights(saliency, regions, MASK, torch.zeros(5, dtype=torch.long))
    changed = saliency.clone()
    changed[MASK == 0] = 1e6
    b = grail_weights(changed, regions, MASK, torch.zeros(5, dtype=torch.long))
    assert torch.equal(a.weights, b.weights)
    assert (a.weights[MASK == 0] == 1).all()


def test_unselected_rows_keep_ones_unless_corrected():
    saliency = torch.rand(5, 10)
    regions = regions_from_spans(SPANS, MASK)
    outcome = torch.full((5,), int(RowOutcome.UNSELECTED))
    assert (grail_weights(saliency, regions, MASK, outcome).weights == 1).all()
    corrected = grail_weights(saliency, regions, MASK, outcome, correct_unselected=True, w_max=5.0)
    assert (corrected.weights[0, 6:8] == 5).all() and (corrected.weights[0, :6] == 1).all()
    assert (corrected.outcome == RowOutcome.UNSELECTED).all()


@pytest.mark.parametrize(
    "spoil,outcome",
    [
        (float("nan"), RowOutcome.NON_FINITE),
        (float("inf"), RowOutcome.NON_FINITE),
    ],
)
def test_non_finite_saliency_falls_back(spoil, outcome):
    saliency = torch.rand(5, 10)
    saliency[0, 1] = spoil
    got = grail_weights(saliency, regions_from_spans(SPANS, MASK), MASK, torch.zeros(5, dtype=torch.long))
    assert got.outcome[0] == outcome and (got.weights[0] == 1).all()
    assert got.outcome[1] == RowOutcome.WEIGHTED and torch.isfinite(got.weights).all()


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_constant_saliency_is_degenerate(value):
    got = grail_weights(
        torch.full((5, 10), value), regions_from_spans(SPANS, MASK), MASK, torch.zeros(5, dtype=torch.long)
    )
    assert got.outcome[0] == RowOutcome.DEGENERATE and (got.weights == 1).all()


def test_clipping_is_counted():
    saliency = torch.full((1, 8), 1e-3)
    saliency[0, 0], saliency[0, 1] = 1e3, 1e-9
    mask = torch.ones(1, 8)
    regions = regions_from_spans([AnswerSpan(6, 8, ((7, 8),))], mask)
    got = grail_weights(saliency, regions, mask, torch.zeros(1, dtype=torch.long), sigma_w=2.0, w_max=1.5)
    assert got.clipped_high.sum() == 1 and got.clipped_low.sum() == 1 and got.scored.sum() == 6


def test_saliency_norm_is_float32():
    e, g = torch.randn(3, 4).bfloat16(), torch.randn(3, 4).bfloat16()
    want = ((e.float() * g.float()) ** 2).sum(-1).sqrt()
    torch.testing.assert_close(saliency_norm(e, g), want)
    assert saliency_norm(e, g).dtype == torch.float32
