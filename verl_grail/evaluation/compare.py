"""Folders of several methods -> differences to a baseline, and tests of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from verl_grail.evaluation import EvaluationError
from verl_grail.evaluation.significance import (
    Test,
    detectable,
    holm,
    nonzero,
    paired_t,
    t_power,
    wilcoxon,
    wilcoxon_power,
)
from verl_grail.evaluation.stats import Interval, bootstrap_interval, finite, mean_or_none
from verl_grail.evaluation.store import SUMMARY, differences, read_card
from verl_grail.evaluation.summary import ProblemLine, read_lines, scores

ALIKE = ("sampling", "instruction", "template", "chat_template", "grader", "engine_args", "standard_fields")
"""Settings that have to agree for a difference to be the methods'."""
RUNS, FOLDERS = "runs", "folders"
"""Units of the paired t: the runs of a folder, or the folders where there are several. Runs of one checkpoint vary by
sampling alone: beside another checkpoint's they are no independent units."""
_NAMED = re.compile(r"(?P<method>[^=@/]+)(?:@(?P<base>[^=]+))?=(?P<folder>.+)")


@dataclass(frozen=True)
class EvalRun:
    """One folder of ``verl-grail eval``.

    Attributes:
        method: what is compared.
        base: the model that was trained; methods are paired on the same base.
        settings: of its ``run.json``.
        digests: benchmark -> digest of its problems; the benchmarks are those whose samples are complete.
        lines: benchmark -> one line per problem.
        metrics: what the run reports.
        notes: what a reader has to know.
    """

    method: str
    base: str
    folder: Path
    settings: dict[str, Any]
    digests: dict[str, str]
    lines: dict[str, list[ProblemLine]]
    metrics: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def load_run(argument: str) -> EvalRun:
    """A run as ``FOLDER`` or ``METHOD=FOLDER`` or ``METHOD@BASE=FOLDER``.

    Raises:
        EvaluationError: no finished run there.
    """
    named = None if Path(argument).is_dir() else _NAMED.fullmatch(argument)
    folder = Path(named["folder"] if named else argument)
    card = read_card(folder)
    metrics, finished = _summary(folder)
    labels = card["labels"]
    digests = {name: digest for name, digest in card["benchmarks"].items() if name in finished}
    lines = {name: read_lines(folder / "problems" / f"{name}.jsonl") for name in digests}
    wanted = card["settings"]["sampling"]["samples"]
    short = {n: sum(run.n < wanted for line in found for run in line.runs) for n, found in lines.items()}
    some = ", ".join(f"{count} of {name}" for name, count in short.items() if count)
    notes = [f"{folder}: problems x runs with samples that failed or without a gold: {some}"] if some else []
    return EvalRun(
        (named and named["method"]) or labels.get("method") or folder.name,
        (named and named["base"]) or labels.get("base") or "",
        folder,
        card["settings"],
        digests,
        lines,
        metrics,
        tuple(notes),
    )


def _summary(folder: Path) -> tuple[tuple[str, ...], set[str]]:
    """Metrics and benchmarks of a folder's summary: its card also lists those that were only started."""
    path = folder / SUMMARY
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return tuple(found["metrics"]), set(found["benchmarks"])
    except FileNotFoundError as e:
        raise EvaluationError(f"{folder} has no {SUMMARY}: the evaluation did not finish, start it again") from e
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise EvaluationError(f"{path} cannot be read ({e!r}): start verl-grail eval on its folder again") from e


def check_alike(runs: Sequence[EvalRun]) -> None:
    """Refuse runs that were not evaluated in the same way.

    Raises:
        EvaluationError: names the folders and the settings.
    """
    for found in unlike(runs):
        raise EvaluationError(
            f"{found}: evaluate both in the same way, or pass --allow-differences to compare them all the same"
        )


def unlike(runs: Sequence[EvalRun]) -> list[str]:
    """What was not the same: texts such as ``A and B, C were evaluated differently (...)``.

    Settings are compared with the first run's, the problems of a benchmark with those of the first run that has it.
    """
    found: dict[tuple[Path, Path], list[str]] = {}
    problems: dict[str, tuple[str, Path]] = {}
    for run in runs:
        one, two = ({k: r.settings.get(k) for k in ALIKE} for r in (runs[0], run))
        for text in differences(one, two):
            found.setdefault((runs[0].folder, run.folder), []).append(text.replace(", now ", " against "))
        for name, digest in sorted(run.digests.items()):
            known, folder = problems.setdefault(name, (digest, run.folder))
            if digest != known:
                found.setdefault((folder, run.folder), []).append(f"the problems of {name}")
    alike: dict[tuple[Path, str], list[str]] = {}
    for (one_folder, other), what in found.items():
        alike.setdefault((one_folder, "; ".join(what)), []).append(str(other))
    return [f"{a} and {', '.join(others)} were evaluated differently ({what})" for (a, what), others in alike.items()]


