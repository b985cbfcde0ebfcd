"""The output layer in token chunks: log-probs, entropy, answer-loss cotangents and gradient-activation vectors.

One product ``W h`` per token serves everything, and the B x T x V logits never exist: only ``chunk`` rows of them do.
The layer may be split over processes by vocabulary (`Vocabulary`): then each holds some columns of the logits, and what
crosses processes is (N,) for log-probs and entropy, (n_rows, d) for vectors and (N_answer, d) for cotangents.

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


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


@dataclass(frozen=True)
class Vocabulary:
    """The part of the vocabulary that this process's output layer holds.

    Attributes:
        start: first token id of the part.
        sum, max: element-wise reductions over the processes that hold the other parts.
    """

    start: int = 0
    sum: Callable[[torch.Tensor], torch.Tensor] = _same
    max: Callable[[torch.Tensor], torch.Tensor] = _same

    def local(self, labels: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Column of each label, (N,) int64, and which labels lie in this part, (N,) bool."""
        at = labels - self.start
        inside = (at >= 0) & (at < size)
        return torch.where(inside, at, 0), inside


WHOLE = Vocabulary()
"""An output layer that is not split."""


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
    vocabulary: Vocabulary = WHOLE,
) -> HeadResult:
    """Everything the signals need from the output layer, ``chunk`` positions at a time.

    Args:
        hidden: (N, d), the states that predict ``query.labels``.
        project: hidden (n, d) -> logits (n, V), the model's own layer (bias and autocast included).
        weight: (V, d), that layer's weight.
        vocabulary: the part of it that this process holds; V is then the size of the part.
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
        column, inside = vocabulary.local(y, weight.shape[0])
        scaled = logits if query.temperature == 1.0 else logits / query.temperature
        p, log_probs[part], entropy[part] = _softmax(scaled, column, inside, vocabulary)

        answer, vector = query.answer[part], query.vector[part]
        if answer.any():
            g = _output_gradient(p[answer], weight, column[answer], inside[answer])
            cotangents.append(vocabulary.sum(g) / query.temperature)
        if vector.any():
            p1 = p[vector]
            if query.temperature != 1.0:
                p1 = _softmax(logits[vector], column[vector], inside[vector], vocabulary)[0]
            g = _output_gradient(p1, weight, column[vector], inside[vector])
            vector_sum.index_add_(0, query.rows[part][vector], g if query.raw_gradient else g * h[vector].float())
    cotangent = torch.cat(cotangents) if cotangents else torch.zeros(0, d, device=device)
    if query.vector.any():
        # linear in g, so the sum over the vocabulary's parts may come after the one over tokens
        vector_sum = vocabulary.sum(vector_sum)
    return HeadResult(log_probs, entropy, cotangent, vector_sum)


def _softmax(
    logits: torch.Tensor, column: torch.Tensor, inside: torch.Tensor, vocabulary: Vocabulary
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Softmax (n, V) of this part, and log-prob of the label and entropy (n,) over the whole vocabulary."""
    largest = vocabulary.max(logits.amax(-1))
    p = torch.exp(logits - largest.unsqueeze(1))
    label = torch.where(inside, logits.gather(1, column.unsqueeze(1)).squeeze(1), 0.0)
    total, weighted, label = vocabulary.sum(torch.stack([p.sum(-1), (p * logits).sum(-1), label])).unbind(0)
    lse = largest + torch.log(total)
    return p.div_(total.unsqueeze(1)), label - lse, lse - weighted / total


def _output_gradient(p: torch.Tensor, weight: torch.Tensor, column: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
    """``W^T (p - onehot(y))``, (n, d) float32; this part's share of it."""
    return back_project(p, weight) - weight[column].float() * inside.unsqueeze(1)


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
def kl_cotangent(
    clean: torch.Tensor,
    noisy: torch.Tensor,
    weight: torch.Tensor,
    count: torch.Tensor,
    vocabulary: Vocabulary = WHOLE,
) -> torch.Tensor:
    """OAR-G: ``d KL(softmax(clean) || softmax(noisy)) / dh_t``, the same at each answer position of a row.

    Args:
        clean, noisy: (n_rows, V) float32 mean logits over the row's answer positions; this part of the vocabulary.
        count: (n_rows,) number of those positions.

    Returns:
        (n_rows, d) float32.
    """
    nothing = torch.zeros(clean.shape[0], dtype=torch.int64, device=clean.device)
    q, p0 = (_softmax(z, nothing, nothing.bool(), vocabulary)[0] for z in (noisy, clean))
    return vocabulary.sum(back_project(q - p0, weight)) / count.clamp(min=1).unsqueeze(1)
