"""GRAIL's and OAR-G's share of a step: which rows need a backward, and weights and metrics from what it gave."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from verl_grail.config import GrailConfig, OarGConfig
from verl_grail.core.answers import AnswerPolicy, load_function
from verl_grail.core.grail import GrailWeights, RowOutcome, grail_weights
from verl_grail.core.oar_g import oar_g_weights
from verl_grail.core.regions import Regions, regions_from_spans
from verl_grail.core.spans import AnswerSpan, locate_answer
from verl_grail.core.tokens import TokenBytes
from verl_grail.plugin.estimators import base_advantage
from verl_grail.plugin.step import StepRows

_GROUP_LOCAL = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "grpo_passk")
"""Base estimators whose advantage depends on a row's own group alone."""


@dataclass
class WeightingPlan:
    """Answer spans of every row and the `RowOutcome` known before the pass; WEIGHTED rows get a backward."""

    spans: list[AnswerSpan | None]
    regions: Regions
    outcome: torch.Tensor


@dataclass
class Weighting:
    """Weights (B, T) float32, final `RowOutcome` (B,) and the metrics of the step; ``name`` is the method's."""

    name: str
    weights: torch.Tensor
    outcome: torch.Tensor
    metrics: dict[str, float]


def noise_key(ids: Sequence[int]) -> int:
    """OAR-G: a row's identity for its noise, from its content, so that it survives reordering and resume."""
    return zlib.crc32(torch.tensor(ids, dtype=torch.int64).numpy().tobytes())


def plan_weighting(
    rows: StepRows,
    section: GrailConfig | OarGConfig,
    token_bytes: TokenBytes,
    algorithm,
    bonus_groups: frozenset[str] = frozenset(),
    advantage_is_final: bool = True,
    policy: AnswerPolicy | None = None,
) -> WeightingPlan:
    """Select rows before the pass.

    Args:
        rows: the step's rows, rewards without any bonus.
        algorithm: verl's ``config.algorithm``, for the base estimator.
        bonus_groups: prompts whose rewards GAR may still change.
        advantage_is_final: False if verl changes rewards or masks after the log-prob pass (KL in reward, rejection),
            so a zero advantage is not known to stay zero.
        policy: what counts as the answer (``algorithm.answers`` with the method's ``box``).
    """
    policy = policy or AnswerPolicy(which=section.box)
    spans = [
        None if pad else locate_answer(ids, token_bytes, policy, allowed=mask)
        for ids, pad, mask in zip(rows.responses, rows.padding.tolist(), rows.response_mask.tolist(), strict=True)
    ]
    regions = regions_from_spans(spans, rows.response_mask)
    outcome = torch.full((len(rows),), int(RowOutcome.WEIGHTED))

    base, _ = base_advantage(
        section, rows.rewards, rows.response_mask, rows.index, algorithm, rows.sessions, rows.left_out
    )
    zero = (base * rows.response_mask).abs().amax(1) == 0
    if not advantage_is_final or not section.skip_zero_advantage:
        zero = torch.zeros_like(zero)
    elif bonus_groups:
        local = section.base_estimator in _GROUP_LOCAL
        zero &= torch.tensor([local and uid not in bonus_groups for uid in rows.uids])
    if section.select_by == "advantage":
        first = rows.response_mask.argmax(dim=1)
        wrong = base[torch.arange(len(rows)), first] <= 0
    else:
        wrong = ~rows.correct
    unselected = {"all": torch.zeros_like(wrong), "wrong": ~wrong, "correct": wrong}[section.rollouts]
    for applies, name in (
        (~regions.found, RowOutcome.NO_ANSWER),
        (zero, RowOutcome.ZERO_ADVANTAGE),
        (unselected, RowOutcome.UNSELECTED),
        (rows.ungraded, RowOutcome.UNGRADED),
        (rows.padding, RowOutcome.PADDING),
    ):  # the last one that applies names the row
        outcome[applies] = int(name)
    return WeightingPlan(spans, regions, outcome)


def _row_metrics(name: str, rows: StepRows, plan: WeightingPlan, outcome: torch.Tensor) -> dict[str, float]:
    real = ~rows.padding
    n = int(real.sum())
    counts = {o: int(((outcome == o) & real).sum()) for o in RowOutcome}
    aside = (RowOutcome.UNSELECTED, RowOutcome.ZERO_ADVANTAGE, RowOutcome.UNGRADED)
    asked = n - sum(counts[o] for o in aside)
    metrics = {f"{name}/rows/{o.name.lower()}": float(c) for o, c in counts.items() if o is not RowOutcome.PADDING}
    metrics[f"{name}/answer_found_rate"] = float(plan.regions.found[real].float().mean()) if n else 0.0
    metrics[f"{name}/fallback_rate"] = (asked - counts[RowOutcome.WEIGHTED]) / asked if asked else 0.0
    metrics[f"{name}/rows_skipped"] = float(((plan.outcome != RowOutcome.WEIGHTED) & real).sum())
    return metrics


def _weight_metrics(name: str, weights: torch.Tensor, live: torch.Tensor) -> dict[str, float]:
    values = weights[live]
    if values.numel() == 0:
        return {f"{name}/weight_mean": 1.0, f"{name}/weight_std": 0.0}
    return {f"{name}/weight_mean": float(values.mean()), f"{name}/weight_std": float(values.std(unbiased=False))}


