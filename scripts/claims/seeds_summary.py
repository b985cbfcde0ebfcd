"""What `seeds.py` reports of its runs: curves, finals, intervals over seeds, tests against GRPO, and where time goes.

Plain functions of verl's metrics. Intervals are Student's t over seeds: they speak of the luck of a training run with
one model on one task, not of other tasks or models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from verl_grail.evaluation.significance import detectable, holm, paired_t, t_power, wilcoxon
from verl_grail.evaluation.stats import spread
from verl_grail.report.runs import Run, load_metrics
from verl_grail.report.table import accuracy_series

BASELINE = "grpo"
CURVES = {
    # GRPO alone logs no verdicts of its own; its score is the verdict
    "train_accuracy": ("reward/correct_rate", "critic/score/mean"),
    "reward": ("critic/rewards/mean",),
    "response_length": ("response_length/mean",),
    "gradient_norm": ("actor/grad_norm",),
    "cosine": ("gar/cosine_mean",),
    "weight_deviation": ("grail/weight_std", "oar_g/weight_std"),
}
"""Curve -> names of the metric; the first that the run logged."""
OUTCOMES = {
    "val_accuracy": "validation accuracy after the last step",
    "val_gain": "validation accuracy after the last step, less that before the first",
    "train_accuracy": "training accuracy, mean of the last quarter of the steps",
    "response_length": "response length, mean of the last quarter of the steps",
}
"""Final numbers that methods are compared by."""
SIGNALS = ("timing_s/signal_plan", "timing_s/signal_pass", "timing_s/gar_anchors")
PARTS = {
    "signals": SIGNALS,
    "anchors": SIGNALS[2:],
    "log_prob": ("timing_s/old_log_prob",),
    "generation": ("timing_s/gen",),
    "update": ("timing_s/update_actor",),
}
"""Part of a step -> verl's times that make it up. ``log_prob`` is verl's own pass where there are no signals, which
otherwise ride on it."""
_DIGITS = 5


# ------------------------------ one run ------------------------------


def read_run(folder: Path, method: str, seed: int) -> dict[str, Any]:
    """Curves, final numbers and shares of a step of one finished run."""
    run = Run(method=method)
    run.metrics = load_metrics(folder / "metrics.jsonl", run)
    steps = [step for step in run.metrics if step > 0]
    curves = {name: values for name, keys in CURVES.items() if (values := _curve(run, keys, steps))}
    validation = accuracy_series(run)
    return {
        "method": method,
        "seed": seed,
        "val_steps": [step for step, _ in validation],
        "val_accuracy": [round(value, _DIGITS) for _, value in validation],
        **curves,
        "final": finals(validation, curves),
        "shares": shares(run.metrics),
    }


def _curve(run: Run, keys: Sequence[str], steps: Sequence[int]) -> list[float | None]:
    """One value a step, None where it was not logged; empty if it never was."""
    for key in keys:
        if found := dict(run.series(key)):
            return [round(found[step], _DIGITS) if step in found else None for step in steps]
    return []


def finals(validation: Sequence[tuple[int, float]], curves: Mapping[str, Sequence[float | None]]) -> dict[str, float]:
    """Of one run: `OUTCOMES`, and the last quarter of every other curve.

    Raises:
        ValueError: no validation before the first step, or none after.
    """
    if len(validation) < 2 or validation[0][0] != 0:
        raise ValueError(f"validations at steps {[step for step, _ in validation]}: one at 0 and one later are needed")
    last = {name: last_quarter(values) for name, values in curves.items()}
    found = {"val_accuracy": validation[-1][1], "val_gain": validation[-1][1] - validation[0][1]} | last
    return {name: round(value, _DIGITS) for name, value in found.items()}


def last_quarter(values: Sequence[float | None]) -> float:
    """Mean over the last quarter of the steps, at least one; over those that have a value (NaN without any)."""
    kept = [v for v in values[-max(1, len(values) // 4) :] if v is not None]
    return float(np.mean(kept)) if kept else float("nan")


def shares(metrics: Mapping[int, Mapping[str, float]]) -> dict[str, list[float]]:
    """Part of a step's time of each of `PARTS` for every step after the first, and ``step``, the time itself.

    The first step pays for warming up. ``step`` is for ratios between runs (`costs`) and is not to be published.
    """
    later = [data for step, data in metrics.items() if step > 1 and data.get("timing_s/step", 0.0) > 0]
    found = {
        part: [sum(data.get(key, 0.0) for key in keys) / data["timing_s/step"] for data in later]
        for part, keys in PARTS.items()
    }
    return found | {"step": [data["timing_s/step"] for data in later]}


# ------------------------------ over seeds ------------------------------


def t_interval(values: Sequence[float], level: float = 0.95, digits: int = _DIGITS) -> dict[str, Any]:
    """Mean and Student's t interval; ``low`` and ``high`` are None below two values."""
    from scipy.stats import t

    array = np.asarray(values, dtype=np.float64)
    n, mean = array.size, float(array.mean())
    half = float(t.ppf((1 + level) / 2, n - 1) * array.std(ddof=1) / math.sqrt(n)) if n > 1 else None
    low, high = (None, None) if half is None else (round(mean - half, digits), round(mean + half, digits))
    return {"mean": round(mean, digits), "low": low, "high": high, "n": int(n)}


