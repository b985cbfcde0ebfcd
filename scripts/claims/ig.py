r"""Integrated Gradients against gradient x activation: ``PYTHONPATH=. python scripts/claims/ig.py``.

On a few of the rollouts of `weight_profile.py`, half of them right: saliency of the reasoning tokens under
``algorithm.grail.saliency=integrated_gradients`` with some numbers of steps, against ``gradient_activation`` and
against the largest number of steps. For each: Spearman's rank correlation, the share of the most salient fifth that
both name, the mean difference of GRAIL's weights, and how far the attributions are from adding up to the change of the
loss (completeness). FLOPs of the pass, counted. Intervals: 95 %, by bootstrap over rollouts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import shared
import torch
from scipy.stats import spearmanr
from weight_profile import weights_of

from tests.signals.engines import PlainEngine, run_pass, schedule_rows
from tests.signals.tiny import Row
from tests.signals.traffic import flops_of
from verl_grail.core.spans import AnswerSpan
from verl_grail.core.tokens import TokenBytes
from verl_grail.signals.schedule import Limits


def chosen(found: list[dict], count: int) -> list[dict]:
    """The right and the wrong rollouts with the shortest prompts, half each, one of a kind from a problem."""
    kept: list[dict] = []
    for right in (True, False):
        seen: dict[str, dict] = {}
        for rollout in found:
            if (rollout["outcome"] == "correct") is right:
                seen.setdefault(rollout["problem"], rollout)
        kept += sorted(seen.values(), key=lambda r: len(r["prompt"]))[: count // 2]
    return kept


def row_of(rollout: dict, span: AnswerSpan) -> Row:
    """The rollout."""
    return Row(rollout["prompt"], rollout["response"], (span.start, span.end))


def answer_loss(model: Any, row: Row, scale: float) -> float:
    """Answer loss with every embedding multiplied by ``scale``, at temperature 1."""
    p, (a, b) = len(row.prompt), row.answer
    with torch.no_grad():
        embeddings = model.get_input_embeddings()(row.ids.unsqueeze(0)) * scale
        logits = model(inputs_embeds=embeddings).logits[0, p + a - 1 : p + b - 1].double()
    return float(torch.nn.functional.cross_entropy(logits, row.ids[p + a : p + b], reduction="sum"))


def attributed(model: Any, row: Row, steps: int) -> tuple[np.ndarray, float]:
    """Saliency (T,) of the response and the sum of all attributions, the prompt's included."""
    shared.ATTRIBUTIONS.clear()
    (result,) = shared.signals(model, [row], ig_steps=steps, measure="shared:saliency_and_sum")
    return result["saliency"].numpy(), sum(shared.ATTRIBUTIONS)


def agreement(a: np.ndarray, b: np.ndarray, start: int) -> list[float]:
    """Spearman's correlation over the reasoning, and the share of the most salient fifth in common."""
    n = max(1, start // 5)
    top = [set(np.argsort(-x[:start])[:n].tolist()) for x in (a, b)]
    return [float(spearmanr(a[:start], b[:start]).statistic), len(top[0] & top[1]) / n]


def compare(model: Any, rows: list[Row], spans: list[AnswerSpan], steps: list[int], seed: int) -> dict[str, Any]:
    """What the docstring of this file says, by number of steps; 0: gradient x activation."""
    found = {n: [attributed(model, row, n) for row in rows] for n in (0, *steps)}
    changes = [answer_loss(model, row, 1.0) - answer_loss(model, row, 0.0) for row in rows]
    weights = {}
    for n, pairs in found.items():
        padded = [torch.from_numpy(np.concatenate([[0.0], s])).float() for s, _ in pairs]
        weights[n] = weights_of(padded, spans, "token", "reasoning")
    draws = shared.resamples(len(rows), seed) / len(rows)
    out: dict[str, Any] = {}
    for n, pairs in found.items():
        columns = []
        for i, span in enumerate(spans):
            ours, start = pairs[i][0], span.start
            with_plain, with_best = (agreement(ours, found[m][i][0], start) for m in (0, steps[-1]))
            difference = np.abs(weights[n][i][:start] - weights[0][i][:start]).mean()
            gap = abs(pairs[i][1] - changes[i]) / abs(changes[i])
            columns.append([*with_plain, *with_best, difference, gap])
        values = np.array(columns)
        names = ("spearman", "top_fifth", "spearman_with_most_steps", "top_fifth_with_most_steps", "weight_difference")
        out[str(n)] = {k: shared.estimate(values[:, i].mean(), draws @ values[:, i]) for i, k in enumerate(names)}
        out[str(n)]["completeness_gap_median"] = round(float(np.median(values[:, -1])), 3)
    return out


def cost(model: Any, row: Row, steps: list[int]) -> dict[str, Any]:
    """Counted FLOPs of the pass over one rollout, relative to the pass without a backward and to the plain saliency."""

    def count(row: Row, n: int) -> int:
        order, plans, request = schedule_rows([row], 1, Limits(rows=1), ig_steps=n)
        return flops_of(lambda: run_pass(PlainEngine(model), [row], order[0], plans, request))

    forward, plain = count(Row(row.prompt, row.response), 0), count(row, 0)
    counted = {"gradient_activation": plain, **{str(n): count(row, n) for n in steps}}
    return {
        "tokens": len(row.ids),
        "to_forward_only": {k: round(v / forward, 3) for k, v in counted.items()},
        "to_gradient_activation": {k: round(v / plain, 3) for k, v in counted.items()},
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=shared.WORK)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--steps", type=int, nargs="+", default=[2, 8, 24])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only-cost", action="store_true", help="count FLOPs again and keep the agreement as it is")
    args = parser.parse_args()
    model, tokenizer = shared.load_model(args.work, args.threads)
    token_bytes = TokenBytes.from_tokenizer(tokenizer)
    sampled = shared.rollouts(args.work)
    found = chosen(shared.mixed_problems(sampled["rollouts"], token_bytes, 2, args.seed), args.rollouts)
    spans = [span for _, span in shared.answered(found, token_bytes) if span is not None]
    rows = [row_of(r, s) for r, s in zip(found, spans, strict=True)]
    content = shared.card(threads=args.threads, seed=args.seed)
    content["command"] += f" --rollouts {args.rollouts} --steps {' '.join(map(str, args.steps))}"
    right = sum(r["outcome"] == "correct" for r in found)
    content["rollouts"] = {"right": right, "wrong": len(found) - right, "sampled": sampled["arguments"]}
    content["cost"] = cost(model, rows[0], args.steps)
    if args.only_cost:
        kept = json.loads((shared.RESULTS / "ig.json").read_text())
        if any(kept[key] != content[key] for key in ("rollouts", "command")):
            parser.error("the agreement that is kept is of other rollouts or steps: leave --only-cost out")
        content["agreement"] = kept["agreement"]
    else:
        content["agreement"] = compare(model, rows, spans, sorted(args.steps), args.seed)
    shared.write("ig", content)


if __name__ == "__main__":
    main()
