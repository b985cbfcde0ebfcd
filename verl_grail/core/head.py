"""The output layer in token chunks: log-probs, entropy, answer-loss cotangents and gradient-activation vectors.

One product ``W h`` per token serves everything, and the B x T x V logits never exist: only ``chunk`` rows of them do.
No autograd graph runs through the layer, since every derivative needed has a closed form:

    GRAIL   L = -sum_t log softmax(W h_t / tau)[y_t]      dL/dh_t = W^T (softmax(W h_t / tau) - onehot(y_t)) / tau
    GAR     g_t = d(-log softmax(W h_t)[y_t]) / dh_t       = W^T (softmax(W h_t) - onehot(y_t))
    OAR-G   L = KL(p0 || softmax(mean_t z_t))              dL/dh_t = W^T (softmax(mean_t z_t) - p0) / n
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

# Rows of a 16-bit output layer that are turned to float32 at a time in W^T p.
_VOCABULARY_BLOCK = 16384


@dataclass(frozen=True)
class HeadQuery:
    """What is asked of each predicting position; all tensors (N,) on the hidden states' device.

    Attributes:
        labels: int64, the token each position predicts.
        rows: int64 in [0, n_rows), the sequence each position belongs to.
        answer: bool, positions in the answer loss (their cotangent dL/dh is returned).
        vector: bool, positions in the gradient-activation vector of their row.
        n_rows: number of sequences.
        temperature: of log-probs, entropy and answer loss; vectors are taken at temperature 1.
        raw_gradient: vectors of g_t instead of g_t * h_t (the paper's ablation).
    """

    labels: torch.Tensor
    rows: torch.Tensor
    answer: torch.Tensor
    vector: torch.Tensor
    n_rows: int
    temperature: float = 1.0
    raw_gradient: bool = False


@dataclass(frozen=True)
class HeadResult:
    """``log_probs``, ``entropy`` (N,) float32; ``cotangent`` (N_answer, d) float32 in the order of the positions;
    ``vector_sum`` (n_rows, d) float32, the sum over the row's span (divide by its length for the mean)."""

    log_probs: torch.Tensor
    entropy: torch.Tensor
    cotangent: torch.Tensor
    vector_sum: torch.Tensor


def back_project(p: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``p @ W`` in float32, (n, V) x (V, d); a 16-bit W is upcast block by block."""
    if weight.dtype == torch.float32:
        return p @ weight
    out = torch.zeros(p.shape[0], weight.shape[1], dtype=torch.float32, device=p.device)
    for start in range(0, weight.shape[0], _VOCABULARY_BLOCK):
        block = weight[start : start + _VOCABULARY_BLOCK]
        out += p[:, start : start + block.shape[0]] @ block.float()
    return out


@torch.no_grad()
def run_head(
    hidden: torch.Tensor,
    project: Callable[[torch.Tensor], torch.Tensor],
    weight: torch.Tensor,
    query: HeadQuery,
    chunk: int = 512,
) -> HeadResult:
    """Everything the signals need from the output layer, ``chunk`` positions at a time.

    Args:
        hidden: (N, d), the states that predict ``query.labels``.
        project: hidden (n, d) -> logits (n, V), the model's own layer (bias and autocast included).
        weight: (V, d), that layer's weight.
    """
    device, n, d = hidden.device, hidden.shape[0], hidden.shape[1]
    log_probs = torch.empty(n, dtype=torch.float32, device=device)
    entropy = torch.empty(n, dtype=torch.float32, device=device)
    vector_sum = torch.zeros(query.n_rows, d, dtype=torch.float32, device=device)
    cotangents = []
    for start in range(0, n, chunk):
        part = slice(start, min(start + chunk, n))
        h, y = hidden[part], query.labels[part]
        logits = project(h).float()
        scaled = logits if query.temperature == 1.0 else logits / query.temperature
        lse = torch.logsumexp(scaled, dim=-1)
        log_probs[part] = scaled.gather(1, y.unsqueeze(1)).squeeze(1) - lse
        p = torch.exp(scaled - lse.unsqueeze(1))
        entropy[part] = lse - (p * scaled).sum(-1)

        answer, vector = query.answer[part], query.vector[part]
        if answer.any():
            cotangents.append((back_project(p[answer], weight) - weight[y[answer]].float()) / query.temperature)
        if vector.any():
            p1 = p[vector] if query.temperature == 1.0 else torch.softmax(logits[vector], dim=-1)
            g = back_project(p1, weight) - weight[y[vector]].float()
            signal = g if query.raw_gradient else g * h[vector].float()
            vector_sum.index_add_(0, query.rows[part][vector], signal)
    cotangent = torch.cat(cotangents) if cotangents else torch.zeros(0, d, device=device)
    return HeadResult(log_probs, entropy, cotangent, vector_sum)


@torch.no_grad()
def answer_sums(hidden: torch.Tensor, query: HeadQuery) -> tuple[torch.Tensor, torch.Tensor]:
    """OAR-G: sum of the hidden states of each row's answer positions, (n_rows, d) float32, and their number (n_rows,).

    The layer is affine, so the mean of the logits over those positions is the layer at sum / number.
    """
    rows = query.rows[query.answer]
    total = torch.zeros(query.n_rows, hidden.shape[1], dtype=torch.float32, device=hidden.device)
    total.index_add_(0, rows, hidden[query.answer].float())
    return total, torch.bincount(rows, minlength=query.n_rows)


@torch.no_grad()
def kl_cotangent(clean: torch.Tensor, noisy: torch.Tensor, weight: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """OAR-G: ``d KL(softmax(clean) || softmax(noisy)) / dh_t``, the same at each answer position of a row.

    Args:
        clean, noisy: (n_rows, V) float32 mean logits over the row's answer positions.
        count: (n_rows,) number of those positions.

    Returns:
        (n_rows, d) float32.
    """
    gradient = back_project(torch.softmax(noisy, -1) - torch.softmax(clean, -1), weight)
    return gradient / count.clamp(min=1).unsqueeze(1)
