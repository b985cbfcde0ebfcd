"""The picture of a comparison: the difference to the baseline, with its interval, for every base and benchmark."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verl_grail.evaluation.compare import Comparison
from verl_grail.evaluation.stats import Interval
from verl_grail.evaluation.tables import direction
from verl_grail.report.plots import styles


def write_plot(comparisons: Sequence[Comparison], path: Path) -> None:
    """A forest plot, a panel for each metric; a method keeps its colour."""
    # Figure and canvas directly, not pyplot: Agg needs no display, and a caller's own backend stays as it is.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(c.metric for c in comparisons))
    methods = list(dict.fromkeys(c.method for c in comparisons))
    rows = list(dict.fromkeys((c.base, c.benchmark) for found in comparisons for c in found.cells))
    style = styles([*methods, comparisons[0].baseline])
    high = 1.6 + (len(rows) + 1) * (0.16 + 0.16 * len(methods))
    figure = Figure(figsize=(2.2 + 3.6 * len(metrics), max(2.6, high)), dpi=130)
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(1, len(metrics), sharey=True, squeeze=False)[0]
    for axes, metric in zip(panels, metrics, strict=True):
        for i, method in enumerate(methods):
            found = next((c for c in comparisons if (c.metric, c.method) == (metric, method)), None)
            if found is not None:
                _draw(axes, found, rows, (i - (len(methods) - 1) / 2) * 0.6 / len(methods), style[method])
        axes.axvline(0, color="#888888", linewidth=0.8, zorder=0)
        axes.axhline(len(rows) - 0.5, color="#cccccc", linewidth=0.8, zorder=0)
        axes.set_title(metric)
        axes.set_xlabel(f"points above {comparisons[0].baseline}, 95 % interval")
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    names = [f"{base} {benchmark}".strip() for base, benchmark in rows]
    panels[0].set_yticks(range(len(rows) + 1), [*names, "mean"])
    panels[0].set_ylim(len(rows) + 0.6, -0.6)
    panels[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    figure.tight_layout()
    _footnote(figure, comparisons)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")


def _footnote(figure: Any, comparisons: Sequence[Comparison]) -> None:
    """Under the panels: that intervals have two sides though the tests have one; what was not the same."""
    texts = [f"intervals two-sided, {direction(c)}" for c in comparisons if c.alternative != "two-sided"]
    texts = list(dict.fromkeys([*texts, *(text for c in comparisons for text in c.allowed)]))
    width = max(40, int(14 * figure.get_figwidth()))  # letters of this size on the figure's width
    lines = [line for text in texts for line in textwrap.wrap(text, width)]
    if lines:
        figure.text(0.01, -0.02, "\n".join(lines), fontsize=7, va="top")


def _draw(axes: Any, found: Comparison, rows: list[tuple[str, str]], shift: float, style: dict[str, Any]) -> None:
    places, values, intervals = [], [], []
    for cell in found.cells:
        places.append(rows.index((cell.base, cell.benchmark)) + shift)
        values.append(cell.difference)
        intervals.append(cell.interval)
    if found.mean is not None:
        places.append(len(rows) + shift)
        values.append(found.mean)
        intervals.append(found.interval)
    look = {"color": style["color"], "marker": style["marker"]}
    axes.plot([100 * v for v in values], places, linestyle="", markersize=5, label=found.method, **look)
    for place, interval in zip(places, intervals, strict=True):
        if isinstance(interval, Interval):  # without one, the point stands alone
            axes.plot([100 * interval.low, 100 * interval.high], [place] * 2, color=style["color"], linewidth=1.4)
