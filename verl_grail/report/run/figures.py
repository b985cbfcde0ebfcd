"""A run's pictures for a paper: curves, weight histogram, profile over the reasoning, cosine distribution.

PNG files of 300 dpi, 3.3 inches wide (one column) but for the curves (6.8). Okabe and Ito's colours; dash and marker
repeat them. Steps are pooled into consecutive stretches, since one step of a run has too few rollouts for a smooth
distribution and a paper no room for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from verl_grail.report.plots import DASHES, MARKERS, PALETTE, reward_series
from verl_grail.report.run.collect import Collected
from verl_grail.report.run.regions import REGIONS
from verl_grail.report.run.sums import COSINE_BINS, PROFILE_BINS, WEIGHT_BIN, StepSums
from verl_grail.report.runs import Run
from verl_grail.report.table import accuracy_series

STRETCHES = 3
DPI = 300
FONT = {"font.size": 8, "axes.titlesize": 8, "legend.fontsize": 7, "axes.spines.top": False, "axes.spines.right": False}

Series = list[tuple[int, float]]
# Title, y label, lines as (name, series, metric of the band's half-width).
Line = tuple[str, Callable[[Run], Series], str | None]


def _metric(name: str) -> Callable[[Run], Series]:
    return lambda run: run.series(name)


PANELS: tuple[tuple[str, tuple[Line, ...]], ...] = (
    ("mean reward", (("reward", reward_series, None),)),
    ("validation accuracy", (("accuracy", accuracy_series, None),)),
    (
        "token weight ± sd",
        (
            ("GRAIL", _metric("grail/weight_mean"), "grail/weight_std"),
            ("OAR-G", _metric("oar_g/weight_mean"), "oar_g/weight_std"),
        ),
    ),
    (
        "clipped weights (share)",
        (
            ("at $w_{min}$", _metric("grail/clip_frac_min"), None),
            ("at $w_{max}$", _metric("grail/clip_frac_max"), None),
        ),
    ),
    (
        "answers found (share)",
        (
            ("GRAIL", _metric("grail/answer_found_rate"), None),
            ("OAR-G", _metric("oar_g/answer_found_rate"), None),
        ),
    ),
    ("cosine ± sd", (("cosine", _metric("gar/cosine_mean"), "gar/cosine_std"),)),
    ("mean bonus", (("bonus", _metric("gar/bonus_mean"), None),)),
)


def write_figures(collected: Collected, folder: Path) -> tuple[list[Path], list[str]]:
    """Write the pictures that the run has data for, and a note for each that it has not."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    stretches = pool(collected.sums)
    pictures = {
        "curves": lambda: _curves(collected.run),
        "weight_histogram": lambda: _histogram(stretches),
        "weight_profile": lambda: _profile(stretches),
        "cosine_distribution": lambda: _cosines(stretches),
    }
    files, notes = [], []
    with matplotlib.rc_context(FONT):
        for name, draw in pictures.items():
            path = folder / f"{name}.png"
            figure = draw()
            if figure is None:
                # One left by an earlier report would pass for this run's.
                path.unlink(missing_ok=True)
                notes.append(f"{path.name}: not drawn, the run has nothing for it")
                continue
            figure.savefig(path, format="png", dpi=DPI)
            files.append(path)
    return files, notes


def pool(sums: dict[int, StepSums], stretches: int = STRETCHES) -> list[tuple[str, StepSums]]:
    """Consecutive steps added up, as equal in number as can be: (name, sums), at most `stretches` of them."""
    steps = sorted(sums)
    parts = [list(part) for part in np.array_split(steps, min(stretches, len(steps)))] if steps else []
    name = lambda part: f"step {part[0]}" if len(part) == 1 else f"steps {part[0]} to {part[-1]}"  # noqa: E731
    return [(name(part), sum((sums[int(step)] for step in part), StepSums())) for part in parts]


def _figure(width: float, height: float, rows: int = 1, columns: int = 1) -> tuple[Any, Any]:
    # Figure and canvas directly, not pyplot: Agg needs no display, and a caller's own backend stays as it is.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _style(i: int) -> dict[str, Any]:
    return {"color": PALETTE[i % len(PALETTE)], "linestyle": DASHES[i % len(DASHES)], "linewidth": 1.2}


