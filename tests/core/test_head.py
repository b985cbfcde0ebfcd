"""The chunked output layer against autograd on the full logits."""

import pytest
import torch

from tests.signals.tiny import build_model
from verl_grail.core.head import HeadQuery, answer_sums, back_project, kl_cotangent, run_head

N, ROWS = 23, 4


def _head(kind, tied, bias):
    model = build_model(kind, tied=tied)
    head = torch.nn.Linear(32, 97, bias=bias)
    with torch.no_grad():
        head.weight.copy_(model.lm_head.weight)
        if bias:
            head.bias.normal_()
    return head


def _query(temperature=1.0, raw=False):
    g = torch.Generator().manual_seed(0)
    return HeadQuery(
        labels=torch.randint(0, 97, (N,), generator=g),
        rows=torch.arange(N) * ROWS // N,
        answer=torch.rand(N, generator=g) < 0.4,
        vector=torch.rand(N, generator=g) < 0.5,
        n_rows=ROWS,
        temperature=temperature,
        raw_gradient=raw,
    )


def _project(head):
    return lambda h: torch.nn.functional.linear(h, head.weight, head.bias)


@pytest.mark.parametrize("kind,tied", [("qwen3", False), ("qwen3", True), ("llama", False), ("llama", True)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_run_head(kind, tied, bias, temperature, raw, chunk):
    torch.manual_seed(1)
    head, query = _head(kind, tied, bias), _query(temperature, raw)
    hidden = torch.randn(N, 32, requires_grad=True)
    got = run_head(hidden.detach(), _project(head), head.weight, query, chunk)

    logits = head(hidden)
    log_p = torch.log_softmax(logits / temperature, -1)
    chosen = log_p[torch.arange(N), query.labels]
    torch.testing.assert_close(got.log_probs, chosen.detach(), atol=2e-6, rtol=0)
    # verl computes entropy as logsumexp - sum(p * logits), and so do we: logits of 10 leave a few 1e-6 of rounding
    torch.testing.assert_close(got.entropy, -(log_p.exp() * log_p).sum(-1).detach(), atol=1e-5, rtol=0)
    (gradient,) = torch.autograd.grad(-chosen[query.answer].sum(), hidden, retain_graph=True)
    torch.testing.assert_close(got.cotangent, gradient[query.answer], atol=2e-6, rtol=1e-5)
    for row in range(ROWS):
        at = (query.rows == row) & query.vector
        nll = torch.nn.functional.cross_entropy(logits[at], query.labels[at], reduction="sum")
        (g,) = torch.autograd.grad(nll, hidden, retain_graph=True)
        want = (g[at] if raw else g[at] * hidden[at]).sum(0).detach()
        torch.testing.assert_close(got.vector_sum[row], want, atol=5e-6, rtol=1e-5)


def test_sixteen_bit_weights_are_projected_in_float32():
    p, w = torch.rand(5, 97), torch.randn(97, 32).bfloat16()
    torch.testing.assert_close(back_project(p, w), p @ w.float())


@pytest.mark.parametrize("bias", [False, True])
def test_kl_cotangent_is_the_gradient_of_the_kl(bias):
    torch.manual_seed(2)
    head, query = _head("qwen3", False, bias), _query()
    clean_h, hidden = torch.randn(N, 32), torch.randn(N, 32, requires_grad=True)
    rows = query.rows[query.answer]

    def mean_logits(h):
        return torch.stack([head(h[query.answer][rows == r]).mean(0) for r in range(ROWS)])

    clean, noisy = mean_logits(clean_h), mean_logits(hidden)
    p0, log_q = torch.softmax(clean, -1).detach(), torch.log_softmax(noisy, -1)
    kl = (p0 * (p0.log() - log_q)).sum()
    (want,) = torch.autograd.grad(kl, hidden)

    def ours(h):
        total, count = answer_sums(h, query)
        return torch.nn.functional.linear(total / count.clamp(min=1).unsqueeze(1), head.weight, head.bias), count

    c, count = ours(clean_h)
    n, _ = ours(hidden.detach())
    torch.testing.assert_close(n, noisy.detach(), atol=5e-6, rtol=0)
    got = kl_cotangent(c.detach(), n.detach(), head.weight, count)[rows]
    torch.testing.assert_close(got, want[query.answer], atol=5e-6, rtol=1e-4)


def test_no_positions():
    head = _head("qwen3", False, False)
    empty = torch.zeros(0, dtype=torch.long)
    query = HeadQuery(empty, empty, empty.bool(), empty.bool(), 2)
    got = run_head(torch.zeros(0, 32), _project(head), head.weight, query)
    assert got.log_probs.shape == (0,) and got.cotangent.shape == (0, 32) and (got.vector_sum == 0).all()