@dataclass(frozen=True)
class Scored:
    """Scores of one method on one base and benchmark.

    Attributes:
        ids: problems that all its folders have.
        folders: a table for each folder (training seed), shape (runs, problems).
    """

    ids: list[str]
    folders: list[np.ndarray]

    def on(self, ids: Sequence[str], unit: str) -> np.ndarray:
        """Scores of the units on these problems, shape (units, problems)."""
        index = {name: i for i, name in enumerate(self.ids)}
        columns = [index[name] for name in ids]
        tables = [table[:, columns] for table in self.folders]
        return np.vstack([t.mean(axis=0) for t in tables] if unit == FOLDERS else tables)


@dataclass(frozen=True)
class Cell:
    """One base and benchmark: baseline against method.

    Attributes:
        baseline, method: mean scores over units and common problems.
        interval: of the difference, 95 %, from resampling problems (paired).
        by_unit: differences of the units, in order; empty where they cannot be paired.
        t: paired t over the units.
        p_holm: its p, adjusted for the number of cells.
    """

    base: str
    benchmark: str
    problems: int
    baseline: float
    method: float
    interval: Interval | None
    by_unit: tuple[float, ...]
    t: Test
    p_holm: float | None = None

    @property
    def difference(self) -> float:
        """Method minus baseline."""
        return self.method - self.baseline


@dataclass(frozen=True)
class Power:
    """What the comparison could find.

    Attributes:
        observed: chance to reject at 5 % if the observed dz is the true one.
        detectable: smallest dz that is found with a chance of 80 %.
        points: the same in points of the metric, by the observed standard deviation.
    """

    observed: float | None
    detectable: float | None
    points: float | None


@dataclass(frozen=True)
class Comparison:
    """A method against the baseline in one metric.

    Attributes:
        cells: of every base and benchmark that both have.
        wilcoxon, cells_t: tests over the cells' differences.
        units_t: paired t over the units, each the mean of the cells.
        unit: `RUNS`, or `FOLDERS` where a method has several of one base and benchmark.
        mean: difference, mean of the cells; ``interval`` from resampling the problems of each benchmark, the same ones
            under every base.
        power: of each test.
        alternative: direction of every test (`significance.ALTERNATIVES`); intervals have two sides whatever it is.
        allowed: what was not the same in the runs (`unlike`), and compared all the same.
    """

    metric: str
    baseline: str
    method: str
    cells: list[Cell]
    mean: float | None
    interval: Interval | None
    wilcoxon: Test
    cells_t: Test
    units_t: Test
    power: dict[str, Power]
    unit: str = RUNS
    alternative: str = "two-sided"
    notes: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)


def gather(runs: Iterable[EvalRun], metric: str) -> dict[tuple[str, str], dict[str, Scored]]:
    """(base, benchmark) -> method -> scores; folders of a method stay in the order given."""
    found: dict[tuple[str, str], dict[str, Scored]] = {}
    for run in runs:
        for benchmark, lines in run.lines.items():
            table, ids = scores(lines, metric), [line.id for line in lines]
            cell = found.setdefault((run.base, benchmark), {})
            before = cell.get(run.method)
            if before is None:
                cell[run.method] = Scored(ids, [table])
            else:
                kept, here = set(ids), {name: i for i, name in enumerate(ids)}
                at = [i for i, name in enumerate(before.ids) if name in kept]
                common = [before.ids[i] for i in at]
                tables = [t[:, at] for t in before.folders]
                cell[run.method] = Scored(common, [*tables, table[:, [here[name] for name in common]]])
    return found


def compare(runs: Sequence[EvalRun], metric: str, baseline: str, alternative: str = "two-sided") -> list[Comparison]:
    """Every other method against the baseline. Runs that are `unlike` are compared, and the result says so.

    Raises:
        EvaluationError: no such baseline, nothing else, nothing in common, or a metric that no problem has.
    """
    methods = list(dict.fromkeys(run.method for run in runs))
    if baseline not in methods:
        raise EvaluationError(f"--baseline {baseline} is not one of the methods: {', '.join(methods)}")
    others = [m for m in methods if m != baseline]
    if not others:
        raise EvaluationError(
            f"all runs are of the method {baseline}: name them as METHOD=FOLDER, or set --method of verl-grail eval"
        )
    table, allowed = gather(runs, metric), unlike(runs)
    found = [_compare(table, metric, baseline, method, alternative) for method in others]
    return [replace(comparison, allowed=allowed) for comparison in found]


