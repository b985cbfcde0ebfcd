"""From records to one line per problem, and to the metrics of a benchmark."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from verl_grail.evaluation import EvaluationError
from verl_grail.evaluation.engines import FAILED, TRUNCATED
from verl_grail.evaluation.problems import Problem
from verl_grail.evaluation.protocol import Protocol
from verl_grail.evaluation.stats import bootstrap_interval, mean_or_none, pass_at_k, spread
from verl_grail.evaluation.store import Key, Sample
from verl_grail.evaluation.votes import Same, majority, same_by
from verl_grail.grading.compare import Outcome
from verl_grail.grading.grade import Grader
from verl_grail.grading.pool import default_workers

UNGRADED = (FAILED, Outcome.UNPARSEABLE_GOLD.value)
"""Outcomes that say nothing about the model: left out of every metric, and counted."""


@dataclass(frozen=True)
class ProblemRun:
    """One problem in one run: graded samples, how many are right, the score of the vote (None without samples)."""

    n: int
    correct: int
    vote: float | None
    answer: str | None = None
    bounded: bool = False


@dataclass(frozen=True)
class ProblemLine:
    """One line of ``problems/BENCHMARK.jsonl``."""

    id: str
    gold: Any
    runs: list[ProblemRun]


def metric_names(protocol: Protocol) -> list[str]:
    """What is reported of a protocol. ``accuracy`` is pass@1."""
    names = ["accuracy", *(f"pass@{k}" for k in protocol.pass_at if k > 1)]
    return names + ([f"majority@{protocol.sampling.samples}"] if protocol.sampling.samples > 1 else [])


def problem_lines(
    problems: Sequence[Problem], samples: Mapping[Key, Sample], runs: int, grader: Grader
) -> list[ProblemLine]:
    """Count and vote, problem by problem.

    Args:
        runs: of the protocol; samples of higher ones are left out.
        grader: decides which answers are the same.
    """
    by_problem: dict[tuple[str, int], list[Sample]] = defaultdict(list)
    for sample in samples.values():
        if sample.outcome not in UNGRADED:
            by_problem[sample.id, sample.run].append(sample)

    def line(problem: Problem) -> ProblemLine:
        same = same_by(grader)
        return ProblemLine(
            problem.id, problem.gold, [_problem_run(by_problem[problem.id, r], same) for r in range(runs)]
        )

    keys = [(p.id, r) for p in problems for r in range(runs)]
    by_problem |= {key: sorted(by_problem[key], key=lambda s: s.sample) for key in keys}
    with ThreadPoolExecutor(grader.workers or default_workers()) as pool:
        return list(pool.map(line, problems))


def _problem_run(samples: list[Sample], same: Same) -> ProblemRun:
    if not samples:
        return ProblemRun(0, 0, None)
    vote = majority([(s.outcome, s.answer) for s in samples], same)
    correct = sum(s.outcome == Outcome.CORRECT.value for s in samples)
    return ProblemRun(len(samples), correct, vote.score, vote.answer, vote.bounded)


def scores(lines: Sequence[ProblemLine], metric: str) -> np.ndarray:
    """Score of every problem in every run.

    Args:
        metric: ``accuracy``, ``pass@k``, ``majority@n`` (a vote of n samples) or ``majority`` (of those there are).

    Returns:
        (runs, problems) float64; NaN where it is not defined: no graded sample, fewer than k, or not n.

    Raises:
        EvaluationError: no such metric.
    """
    name, _, number = metric.partition("@")
    numbered = number.isdecimal() and int(number) >= 1
    if not {"accuracy": not number, "pass": numbered, "majority": numbered or not number}.get(name, False):
        raise EvaluationError(f"--metric {metric} is not accuracy, pass@k or majority")

    def score(run: ProblemRun) -> float:
        if name == "majority":
            return np.nan if run.vote is None or (number and run.n != int(number)) else run.vote
        k = int(number) if name == "pass" else 1
        return pass_at_k(run.n, run.correct, k) if run.n >= k else np.nan

    runs = len(lines[0].runs) if lines else 0
    table = [[score(run) for run in line.runs] for line in lines]
    return np.array(table, dtype=np.float64).reshape(len(lines), runs).T


def by_problem(table: np.ndarray) -> np.ndarray:
    """(runs, problems) -> mean over the runs of each problem that has a score in every run, shape (kept,)."""
    kept = table[:, ~np.isnan(table).any(axis=0)]
    return kept.mean(axis=0) if kept.size else np.zeros(0)


def summarise(lines: Sequence[ProblemLine], samples: Iterable[Sample], names: Sequence[str]) -> dict[str, Any]:
    """Metrics, rates and lengths of a benchmark.

    Returns:
        ``metrics``: name -> value, low, high (95 %, None where resampling cannot say), runs (value of each), spread
        (standard deviation over them), problems (that count). ``rates``: shares of the samples that were had.
        ``tokens``: of those whose length is known. ``outcomes``: counts. Values are None of nothing.
    """
    samples = list(samples)
    had = [s for s in samples if s.outcome != FAILED]
    outcomes = Counter(s.outcome for s in samples)
    lengths = [s.tokens for s in had if s.tokens is not None]

    def rate(count: int) -> float | None:
        return count / len(had) if had else None

    return {
        "problems": len(lines),
        "samples": len(samples),
        "failed": outcomes[FAILED],
        "ungraded_problems": sum(all(run.n == 0 for run in line.runs) for line in lines),
        "bounded_votes": sum(run.bounded for line in lines for run in line.runs),
        "metrics": {name: _metric(scores(lines, name)) for name in names},
        "rates": {
            "truncated": rate(sum(s.finish == TRUNCATED for s in had)),
            "no_answer": rate(outcomes[Outcome.NO_ANSWER.value]),
            "empty": rate(sum(not s.response.strip() for s in had)),
        },
        "tokens": {
            "mean": mean_or_none(lengths),
            "median": float(np.median(lengths)) if lengths else None,
            "max": max(lengths, default=None),
            "unknown": len(had) - len(lengths),
        },
        "outcomes": dict(sorted(outcomes.items())),
    }


def _metric(table: np.ndarray) -> dict[str, Any]:
    values = by_problem(table)
    interval = bootstrap_interval([values])
    complete = table[:, ~np.isnan(table).any(axis=0)]
    runs = [float(v) for v in complete.mean(axis=1)] if values.size else []
    return {
        "value": mean_or_none(values),
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "problems": int(values.size),
        "runs": runs,
        "spread": spread(runs),
    }


def average(tables: Mapping[str, Sequence[ProblemLine]], names: Sequence[str]) -> dict[str, Any]:
    """Plain mean of the benchmarks, as the papers average, with an interval from resampling problems within each."""
    found = {}
    for name in names:
        values = [by_problem(scores(lines, name)) for lines in tables.values()]
        values = [v for v in values if v.size]
        interval = bootstrap_interval(values)
        found[name] = {
            "value": mean_or_none([v.mean() for v in values]),
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
            "benchmarks": len(values),
        }
    return found


def as_records(lines: Sequence[ProblemLine]) -> list[dict[str, Any]]:
    """For JSON."""
    return [asdict(line) for line in lines]


def read_lines(path: Path) -> list[ProblemLine]:
    """Lines of ``problems/BENCHMARK.jsonl``.

    Raises:
        EvaluationError: it cannot be read.
    """
    try:
        records = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return [ProblemLine(r["id"], r["gold"], [ProblemRun(**run) for run in r["runs"]]) for r in records]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise EvaluationError(f"{path} cannot be read ({e!r}): start verl-grail eval on its folder again") from e
