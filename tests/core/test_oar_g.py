"""OAR-G weights against a plain reference, and the noise that makes them reproducible."""

import math

import numpy as np
import pytest
import torch

from verl_grail.core.oar_g import influence, noise, oar_g_weights
from verl_grail.core.regions import regions_from_spans
from verl_grail.core.spans import AnswerSpan

SPANS = [AnswerSpan(6, 9, ((7, 8),)), None, AnswerSpan(4, 6, ((5, 6),))]
MASK = torch.ones(3, 10, dtype=torch.int64)
MASK[2, 8:] = 0


def plain(i, mask, span, stats, quantile=0.4, floor=0.1, boost=2.0):
    valid = [t for t in range(len(mask)) if mask[t]]
    x = [math.log(1 + v) for v in i]
    low, high = min(x[t] for t in valid), max(x[t] for t in valid)
    if low == high:
        return None
    x = [(v - low) / (high - low) for v in x]
    ranked = [x[t] for t in valid if stats == "all" or t < span.start]
    tau = float(np.quantile(ranked, quantile))
    w = {}
    for t in valid:
        if x[t] < tau:
            w[t] = max(x[t] / tau, floor)
        else:
            w[t] = 1.0 if tau >= 1 else 1 + boost * (x[t] - tau) / (1 - tau)
    total = sum(w.values())
    return [w[t] * len(valid) / total if t in w else 1.0 for t in range(len(mask))]


@pytest.mark.parametrize("stats", ["reasoning", "all"])
def test_weights_equal_the_plain_reference(stats):
    torch.manual_seed(1)
    i = torch.rand(3, 10) * 5
    i[0, 9] = 0.0
    regions = regions_from_spans(SPANS, MASK)
    weights, weighted = oar_g_weights(i, regions, MASK, torch.ones(3, dtype=torch.bool), stats=stats)
    assert weighted.tolist() == [True, False, True]
    for row in (0, 2):
        want = plain(i[row].tolist(), MASK[row].tolist(), SPANS[row], stats)
        torch.testing.assert_close(weights[row], torch.tensor(want), atol=1e-5, rtol=0)
        assert weights[row][MASK[row] == 1].sum().item() == pytest.approx(MASK[row].sum().item(), rel=1e-5)
    assert (weights[1] == 1).all()


def test_threshold_of_zero_suppresses_nothing():
    i = torch.zeros(1, 10)
    i[0, 8] = 3.0
    regions = regions_from_spans([AnswerSpan(9, 10, ((9, 10),))], torch.ones(1, 10))
    weights, weighted = oar_g_weights(i, regions, torch.ones(1, 10), torch.ones(1, dtype=torch.bool))
    assert weighted.all()
    assert weights[0, 0] == weights[0, 5] and weights[0, 8] == 3 * weights[0, 0]


def test_threshold_of_one_boosts_nothing():
    i = torch.ones(1, 10)
    i[0, 9] = 0.0
    regions = regions_from_spans([AnswerSpan(9, 10, ((9, 10),))], torch.ones(1, 10))
    weights, _ = oar_g_weights(i, regions, torch.ones(1, 10), torch.ones(1, dtype=torch.bool))
    assert weights[0, 0] == weights[0, 8] and weights[0, 9] == pytest.approx(0.1 * weights[0, 0].item())


@pytest.mark.parametrize("value", [0.0, 2.0, float("nan")])
def test_constant_or_non_finite_influence_falls_back(value):
    regions = regions_from_spans(SPANS, MASK)
    weights, weighted = oar_g_weights(torch.full((3, 10), value), regions, MASK, torch.ones(3, dtype=torch.bool))
    assert (weights == 1).all() and not weighted.any()


def test_noise_depends_on_its_key_alone():
    a = noise(0, 3, 17, (6, 4), 1e-3)
    assert torch.equal(a, noise(0, 3, 17, (6, 4), 1e-3))
    assert torch.equal(a[:4], noise(0, 3, 17, (4, 4), 1e-3))  # position by position
    for other in ((1, 3, 17), (0, 4, 17), (0, 3, 18)):
        assert not torch.equal(a, noise(*other, (6, 4), 1e-3))
    assert noise(0, 0, 0, (2000, 8), 1e-3).std().item() == pytest.approx(1e-3, rel=0.05)


def test_influence_is_an_absolute_dot_product():
    e, g = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    want = torch.stack([(e[b, t] @ g[b, t]).abs() for b in range(2) for t in range(3)]).view(2, 3)
    torch.testing.assert_close(influence(e, g), want)
