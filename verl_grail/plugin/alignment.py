"""GAR's share of a step: which rows need a vector, the anchors, the group-centred bonus and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from verl_grail.config import GarConfig
from verl_grail.core.gar import anchor_alignment, as_solutions, group_bonus
from verl_grail.core.thinking import ThinkTags, solution_span
from verl_grail.core.tokens import TokenBytes
from verl_grail.plugin.step import StepRows


@dataclass(frozen=True)
class Anchor:
    """One expert (or teacher-rolled) solution, teacher-forced after its prompt."""

    uid: str
    auxiliary: bool
    prompt: list[int]
    solution: list[int]
    span: tuple[int, int]


@dataclass
class AlignmentPlan:
    """Rows (final outputs that pass) with their spans, and the anchors of their prompts.

    ``missing`` counts prompts with a passing rollout but no expert solution; their rollouts get no vector.
    """

    rows: list[int] = field(default_factory=list)
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    anchors: list[Anchor] = field(default_factory=list)
    missing: int = 0
    passing: int = 0

    @property
    def groups(self) -> frozenset[str]:
        """Prompts whose rewards the bonus may change."""
        return frozenset(a.uid for a in self.anchors)


@dataclass
class Alignment:
    """Cosine and bonus by row (only rows with a vector), and the metrics of the step."""

    cosine: dict[int, float]
    bonus: dict[int, float]
    metrics: dict[str, float]


def _passes(info: dict, gar: GarConfig) -> bool:
    if not gar.gate:
        return info.get("gar_format_valid", 0.0) > 0
    return info.get("gar_pass", 0.0) > 0


def plan_alignment(
    rows: StepRows,
    gar: GarConfig,
    encode: Callable[[str], list[int]],
    token_bytes: TokenBytes,
    max_solution_length: int,
    special_ids: frozenset[int] = frozenset(),
) -> AlignmentPlan:
    """Rows that need a vector and one set of anchors per prompt with such a row.

    Args:
        rows: the step's rows with ``info`` of the ``gar`` manager and the solution columns.
        encode: solution text -> token ids, without special tokens.
        max_solution_length: solutions are cut to so many tokens (data.max_response_length).
    """
    plan = AlignmentPlan()
    tags = ThinkTags(gar.think_open, gar.think_close, gar.open_in_prompt)
    by_prompt: dict[str, list[int]] = {}
    for row in rows.sessions.final_rows:
        if rows.padding[row] or not _passes(rows.info[row], gar):
            continue
        plan.passing += 1
        by_prompt.setdefault(rows.uids[row], []).append(row)
    outcomes = [rows.info[r].get("gar_outcome") for r in rows.sessions.final_rows if not rows.padding[r]]
    if len(outcomes) > 1 and all(o == "verify_error" for o in outcomes):
        raise RuntimeError(
            "gar: the verifier failed on every rollout of the step, so it is broken rather than the rollouts: see the "
            "reward workers' log and reward.custom_reward_function.path"
        )
    for uid, members in by_prompt.items():
        first = members[0]
        prompt = rows.prompts[rows.origin(first)]
        primary = as_solutions(rows.columns[gar.solution_key][first], gar.max_solutions)
        auxiliary = []
        if gar.aux_solution_key and gar.aux_mode != "real_only":
            auxiliary = as_solutions(rows.columns[gar.aux_solution_key][first], gar.max_solutions)
        encoded = [(encode(t), False) for t in primary] + [(encode(t), True) for t in auxiliary]
        if not any(ids for ids, is_aux in encoded if not is_aux):
            plan.missing += 1
            continue
        for ids, is_aux in encoded:
            ids = ids[:max_solution_length]
            if ids:
                whole = (0, len(ids))
                span = solution_span(ids, token_bytes, tags, special_ids) if gar.span == "think" else whole
                plan.anchors.append(Anchor(uid, is_aux, prompt, ids, span))
        for row in members:
            info = rows.info[row]
            plan.spans[row] = (int(info["gar_span_start"]), int(info["gar_span_end"]))
        plan.rows += members
    return plan


def align(
    rows: StepRows, plan: AlignmentPlan, gar: GarConfig, vectors: torch.Tensor, anchors: torch.Tensor
) -> Alignment:
    """Cosines and bonuses of the step.

    Args:
        vectors: (len(plan.rows), d) gradient-activation vectors, in the order of ``plan.rows``.
        anchors: (len(plan.anchors), d), in the order of ``plan.anchors``.
    """
    cosine = torch.full((len(plan.rows),), float("nan"))
    usable = torch.isfinite(vectors).all(1) & (vectors.norm(dim=1) > 0)
    sound = torch.isfinite(anchors).all(1) & (anchors.norm(dim=1) > 0)
    of_prompt: dict[str, tuple[list[int], list[int]]] = {}
    for i, a in enumerate(plan.anchors):
        if sound[i]:
            of_prompt.setdefault(a.uid, ([], []))[int(a.auxiliary)].append(i)
    uids = [rows.uids[r] for r in plan.rows]
    for uid, (primary, auxiliary) in of_prompt.items():
        members = [i for i, u in enumerate(uids) if u == uid and usable[i]]
        if members and primary:
            cosine[members] = anchor_alignment(vectors[members], anchors[primary], anchors[auxiliary], gar.aux_mode)
    bonus = group_bonus(cosine, uids, gar.beta, str(gar.single))
    return Alignment(
        cosine={row: float(c) for row, c in zip(plan.rows, cosine, strict=True)},
        bonus={row: float(b) for row, b in zip(plan.rows, bonus, strict=True)},
        metrics=_metrics(rows, plan, cosine, bonus),
    )


def _metrics(rows: StepRows, plan: AlignmentPlan, cosine: torch.Tensor, bonus: torch.Tensor) -> dict[str, float]:
    infos = [rows.info[r] for r in rows.sessions.final_rows if not rows.padding[r]]
    n = max(len(infos), 1)
    finite = cosine[torch.isfinite(cosine)]
    metrics = {
        "gar/bonus_mean": float(bonus.mean()) if bonus.numel() else 0.0,
        "gar/anchors": float(len(plan.anchors)),
        "gar/missing_expert": float(plan.missing),
        "gar/non_finite": float(cosine.numel() - finite.numel()),
        "gar/rows_skipped": float(len(infos) - len(plan.rows)),
        "gar/gate_rate": sum(i.get("gar_pass", 0.0) for i in infos) / n,
        "gar/format_valid_rate": sum(i.get("gar_format_valid", 0.0) for i in infos) / n,
        "gar/format_penalty_mean": sum(i.get("gar_format_penalty", 0.0) for i in infos) / n,
        "gar/length_penalty_mean": sum(i.get("gar_length_penalty", 0.0) for i in infos) / n,
    }
    if finite.numel():
        metrics["gar/cosine_mean"] = float(finite.mean())
        metrics["gar/cosine_std"] = float(finite.std(unbiased=False))
    for outcome in ("pass", "wrong", "format_broken", "verify_timeout", "verify_error", "ungraded"):
        metrics[f"gar/rows/{outcome}"] = float(sum(i.get("gar_outcome") == outcome for i in infos))
    return metrics