def _curves(run: Run) -> Any:
    from matplotlib.ticker import MaxNLocator

    drawn = [(label, [line for line in lines if line[1](run)]) for label, lines in PANELS]
    drawn = [(label, lines) for label, lines in drawn if lines]
    if not drawn:
        return None
    columns = min(3, len(drawn))
    rows = -(-len(drawn) // columns)
    figure, grid = _figure(6.8 * columns / 3, 1.8 * rows, rows, columns)
    for axes, (label, lines) in zip(grid.flat, drawn, strict=False):
        for i, (name, series, band) in enumerate(lines):
            steps, values = map(np.array, zip(*series(run), strict=True))
            marker = {"marker": MARKERS[i], "markersize": 2.5} if len(steps) <= 24 else {}
            axes.plot(steps, values, label=name, **_style(i), **marker)
            half = dict(run.series(band)) if band else {}
            widths = np.array([half.get(step, np.nan) for step in steps])
            axes.fill_between(steps, values - widths, values + widths, color=PALETTE[i], alpha=0.18, linewidth=0)
        axes.set_ylabel(label)
        axes.set_xlabel("training step")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.grid(alpha=0.25, linewidth=0.5)
        if len(lines) > 1:
            axes.legend(frameon=False)
    for axes in list(grid.flat)[len(drawn) :]:
        axes.remove()
    return figure


def _histogram(stretches: list[tuple[str, StepSums]]) -> Any:
    total = sum((sums for _, sums in stretches), StepSums())
    if not total.weighted:
        return None
    counts = total.weights[: len(REGIONS) - 1]
    used = counts.any(axis=0).nonzero()[0]
    low, high = int(used[0]), int(used[-1]) + 1
    figure, grid = _figure(3.3, 2.3)
    axes, edges = grid[0, 0], np.arange(low, high + 1) * WEIGHT_BIN
    shares, base = 100.0 * counts / counts.sum(), np.zeros(high - low)
    for i, name in enumerate(REGIONS[:-1]):
        part = shares[i, low:high]
        hatch = ("", "////", "....", "xxxx")[i]
        if part.any():
            axes.bar(
                edges[:-1], part, WEIGHT_BIN, base, align="edge", label=name,
                color=PALETTE[i], hatch=hatch, edgecolor="white", linewidth=0.2,
            )  # fmt: skip
        base += part
    axes.axvline(1.0, color="#555555", linewidth=0.8, linestyle=":")
    axes.set_ylim(0.0, axes.get_ylim()[1] * 1.05)
    axes.set_xlabel("token weight")
    axes.set_ylabel("% of tokens of weighted rollouts")
    axes.legend(frameon=False)
    return figure


def _profile(stretches: list[tuple[str, StepSums]]) -> Any:
    verdicts = [v for v in ("correct", "wrong") if any(sums.profiles[v].rollouts for _, sums in stretches)] or ["all"]
    shown = [v for v in verdicts if any(sums.profiles[v].rollouts for _, sums in stretches)]
    if not shown:
        return None
    figure, grid = _figure(3.3 if len(shown) == 1 else 6.8, 2.4, 1, len(shown))
    position = 100.0 * (np.arange(PROFILE_BINS) + 0.5) / PROFILE_BINS
    for axes, verdict in zip(grid[0], shown, strict=True):
        axes.axhline(1.0, color="#555555", linewidth=0.8, linestyle=":")
        for i, (name, sums) in enumerate(stretches):
            mean, half = sums.profiles[verdict].mean(), sums.profiles[verdict].half_width()
            if mean is None:
                continue
            label = f"{name} ({sums.profiles[verdict].rollouts} rollouts)"
            axes.plot(position, mean, label=label, marker=MARKERS[i], markersize=2.5, **_style(i))
            if half is not None:
                axes.fill_between(position, mean - half, mean + half, color=PALETTE[i], alpha=0.18, linewidth=0)
        axes.set_xlabel("position in the reasoning (%)")
        axes.set_ylabel("mean token weight")
        axes.set_title(f"{verdict} rollouts")
        axes.grid(alpha=0.25, linewidth=0.5)
        axes.legend(frameon=False)
    for axes in grid[0][1:]:
        axes.sharey(grid[0][0])
        axes.autoscale(axis="y")
    return figure


def _cosines(stretches: list[tuple[str, StepSums]]) -> Any:
    with_cosine = [(name, sums) for name, sums in stretches if sums.with_cosine]
    if not with_cosine:
        return None
    used = sum(sums.cosines for _, sums in with_cosine).nonzero()[0]
    low, high = max(int(used[0]) - 1, 0), min(int(used[-1]) + 2, COSINE_BINS)
    figure, grid = _figure(3.3, 2.3)
    axes, edges = grid[0, 0], np.linspace(-1.0, 1.0, COSINE_BINS + 1)[low : high + 1]
    for i, (name, sums) in enumerate(with_cosine):
        share = 100.0 * sums.cosines[low:high] / sums.with_cosine
        mean = sums.cosine_total / sums.with_cosine
        axes.stairs(share, edges, label=f"{name} (n = {sums.with_cosine}, mean {mean:.2f})", **_style(i))
        axes.axvline(mean, ymax=0.06, color=PALETTE[i], linewidth=2.0)
    axes.set_xlabel("cosine with the expert solution")
    axes.set_ylabel("% of passing rollouts")
    axes.set_ylim(0.0, axes.get_ylim()[1] * 1.3)
    axes.legend(frameon=False, loc="upper left")
    return figure
