r"""GRAIL's weights over the reasoning of rollouts: ``PYTHONPATH=. python scripts/claims/weight_profile.py``.

Rollouts of `rollouts.py` that have an answer, of problems with right and wrong ones. Position: where a token stands
among the tokens before the answer, from 0 to 1. Both readings: ``paper`` (last box, a token's own embedding, statistics
over the reasoning) and ``authors_code`` (first box, the token before it, statistics over the whole response).
Intervals: 95 %, by bootstrap over problems with all of their rollouts, since rollouts of one problem are alike.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import shared
import torch
from scipy.stats import spearmanr

from tests.signals.tiny import Row
from verl_grail.core.grail import RowOutcome, grail_weights
from verl_grail.core.regions import regions_from_spans
from verl_grail.core.spans import AnswerSpan
from verl_grail.core.tokens import TokenBytes

BINS = 10
READINGS = {"paper": ("last", "token", "reasoning"), "authors_code": ("first", "predictor", "all")}


def row_of(rollout: dict, span: AnswerSpan) -> Row:
    """The rollout with its prompt's last token counted to the response (and masked out), since the published code's
    alignment wants the saliency of that one too; so response token t is at t + 1."""
    prompt, response = rollout["prompt"], rollout["response"]
    return Row(prompt[:-1], [prompt[-1], *response], (span.start + 1, span.end + 1), holes=[0])


def saliencies(model: Any, found: list[dict], spans: dict[str, list[AnswerSpan]]) -> dict[str, list[torch.Tensor]]:
    """Saliency (1 + T,) of every rollout for the last and the first box, prompt's last token first."""
    rows = [row_of(r, s) for r, s in zip(found, spans["last"], strict=True)]
    last = [result["saliency"] for result in shared.signals(model, rows)]
    other = [i for i, (a, b) in enumerate(zip(spans["first"], spans["last"], strict=True)) if a != b]
    first = list(last)
    again = shared.signals(model, [row_of(found[i], spans["first"][i]) for i in other]) if other else []
    for i, result in zip(other, again, strict=True):
        first[i] = result["saliency"]
    return {"last": last, "first": first}


def weights_of(saliency: list[torch.Tensor], spans: list[AnswerSpan], alignment: str, stats: str) -> list[np.ndarray]:
    """Weights (T,) of every rollout; all NaN where GRAIL gives none."""
    out = []
    for values, span in zip(saliency, spans, strict=True):
        aligned = (values[1:] if alignment == "token" else values[:-1]).unsqueeze(0)
        mask = torch.ones_like(aligned, dtype=torch.int64)
        done = grail_weights(aligned, regions_from_spans([span], mask), mask, torch.zeros(1).long(), stats=stats)
        weighted = int(done.outcome) == RowOutcome.WEIGHTED
        out.append(done.weights[0].numpy() if weighted else np.full(aligned.shape[1], np.nan))
    return out


def profile(weights: np.ndarray, start: int, bins: int = BINS) -> np.ndarray:
    """Mean weight (bins,) of the tokens before ``start`` by position (t + 1/2) / start; NaN in an empty bin."""
    at = ((np.arange(start) + 0.5) / start * bins).astype(int)
    sums, counts = (np.bincount(at, minlength=bins, weights=w) for w in (weights[:start], np.ones(start)))
    with np.errstate(invalid="ignore"):
        return sums / counts


def trend(weights: np.ndarray, start: int) -> float:
    """Spearman correlation of position and weight before ``start``; NaN where it is not defined."""
    if start < 3 or np.ptp(weights[:start]) == 0 or not np.isfinite(weights[:start]).all():
        return float("nan")
    return float(spearmanr(np.arange(start), weights[:start]).statistic)


def compared(values: np.ndarray, right: np.ndarray, problems: list[str], seed: int) -> dict[str, Any]:
    """Means of right and of wrong rollouts and their difference, with intervals; values (rollouts, k)."""
    names = sorted(set(problems))
    draws = shared.resamples(len(names), seed)
    means, samples = {}, {}
    for name, rows in (("right", right), ("wrong", ~right)):
        means[name] = np.nanmean(values[rows], axis=0)
        clusters = [p for p, keep in zip(problems, rows, strict=True) if keep]
        samples[name] = shared.cluster_means(values[rows], clusters, draws, names)
    means["right - wrong"] = means["right"] - means["wrong"]
    samples["right - wrong"] = samples["right"] - samples["wrong"]
    return {name: shared.estimate(means[name], samples[name]) for name in means}