def of_method(runs: Sequence[Mapping[str, Any]], method: str) -> list[Mapping[str, Any]]:
    """A method's runs in the order of seeds."""
    return sorted((r for r in runs if r["method"] == method), key=lambda r: r["seed"])


def summary(runs: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> dict[str, Any]:
    """By method: mean and interval over seeds of every final number, and of the validation curve at every step."""
    out: dict[str, Any] = {}
    for method in methods:
        mine = of_method(runs, method)
        if not mine:
            continue
        names = [name for name in mine[0]["final"] if all(name in r["final"] for r in mine)]
        curve = [t_interval(values) for values in zip(*(r["val_accuracy"] for r in mine), strict=True)]
        out[method] = {
            "seeds": [r["seed"] for r in mine],
            "final": {name: t_interval([r["final"][name] for r in mine]) for name in names},
            "val_curve": {
                "steps": mine[0]["val_steps"],
                **{k: [point[k] for point in curve] for k in ("mean", "low", "high")},
            },
        }
    return out


def differences(runs: Sequence[Mapping[str, Any]], method: str, outcome: str) -> tuple[list[int], list[float]]:
    """Seeds that both the method and GRPO have, and method less GRPO for each."""
    one, other = ({r["seed"]: r["final"][outcome] for r in of_method(runs, name)} for name in (method, BASELINE))
    seeds = sorted(one.keys() & other.keys())
    return seeds, [one[seed] - other[seed] for seed in seeds]


def comparisons(runs: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> dict[str, Any]:
    """By outcome and method: paired difference to GRPO with its interval, paired t and Wilcoxon, both also by Holm.

    Holm's correction is over the methods, for each outcome and test by itself. ``found_with_80_percent_power``: the
    smallest true difference that a t test of as many seeds would find so often, at the spread seen here, uncorrected.
    """
    out: dict[str, Any] = {}
    others = [m for m in methods if m != BASELINE]
    for outcome in OUTCOMES:
        rows: dict[str, Any] = {}
        for method in others:
            seeds, values = differences(runs, method, outcome)
            if not seeds:
                continue
            rows[method] = {"seeds": seeds, "differences": [round(v, _DIGITS) for v in values]}
            rows[method] |= {"difference": t_interval(values), **_tests(values)}
        for test in ("t", "wilcoxon"):
            adjusted = holm([row[f"{test}_p"] for row in rows.values()])
            for row, p in zip(rows.values(), adjusted, strict=True):
                row[f"{test}_p_holm"] = _rounded(p)
        out[outcome] = rows
    return out


def _tests(values: Sequence[float]) -> dict[str, float | None]:
    size = detectable(lambda dz: t_power(len(values), dz)) if len(values) > 1 else None
    return {
        "t_p": _rounded(paired_t(values).p),
        "wilcoxon_p": _rounded(wilcoxon(values).p),
        "found_with_80_percent_power": None if size is None else _rounded(size * (spread(values) or 0.0)),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, _DIGITS)


def before(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Validation before the first step over all runs: one model on the same problems, so ``deviation`` is the error of
    one validation by sampling alone, and ``of_difference`` what it does to a difference of two means over ``seeds``;
    both None for a single run."""
    values = [r["val_accuracy"][0] for r in runs]
    seeds = len({r["seed"] for r in runs})
    deviation = spread(values)
    return {
        "runs": len(values),
        "mean": round(float(np.mean(values)), _DIGITS),
        "deviation": _rounded(deviation),
        "seeds": seeds,
        "of_difference": None if deviation is None else _rounded(deviation * math.sqrt(2 / seeds)),
    }


# ------------------------------ cost ------------------------------


def costs(runs: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> dict[str, Any]:
    """By method: median share of every part over steps and seeds, and times relative to GRPO's of the same seed.

    ``step_to_grpo``: median step over GRPO's median step; ``pass_to_grpo``: the pass that gives log-probs and signals
    (with plan and anchors) over verl's log-prob pass in the GRPO run. Both: median over seeds, with range.
    """
    base = {r["seed"]: r["shares"] for r in of_method(runs, BASELINE)}
    out: dict[str, Any] = {}
    for method in methods:
        mine = of_method(runs, method)
        if not mine:
            continue
        steps = [part for r in mine for part in zip(*(r["shares"][p] for p in PARTS), strict=True)]
        out[method] = dict(zip(PARTS, np.round(np.median(steps, axis=0), 4).tolist(), strict=True))
        out[method]["steps"] = len(steps)
        pairs = [(r["shares"], base[r["seed"]]) for r in mine if r["seed"] in base]
        if method != BASELINE and pairs:
            out[method]["step_to_grpo"] = _ratio([_seconds(a, None) / _seconds(b, None) for a, b in pairs])
            ratios = [_seconds(a, "log_prob") / _seconds(b, "log_prob") for a, b in pairs]
            out[method]["pass_to_grpo"] = _ratio(ratios)
    return out


def _seconds(found: Mapping[str, Sequence[float]], part: str | None) -> float:
    """Median time of a part of a step, or of the step."""
    portion = [1.0] * len(found["step"]) if part is None else found[part]
    return float(np.median(np.multiply(portion, found["step"])))


def _ratio(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(float(np.median(values)), 3), "low": round(min(values), 3), "high": round(max(values), 3)}


def published(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run for the results file: shares as medians over its steps, no times."""
    medians = {part: round(float(np.median(run["shares"][part])), 4) for part in PARTS if run["shares"][part]}
    return {**run, "shares": medians}
