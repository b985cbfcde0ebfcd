r"""Output-layer NTK similarity as prediction error x activation: ``PYTHONPATH=. python scripts/claims/ntk.py``.

GAR's section 3.1: for two tokens ``<dL_i/dW, dL_j/dW> = <p_i - y_i, p_j - y_j> * <h_i, h_j>``. Checked in float64
against autograd's gradient of each token's loss with respect to the output layer, for every pair of tokens of tiny
models and of a few tokens of SmolLM2 (its tied output layer taken as a matrix of its own, as the paper does).

And for whole solutions (``solutions.json``, in the chat template): the cosine of their mean output-layer gradients,
from the same factors, beside GAR's cosine, which the paper bounds it by. Their rank correlation is over the pairs of
solutions of one problem; intervals: 95 %, by bootstrap over problems. GAR's vectors are computed here from the formula,
not by the pass. ``peak``: share of a vector's squared length in its 10 largest dimensions.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import shared
import torch
from cosine import Solution, by_problem, compare, read, rows_of
from scipy.stats import spearmanr

from tests.signals.tiny import Row, build_model, ragged_rows
from verl_grail.core.gar import normalise

TOKENS_OF_SMOLLM2 = 6
PEAK = 10


@torch.no_grad()
def states(model: Any, row: Row) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states (T, d) that predict the response's tokens, and those tokens (T,)."""
    p = len(row.prompt)
    hidden = model.model(input_ids=row.ids.unsqueeze(0)).last_hidden_state[0]
    return hidden[p - 1 : -1], row.ids[p:]


def by_autograd(hidden: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Gram matrix (T, T) of the gradients of each token's loss with respect to the output layer."""
    w = weight.clone().requires_grad_()
    gradients = []
    for h, y in zip(hidden, labels, strict=True):
        loss = torch.nn.functional.cross_entropy((w @ h).unsqueeze(0), y.unsqueeze(0))
        gradients.append(torch.autograd.grad(loss, w)[0].flatten())
    flat = torch.stack(gradients)
    return flat @ flat.T


def errors(hidden: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Prediction errors ``softmax(W h) - onehot(y)``, (T, V)."""
    p = torch.softmax(hidden @ weight.T, -1)
    p[torch.arange(len(labels)), labels] -= 1
    return p


def factored(hidden: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The same matrix from the two factors."""
    e = errors(hidden, labels, weight)
    return (e @ e.T) * (hidden @ hidden.T)


def relative_error(found: torch.Tensor, want: torch.Tensor) -> float:
    """Largest difference of two Gram matrices, relative to the product of the two norms."""
    norms = want.diagonal().sqrt()
    return float(((found - want).abs() / (norms[:, None] * norms)).max())


def check(model: Any, rows: list[Row], tokens: int | None = None) -> dict[str, Any]:
    """Both ways over the first ``tokens`` response tokens of the rows, in float64."""
    parts = [states(model, row) for row in rows]
    hidden = torch.cat([h for h, _ in parts])[:tokens].double()
    labels = torch.cat([y for _, y in parts])[:tokens]
    weight = model.lm_head.weight.detach().double()
    want = by_autograd(hidden, labels, weight)
    error = relative_error(factored(hidden, labels, weight), want)
    return {"tokens": len(labels), "pairs": len(labels) * (len(labels) + 1) // 2, "max_relative_error": error}


def similarity(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Cosines (n, n) of mean output-layer gradients: entry (a, b) is the mean over tokens i of a and j of b of
    <error_i, error_j> <h_i, h_j>, normalised.

    Args:
        parts: prediction errors (T, V) and states (T, d) of each sequence.
    """
    n = len(parts)
    gram = torch.zeros(n, n, dtype=torch.float64)
    for a, b in [(i, j) for i in range(n) for j in range(i, n)]:
        (ea, ha), (eb, hb) = parts[a], parts[b]
        gram[a, b] = gram[b, a] = ((ea @ eb.T) * (ha @ hb.T)).mean().double()
    norms = gram.diagonal().sqrt()
    return gram / (norms[:, None] * norms)


def solutions_both_ways(model: Any, tokenizer: Any, solutions: list[Solution], seed: int) -> dict[str, Any]:
    """NTK similarity and GAR's cosine of the solutions of each problem."""
    weight = model.lm_head.weight.detach()
    rows = rows_of(solutions, tokenizer, "chat")
    n = len(solutions)
    ntk, gar = np.full((n, n), np.nan), np.full((n, n), np.nan)
    problems = sorted({s.problem for s in solutions})
    peaks = []
    for p in problems:
        mine = [i for i, s in enumerate(solutions) if s.problem == p]
        parts, vectors = [], []
        for i in mine:
            hidden, labels = states(model, rows[i])
            e = errors(hidden, labels, weight)
            parts.append((e, hidden))
            gradient = e @ weight
            vectors.append((gradient * hidden).mean(0))
            peaks.append([peak(vectors[-1]), peak(gradient.mean(0))])
        v = normalise(torch.stack(vectors))
        ntk[np.ix_(mine, mine)], gar[np.ix_(mine, mine)] = similarity(parts).numpy(), (v @ v.T).numpy()
    correlations = []
    for p in problems:
        pairs = list(combinations([i for i, s in enumerate(solutions) if s.problem == p], 2))
        correlations.append(np.array([[ntk[i, j], gar[i, j]] for i, j in pairs]))
    draws = np.random.default_rng(seed).integers(0, len(problems), (1000, len(problems)))
    samples = [_rank(np.concatenate([correlations[k] for k in draw])) for draw in draws]
    return {
        "pairs": sum(map(len, correlations)),
        "spearman": shared.estimate(_rank(np.concatenate(correlations)), np.array(samples)),
        "ntk": compare(_within(ntk, solutions), seed),
        "gar": {k: round(float(v.mean()), 4) for k, v in _within(gar, solutions).items()},
        "peak": dict(zip(("gradient x activation", "gradient"), np.round(np.mean(peaks, 0), 4).tolist(), strict=True)),
        "width": weight.shape[1],
    }


def peak(vector: torch.Tensor, dimensions: int = PEAK) -> float:
    """Share of a vector's squared length in its largest dimensions."""
    squares = vector.square()
    return float(squares.topk(dimensions).values.sum() / squares.sum())


def _within(matrix: np.ndarray, solutions: list[Solution]) -> dict[str, np.ndarray]:
    """`by_problem` of a matrix that holds pairs of one problem only."""
    kinds = by_problem(np.nan_to_num(matrix), solutions)
    kinds.pop("other problem")  # not computed: a pair needs both solutions' errors over the vocabulary
    return kinds


def _rank(pairs: np.ndarray) -> float:
    return float(spearmanr(pairs[:, 0], pairs[:, 1]).statistic)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=shared.WORK)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, tokenizer = shared.load_model(args.work, args.threads)
    solutions = read()
    content: dict[str, Any] = shared.card(threads=args.threads, seed=args.seed)
    content["pairs_of_tokens"] = {
        **{kind: check(build_model(kind).double(), ragged_rows()) for kind in ("qwen3", "llama")},
        "SmolLM2-135M-Instruct": check(model, rows_of(solutions[:1], tokenizer, "chat"), TOKENS_OF_SMOLLM2),
    }
    content["solutions"] = solutions_both_ways(model, tokenizer, solutions, args.seed)
    shared.write("ntk", content)


if __name__ == "__main__":
    main()
