"""One dumped rollout: parsing, verdict, and which rollouts are worth showing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


def finite(value: Any) -> float | None:
    """A finite float, or None for everything else. Booleans count: a verdict may be one."""
    try:
        return float(value) if isinstance(value, (bool, int, float)) and math.isfinite(value) else None
    except OverflowError:  # an integer beyond the range of floats
        return None


def is_count(value: Any) -> bool:
    """Whether a JSON value can be a step or a number of things: whole, not negative, and small enough for a table."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


@dataclass(frozen=True)
class Rollout:
    """One line of ``rollouts/<step>.jsonl``; what a plain GRPO run does not dump is None or empty."""

    prompt: str
    output: str
    gold: str
    step: int
    uid: str
    score: float | None = None
    acc: float | None = None
    tokens: tuple[str, ...] = ()
    """Response tokens as text, in order."""
    weights: tuple[float | None, ...] = ()
    """Weight of each token; empty if there is none, else as long as `tokens`."""
    weighting: str | None = None
    """Which method gave the weights: ``grail`` or ``oar_g``."""
    advantages: tuple[float | None, ...] = ()
    """Final advantage of each token; empty if there is none, else as long as `tokens`."""
    answer_span: tuple[int, int] | None = None
    """Half-open token range of the final answer, its delimiters included."""
    contents: tuple[tuple[int, int], ...] = ()
    """Half-open token ranges within `answer_span` that hold the answer's content; dumps of 0.1.0 lack them."""
    masked: tuple[tuple[int, int], ...] = ()
    """Half-open token ranges that the policy did not generate."""
    solutions: tuple[str, ...] = ()
    """Expert solutions; only the first dumped rollout of a prompt carries them."""
    weight_outcome: str | None = None
    """What became of the rollout's weights, a `RowOutcome` in lower case."""
    gar_outcome: str | None = None
    reward_outcome: str | None = None
    """The reward function's name of the result, where it gives one."""
    cosine: float | None = None
    bonus: float | None = None

    @property
    def group(self) -> str:
        """The prompt's part of the uid (verl appends ``_<session>_<trajectory>``): equal for one prompt's rollouts."""
        return self.uid.rsplit("_", 2)[0] or self.prompt

    @property
    def correct(self) -> bool | None:
        """The verifier's verdict: `acc` where the reward gives it, else whether the score is positive."""
        judged = self.acc if self.acc is not None else self.score
        return None if judged is None else judged > 0


@dataclass(frozen=True)
class Pick:
    """A rollout to show, and the reason, which the page prints so that nobody takes it for a random sample."""

    rollout: Rollout
    why: str


def parse_rollout(row: dict[str, Any], step: int) -> tuple[Rollout | None, list[str]]:
    """A dumped row as a `Rollout` (None if it has no text at all), and what had to be left out, for counting."""
    trouble: list[str] = []
    output = row.get("output")
    tokens = row.get("tokens")
    tokens = tuple(map(str, tokens)) if isinstance(tokens, list) else ()
    if not isinstance(output, str) and not tokens:
        return None, ["neither output nor tokens, skipped"]
    weighting = next((name for name in ("grail", "oar_g") if f"{name}_weights" in row), None)
    span = _span(row.get("answer_span"), len(tokens))
    if span is None and row.get("answer_span") is not None:
        trouble.append("answer_span is no range of its tokens, left out")
    rollout = Rollout(
        prompt=str(row.get("input") or ""),
        output=output if isinstance(output, str) else "".join(tokens),
        gold=_text(row.get("gts")) or "",
        step=row["step"] if is_count(row.get("step")) else step,
        uid=_text(row.get("uid")) or "",
        score=finite(row.get("score")),
        acc=finite(row.get("acc")),
        tokens=tokens,
        weights=_per_token(row, f"{weighting}_weights", len(tokens), trouble),
        weighting=weighting,
        advantages=_per_token(row, "advantages", len(tokens), trouble),
        answer_span=span,
        contents=_spans(row, "answer_contents", span, trouble),
        masked=_spans(row, "masked", (0, len(tokens)), trouble),
        solutions=tuple(s for s in _list(row.get("expert_solutions")) if isinstance(s, str)),
        weight_outcome=_text(row.get(f"{weighting}_outcome")),
        gar_outcome=_text(row.get("gar_outcome")),
        reward_outcome=_text(row.get("outcome")),
        cosine=finite(row.get("gar_cosine")),
        bonus=finite(row.get("gar_bonus")),
    )
    return rollout, trouble


