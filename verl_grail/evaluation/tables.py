"""Tables of an evaluation and of a comparison, in Markdown and LaTeX; scores in percent, differences in points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_grail.evaluation.compare import Comparison, Power
from verl_grail.evaluation.significance import Test
from verl_grail.evaluation.stats import Interval

NONE = "n/a"
"""Not defined; the notes say why."""
Rows = list[list[str]]


def markdown(headings: Sequence[str], rows: Rows) -> str:
    """A pipe table; the first two columns are names, the others numbers."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join("---" if i < 2 else "---:" for i in range(len(headings))) + "|"
    return "\n".join([line(headings), rule, *map(line, rows)])


def latex(headings: Sequence[str], rows: Rows, caption: str) -> str:
    """A table for the package booktabs, by pandas."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=list(headings))
    align = "ll" + "r" * (len(headings) - 2)
    text = frame.to_latex(index=False, escape=True, column_format=align, caption=_escaped(caption), position="t")
    return text.replace(r"\begin{table}[t]", "\\begin{table}[t]\n\\centering", 1)


def _escaped(text: str) -> str:
    """For LaTeX: a caption may name folders."""
    special: dict[str, Any] = {c: f"\\{c}" for c in "&%$#_{}"}
    words = {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
    return text.translate(str.maketrans({**special, **words}))


# ------------------------------ one evaluation ------------------------------


def summary_table(summary: dict[str, Any]) -> tuple[list[str], Rows]:
    """A row for each benchmark, and one for their mean."""
    names = summary["metrics"]
    headings = ["benchmark", "problems", *names, "tokens", "truncated", "no answer", "failed"]
    rows = []
    for benchmark, found in summary["benchmarks"].items():
        scored = [_score(found["metrics"][name]) for name in names]
        rates = [percent(found["rates"][name]) for name in ("truncated", "no_answer")]
        tokens = found["tokens"]["mean"]
        rows.append(
            [
                benchmark,
                str(found["problems"]),
                *scored,
                NONE if tokens is None else f"{tokens:.0f}",
                *rates,
                str(found["failed"]),
            ]
        )
    if len(summary["benchmarks"]) > 1:
        rows.append(["mean", "", *(_score(summary["average"][name]) for name in names), "", "", "", ""])
    return headings, rows


def summary_notes(summary: dict[str, Any]) -> list[str]:
    """What a reader of the table must know and cannot see in it."""
    notes = []
    for benchmark, found in summary["benchmarks"].items():
        if found["ungraded_problems"]:
            notes.append(f"{benchmark}: {found['ungraded_problems']} problems without a graded response are left out")
        for name, metric in found["metrics"].items():
            short = found["problems"] - found["ungraded_problems"] - metric["problems"]
            if short:
                notes.append(
                    f"{benchmark}: {short} problems have too few graded samples for {name} and are left out of it"
                )
        if found["bounded_votes"]:
            notes.append(
                f"{benchmark}: in {found['bounded_votes']} votes some answers were compared by their text alone"
            )
        if found["tokens"]["unknown"]:
            notes.append(f"{benchmark}: the length of {found['tokens']['unknown']} responses is not known")
        rare = {n: c for n, c in found["outcomes"].items() if n in ("timeout", "crashed", "unparseable_pred")}
        if rare:
            notes.append(f"{benchmark}: counted as wrong: " + ", ".join(f"{c} {n}" for n, c in rare.items()))
    return notes


def _score(metric: dict[str, Any]) -> str:
    text = percent(metric["value"])
    if metric.get("spread") is not None:
        text += f" ± {100 * metric['spread']:.1f}"
    return text if metric["low"] is None else f"{text} [{100 * metric['low']:.1f}, {100 * metric['high']:.1f}]"


# ------------------------------ a comparison ------------------------------


def comparison_table(found: Comparison) -> tuple[list[str], Rows]:
    """A row for each base and benchmark, and one for their mean."""
    headings = [
        "model",
        "benchmark",
        found.baseline,
        found.method,
        "difference",
        f"t over {found.unit}",
        "p",
        "p (Holm)",
        "dz",
    ]
    rows = []
    for cell in found.cells:
        rows.append(
            [
                cell.base or "-",
                cell.benchmark,
                percent(cell.baseline),
                percent(cell.method),
                points(cell.difference, cell.interval),
                NONE if cell.t.statistic is None else f"{cell.t.statistic:.2f} ({cell.t.n - 1})",
                p_value(cell.t.p),
                p_value(cell.p_holm),
                effect(cell.t),
            ]
        )
    means = [sum(getattr(c, name) for c in found.cells) / len(found.cells) for name in ("baseline", "method")]
    difference = points(found.mean, found.interval)
    rows.append(["mean", f"{len(found.cells)} pairs", *map(percent, means), difference, "", "", "", ""])
    return headings, rows


def tests_table(found: Comparison) -> tuple[list[str], Rows]:
    """The tests over all pairs and over the units, a row each."""
    headings = ["test", "over", "n", "statistic", "p", "effect", "power", "found with 80 % power"]
    rows = []
    for test, over, statistic, size, power in (
        (found.wilcoxon, "model x benchmark", "W+", "rank-biserial", found.power["wilcoxon"]),
        (found.cells_t, "model x benchmark", "t", "dz", None),
        (found.units_t, found.unit, "t", "dz", found.power["units_t"]),
    ):
        rows.append(
            [
                {"wilcoxon": "Wilcoxon signed-rank", "paired t": "paired t"}[test.name],
                over,
                str(test.n),
                NONE if test.statistic is None else f"{statistic} = {test.statistic:.4g}",
                p_value(test.p),
                NONE if test.effect is None else f"{size} {effect(test)}",
                "" if power is None else percent(power.observed),
                "" if power is None else _detectable(power),
            ]
        )
    return headings, rows


def comparison_notes(found: Comparison) -> list[str]:
    """What was not the same, why a cell is empty, and what was left out."""
    notes = [*found.allowed, *found.notes]
    for name, test in (
        ("Wilcoxon", found.wilcoxon),
        ("t over pairs", found.cells_t),
        (f"t over {found.unit}", found.units_t),
    ):
        if test.note:
            notes.append(f"{name}: {test.note}")
    reasons: dict[str, list[str]] = {}
    for cell in found.cells:
        if cell.t.note:
            reasons.setdefault(cell.t.note, []).append(f"{cell.base} {cell.benchmark}".strip())
    for reason, where in reasons.items():
        every = "every row" if len(where) == len(found.cells) else ", ".join(where)
        notes.append(f"t of {every}: {reason}")
    return notes


def direction(found: Comparison) -> str:
    """Of the tests, in words: ``tests two-sided``, or what a one-sided one asks for."""
    if found.alternative == "two-sided":
        return "tests two-sided"
    return f"tests one-sided, for {found.method} {found.alternative} than {found.baseline}"


def _detectable(power: Power) -> str:
    if power.detectable is None:
        return NONE
    text = f"dz {power.detectable:.2f}"
    return text if power.points is None else f"{text} ({100 * power.points:.1f} points)"


def percent(value: float | None) -> str:
    """A share in percent."""
    return NONE if value is None else f"{100 * value:.1f}"


def points(value: float | None, interval: Interval | None) -> str:
    """A difference in points, with its interval."""
    if value is None:
        return NONE
    text = f"{100 * value:+.1f}"
    return text if interval is None else f"{text} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]"


def p_value(p: float | None) -> str:
    """Three digits, as a power of ten below 0.001."""
    if p is None:
        return NONE
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def effect(test: Test) -> str:
    """An effect size with its interval."""
    if test.effect is None:
        return NONE
    text = f"{test.effect:.2f}"
    return text if test.interval is None else f"{text} [{test.interval.low:.2f}, {test.interval.high:.2f}]"


def report(comparisons: Sequence[Comparison]) -> str:
    """All of it in Markdown."""
    parts = []
    for found in comparisons:
        notes = comparison_notes(found)
        parts += [
            f"## {found.metric}: {found.method} against {found.baseline} ({direction(found)})",
            markdown(*comparison_table(found)),
            markdown(*tests_table(found)),
            *(["\n".join(f"- {note}" for note in notes)] if notes else []),
        ]
    return "\n\n".join(parts) + "\n"


def latex_report(comparisons: Sequence[Comparison]) -> str:
    """All tables in LaTeX."""
    parts = ["% needs \\usepackage{booktabs}"]
    for found in comparisons:
        what = f"{found.metric}: {found.method} against {found.baseline}"
        end = "".join([f"; {direction(found)}.", *(f" {text}." for text in found.allowed)])
        parts.append(
            latex(*comparison_table(found), f"{what}, scores in %, differences in points with 95 % intervals{end}")
        )
        parts.append(latex(*tests_table(found), f"{what}, paired tests{end}"))
    return "\n".join(parts)