def weigh_grail(rows: StepRows, plan: WeightingPlan, section: GrailConfig, saliency: torch.Tensor) -> Weighting:
    """GRAIL weights of the step from the pass's saliency (B, T).

    Raises:
        RuntimeError: every row with a saliency had a constant one; the gradient does not reach the leaf.
    """
    done = grail_weights(
        saliency,
        plan.regions,
        rows.response_mask,
        plan.outcome,
        w_mean=section.w_mean,
        sigma_w=section.sigma_w,
        w_min=section.w_min,
        w_max=section.w_max,
        delimiter_weight=section.delimiter_weight,
        stats=str(section.stats),
        correct_unselected=bool(section.correct_unselected),
    )
    degenerate = done.outcome == RowOutcome.DEGENERATE
    several = plan.regions.reasoning.sum(1) > 1
    if not (done.outcome == RowOutcome.WEIGHTED).any() and int((degenerate & several).sum()) > 1:
        raise RuntimeError(
            "grail: the saliency of every selected rollout is constant, so the answer's gradient does not reach the "
            f"leaf (algorithm.grail.leaf={section.leaf}). A model that detaches its embeddings, or LoRA with a "
            "checkpointing that drops input gradients, does this"
        )
    name = "grail"
    if section.rule is not None:
        done = _by_own_rule(section.rule, done, plan, rows, saliency)
    weighted = (done.outcome == RowOutcome.WEIGHTED).unsqueeze(1) & rows.response_mask.bool()
    metrics = _row_metrics(name, rows, plan, done.outcome) | _weight_metrics(name, done.weights, weighted)
    scored = max(int(done.scored.sum()), 1)
    metrics[f"{name}/clip_frac_min"] = float(done.clipped_low.sum()) / scored
    metrics[f"{name}/clip_frac_max"] = float(done.clipped_high.sum()) / scored
    s = saliency[done.scored].float().numpy()
    for q in (10, 90):
        metrics[f"{name}/grad_norm_p{q}"] = float(np.percentile(s, q)) if s.size else 0.0
    return Weighting(name, done.weights, done.outcome, metrics)


def _by_own_rule(
    path: str, done: GrailWeights, plan: WeightingPlan, rows: StepRows, saliency: torch.Tensor
) -> GrailWeights:
    """Weights of a user's rule on the rows that GRAIL would weigh; rows where they are not finite are left at 1.

    Raises:
        RuntimeError: the rule returned another shape.
    """
    rule = load_function(path, "rule", ())
    weights, outcome = done.weights.clone(), done.outcome.clone()
    for row in torch.nonzero(outcome == RowOutcome.WEIGHTED).flatten().tolist():
        n = len(rows.responses[row])
        found = torch.as_tensor(rule(saliency[row, :n].float(), plan.regions.reasoning[row, :n]), dtype=torch.float32)
        if found.shape != (n,):
            raise RuntimeError(
                f"algorithm.grail.rule={path} returned shape {tuple(found.shape)} for a response of {n} tokens"
            )
        weights[row] = 1.0
        if not bool(torch.isfinite(found).all()):
            outcome[row] = int(RowOutcome.NON_FINITE)
            continue
        weights[row, :n] = torch.where(rows.response_mask[row, :n].bool(), found, 1.0)
    nothing = torch.zeros_like(done.clipped_low)
    return replace(done, weights=weights, outcome=outcome, clipped_low=nothing, clipped_high=nothing)


def weigh_oar_g(rows: StepRows, plan: WeightingPlan, section: OarGConfig, influence: torch.Tensor) -> Weighting:
    """OAR-G weights of the step from the pass's influence (B, T)."""
    selected = plan.outcome == RowOutcome.WEIGHTED
    weights, weighted = oar_g_weights(
        influence,
        plan.regions,
        rows.response_mask,
        selected,
        quantile=section.quantile,
        floor=section.floor,
        boost=section.boost,
        stats=str(section.stats),
    )
    outcome = plan.outcome.clone()
    finite = (torch.isfinite(influence) | ~rows.response_mask.bool()).all(1)
    outcome[selected & ~weighted] = int(RowOutcome.DEGENERATE)
    outcome[selected & ~weighted & ~finite] = int(RowOutcome.NON_FINITE)
    if section.stats == "reasoning":
        outcome[selected & (plan.regions.reasoning.sum(1) == 0)] = int(RowOutcome.NO_SCORED_TOKENS)
    name = "oar_g"
    live = weighted.unsqueeze(1) & rows.response_mask.bool()
    metrics = _row_metrics(name, rows, plan, outcome) | _weight_metrics(name, weights, live)
    return Weighting(name, weights, outcome, metrics)


def scale_ratio(base: torch.Tensor, weights: torch.Tensor, response_mask: torch.Tensor) -> float:
    """Mean absolute advantage after over before the weights; 1 where every advantage is zero."""
    before = (base.abs() * response_mask).sum()
    return float((base.abs() * weights * response_mask).sum() / before) if before > 0 else 1.0