def _per_token(row: dict[str, Any], key: str, length: int, trouble: list[str]) -> tuple[float | None, ...]:
    values = _list(row.get(key))
    if values and len(values) != length:
        trouble.append(f"{key} and tokens differ in number, {key} left out")
        return ()
    # The usual case by itself, since a run has millions of these: the sum is finite only if every value is.
    if all(type(value) is float for value in values) and math.isfinite(sum(values)):
        return tuple(values)
    return tuple(map(finite, values))


def pick_grail(rollouts: list[Rollout], weighted: int = 3, unselected: int = 2) -> list[Pick]:
    """Wrong rollouts that got token weights, then some that were left alone; at most one a prompt while they last."""
    got = [r for r in rollouts if r.weight_outcome == "weighted"]
    wrong = [r for r in got if r.correct is False]
    left = [r for r in rollouts if r.weight_outcome == "unselected"]
    why = "wrong, token weights applied" if wrong else "token weights applied (no wrong rollout got any)"
    picks = [Pick(r, why) for r in _spread_over_prompts(wrong or got)[:weighted]]
    return picks + [Pick(r, "not selected, all weights 1") for r in _spread_over_prompts(left)[:unselected]]


def pick_gar(rollouts: list[Rollout]) -> list[Pick]:
    """Highest and lowest cosine of one prompt: the prompt whose cosines differ most, so the contrast is seen best."""
    groups: dict[str, list[Rollout]] = {}
    for rollout in rollouts:
        if rollout.cosine is not None:
            groups.setdefault(rollout.group, []).append(rollout)
    ranked = [sorted(group, key=lambda r: r.cosine or 0.0) for group in groups.values() if len(group) > 1]
    if not ranked:
        return []
    group = max(ranked, key=lambda g: (g[-1].cosine or 0.0) - (g[0].cosine or 0.0))
    of = f"of this prompt's {len(group)} rollouts that have one"
    return [Pick(group[-1], f"highest cosine {of}"), Pick(group[0], f"lowest cosine {of}")]


def _spread_over_prompts(rollouts: list[Rollout]) -> list[Rollout]:
    """The same rollouts, every prompt's first one before any prompt's second one; file order otherwise."""
    seen: dict[str, int] = {}
    turns = []
    for rollout in rollouts:
        turns.append(seen.setdefault(rollout.group, 0))
        seen[rollout.group] += 1
    return [rollout for _, rollout in sorted(zip(turns, rollouts, strict=True), key=lambda pair: pair[0])]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _span(value: Any, length: int) -> tuple[int, int] | None:
    if not (isinstance(value, list) and len(value) == 2 and all(map(is_count, value))):
        return None
    start, end = value
    return (start, end) if start < end <= length else None


def _spans(row: dict[str, Any], key: str, within: tuple[int, int] | None, trouble: list[str]) -> tuple:
    """Ranges in order, without overlap and inside of `within`; none at all if one is not."""
    if row.get(key) is None:
        return ()
    spans = [_span(pair, within[1]) if within else None for pair in _list(row[key])]
    ends = [within[0] if within else 0, *(s[1] for s in spans if s)]
    if None in spans or any(s[0] < end for s, end in zip(spans, ends, strict=False) if s):
        trouble.append(f"{key} holds no ordered ranges of its tokens, left out")
        return ()
    return tuple(spans)