def _compare(
    table: Mapping[tuple[str, str], Mapping[str, Scored]], metric: str, baseline: str, method: str, alternative: str
) -> Comparison:
    cells: list[Cell] = []
    by_problem: list[dict[str, float]] = []
    notes: list[str] = []
    both = [s for found in table.values() if {baseline, method} <= set(found) for s in (found[baseline], found[method])]
    unit = FOLDERS if any(len(s.folders) > 1 for s in both) else RUNS
    for (base, benchmark), found in table.items():
        here = f"{base} {benchmark}".strip()
        if baseline not in found or method not in found:
            if method in found or baseline in found:
                notes.append(f"{here}: only {method if method in found else baseline} was evaluated; left out")
            continue
        a, b = found[baseline], found[method]
        ids = _common(a, b)
        if not ids:
            notes.append(f"{here}: no problem with a {metric} in both; left out")
            continue
        cell, differences_ = _cell(base, benchmark, a.on(ids, unit), b.on(ids, unit), unit, alternative)
        cells.append(cell)
        by_problem.append(dict(zip(ids, differences_, strict=True)))
    if not cells:
        raise EvaluationError(f"{baseline} and {method} have no base and benchmark in common with a {metric}")
    adjusted = holm([c.t.p for c in cells])
    cells = [replace(c, p_holm=p) for c, p in zip(cells, adjusted, strict=True)]
    over_cells = np.array([c.difference for c in cells])
    return Comparison(
        metric,
        baseline,
        method,
        cells,
        mean_or_none(over_cells),
        bootstrap_interval(_by_benchmark(cells, by_problem)),
        wilcoxon(over_cells, alternative),
        paired_t(over_cells, alternative),
        _over_units(cells, unit, alternative),
        power={
            "wilcoxon": _power(nonzero(over_cells), wilcoxon_power, alternative),
            "units_t": _power(_by_unit(cells), t_power, alternative),
        },
        unit=unit,
        alternative=alternative,
        notes=notes,
    )


def _by_benchmark(cells: Sequence[Cell], by_problem: Sequence[dict[str, float]]) -> list[np.ndarray]:
    """Differences of each benchmark's problems, shape (bases, problems); NaN where a base's cell lacks a problem."""
    of: dict[str, list[dict[str, float]]] = {}
    for cell, found in zip(cells, by_problem, strict=True):
        of.setdefault(cell.benchmark, []).append(found)
    return [
        np.array([[row.get(i, np.nan) for i in dict.fromkeys(i for r in rows for i in r)] for row in rows])
        for rows in of.values()
    ]


def _common(a: Scored, b: Scored) -> list[str]:
    """Problems that have a score in every run of both."""
    whole = [
        {i for i, column in zip(s.ids, np.vstack(s.folders).T, strict=True) if not np.isnan(column).any()}
        for s in (a, b)
    ]
    return [i for i in a.ids if i in whole[0] & whole[1]]


def _cell(
    base: str, benchmark: str, a: np.ndarray, b: np.ndarray, unit: str, alternative: str
) -> tuple[Cell, np.ndarray]:
    """A cell, and the differences of its problems. a, b: (units, problems) on the same problems."""
    of_problems = b.mean(axis=0) - a.mean(axis=0)
    if a.shape[0] == b.shape[0]:
        by_unit = b.mean(axis=1) - a.mean(axis=1)
        t = paired_t(by_unit, alternative)
    else:
        by_unit = np.zeros(0)
        t = Test("paired t", 0, note=f"{a.shape[0]} {unit} against {b.shape[0]}: {unit} are paired in order")
    cell = Cell(
        base,
        benchmark,
        of_problems.size,
        float(a.mean()),
        float(b.mean()),
        bootstrap_interval([of_problems]),
        tuple(map(float, by_unit)),
        t,
    )
    return cell, of_problems


def _by_unit(cells: Sequence[Cell]) -> np.ndarray:
    """Difference of each unit, mean of the cells, shape (units,); empty where cells have different numbers of them."""
    if len({len(c.by_unit) for c in cells}) != 1:
        return np.zeros(0)
    return np.array([c.by_unit for c in cells]).mean(axis=0)


def _over_units(cells: Sequence[Cell], unit: str, alternative: str) -> Test:
    numbers = {len(c.by_unit) for c in cells}
    if len(numbers) > 1 or 0 in numbers:
        return Test("paired t", 0, note=f"not every base and benchmark has as many {unit} of both methods")
    return paired_t(_by_unit(cells), alternative)


def _power(values: np.ndarray, power: Any, alternative: str) -> Power:
    values = finite(values, "a list of differences")  # Wilcoxon: those that the test uses
    sd = float(np.std(values, ddof=1)) if values.size > 1 else 0.0
    sign = -1.0 if alternative == "less" else 1.0
    smallest = detectable(lambda dz: power(values.size, sign * dz, alternative))
    if sd < 1e-12:
        return Power(None, smallest, None)
    observed = power(values.size, float(values.mean()) / sd, alternative)
    return Power(observed, smallest, None if smallest is None else smallest * sd)