def measure(model: Any, tokenizer: Any, found: list[dict], seed: int) -> dict[str, Any]:
    """Profile, trend and weight of digits under both readings."""
    token_bytes = TokenBytes.from_tokenizer(tokenizer)
    spans = {w: [s for _, s in shared.answered(found, token_bytes, w) if s is not None] for w in ("last", "first")}
    saliency = saliencies(model, found, spans)
    right = np.array([r["outcome"] == "correct" for r in found])
    problems = [r["problem"] for r in found]
    digits = [np.array([any(48 <= b < 58 for b in p) for p in token_bytes.pieces(r["response"])]) for r in found]
    readings = {}
    for reading, (which, alignment, stats) in READINGS.items():
        weights = weights_of(saliency[which], spans[which], alignment, stats)
        starts = [s.start for s in spans[which]]
        pairs = list(zip(weights, starts, strict=True))
        columns = {
            "profile": np.array([profile(w, n) for w, n in pairs]),
            "trend": np.array([[trend(w, n)] for w, n in pairs]),
            "digits": np.array([[_gap(w[:n], d[:n])] for (w, n), d in zip(pairs, digits, strict=True)]),
        }
        readings[reading] = {name: compared(v, right, problems, seed) for name, v in columns.items()}
        before = np.concatenate([w[:n] for w, n in pairs if np.isfinite(w).all()])
        readings[reading]["weights"] = {
            "rollouts": sum(bool(np.isfinite(w).all()) for w in weights),
            "mean": round(float(before.mean()), 4),
            "deviation": round(float(before.std()), 4),
        }
    several = sum(a != b for a, b in zip(spans["first"], spans["last"], strict=True))
    return {
        "rollouts": {
            "right": int(right.sum()),
            "wrong": int((~right).sum()),
            "problems": len(set(problems)),
            "reasoning_tokens": round(float(np.mean([s.start for s in spans["last"]])), 1),
            "with_several_boxes": several,
        },
        "readings": readings,
    }


def _gap(weights: np.ndarray, digits: np.ndarray) -> float:
    """Mean weight of tokens with a digit less that of the others; NaN where one kind is missing."""
    return float(weights[digits].mean() - weights[~digits].mean()) if digits.any() and not digits.all() else np.nan


def draw(content: dict[str, Any]) -> None:
    """docs/images/claims_profile.png."""
    drawing, axes = shared.figure(len(READINGS), (9.0, 3.6))
    x = (np.arange(BINS) + 0.5) / BINS
    for ax, (reading, result) in zip(axes, content["readings"].items(), strict=True):
        for colour, marker, verdict in zip(shared.COLOURS, "os", ("right", "wrong"), strict=False):
            line = result["profile"][verdict]
            ax.plot(x, line["mean"], color=colour, marker=marker, markersize=4, linewidth=1.5, label=verdict)
            ax.fill_between(x, line["low"], line["high"], color=colour, alpha=0.15, linewidth=0)
        ax.set_title(f"reading: {reading}")
        ax.set_xlabel("position in the reasoning")
        ax.set_xlim(0, 1)
    axes[0].set_ylabel("mean token weight")
    axes[0].legend(frameon=False)
    shared.save(drawing, "claims_profile")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=shared.WORK)
    parser.add_argument("--wrong-per-right", type=int, default=2, help="wrong rollouts for each right one of a problem")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, tokenizer = shared.load_model(args.work, args.threads)
    sampled = shared.rollouts(args.work)
    found = shared.mixed_problems(
        sampled["rollouts"], TokenBytes.from_tokenizer(tokenizer), args.wrong_per_right, args.seed
    )
    content = shared.card(wrong_per_right=args.wrong_per_right, threads=args.threads, seed=args.seed)
    content["sampled"] = {
        "arguments": sampled["arguments"],
        "rollouts": len(sampled["rollouts"]),
        "problems": len({r["problem"] for r in sampled["rollouts"]}),
        "outcomes": dict(Counter(r["outcome"] for r in sampled["rollouts"])),
    }
    content |= measure(model, tokenizer, found, args.seed)
    shared.write("profile", content)
    draw(content)


if __name__ == "__main__":
    main()
