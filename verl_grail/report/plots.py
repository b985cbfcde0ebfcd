"""Reward, accuracy, token weights and cosine over the training steps: one line per method, one PNG each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_grail.report.runs import Run
from verl_grail.report.table import accuracy_series

# Okabe and Ito's palette: told apart under the common colour-vision deficiencies. Its yellow is left out, being too
# pale for a line on white. A method keeps its colour in every plot and report; marker and dash repeat the message.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
KNOWN_METHODS = ("grpo", "grail", "gar", "grail_gar", "oar_g")

Series = list[tuple[int, float]]


@dataclass(frozen=True)
class Plot:
    """What one PNG shows."""

    name: str
    title: str
    y_label: str
    metric: str
    """Name of the metric, for the note that says it is missing."""
    line: Callable[[Run], Series]
    band: Callable[[Run], Series] | None = None
    """Half-width of the band around the line."""
    baseline: float | None = None
    """A thin grey line: the value that means "nothing done"."""


def reward_series(run: Run) -> Series:
    """The reward that was trained on, or the score where only that was logged."""
    return run.series("critic/rewards/mean") or run.series("critic/score/mean")


PLOTS = (
    Plot("reward", "Training reward", "mean reward of the step's batch", "critic/rewards/mean", reward_series),
    Plot("accuracy", "Validation accuracy", "accuracy", "val-core/<source>/acc/mean@N", accuracy_series),
    Plot(
        "weights",
        "GRAIL token weights, mean ± sd",
        "token weight",
        "grail/weight_mean",
        lambda run: run.series("grail/weight_mean"),
        lambda run: run.series("grail/weight_std"),
        baseline=1.0,
    ),
    Plot(
        "cosine",
        "GAR cosine with the expert solution",
        "mean cosine of correct rollouts",
        "gar/cosine_mean",
        lambda run: run.series("gar/cosine_mean"),
    ),
)


def write_plots(runs: list[Run], out: Path) -> tuple[dict[str, Path], list[str]]:
    """Write the PNG files that the runs have data for.

    Returns:
        Title -> file, in the order of `PLOTS`, and one note for each plot that could not be drawn.
    """
    files: dict[str, Path] = {}
    notes: list[str] = []
    out.mkdir(parents=True, exist_ok=True)
    for plot in PLOTS:
        path = out / f"{plot.name}.png"
        lines = {run.method: series for run in runs if (series := plot.line(run))}
        if lines:
            bands = {run.method: dict(plot.band(run)) for run in runs} if plot.band else {}
            _draw(plot, lines, bands, styles([run.method for run in runs]), path)
            files[plot.title] = path
        else:
            # One left by an earlier report would pass for this one's.
            path.unlink(missing_ok=True)
            notes.append(f"{path.name}: not drawn, no run logged {plot.metric}")
    return files, notes


def styles(methods: list[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and dash of each method; known methods have fixed ones, others take what is left."""
    slots = [*KNOWN_METHODS, *(m for m in methods if m not in KNOWN_METHODS)]
    index = {method: i % len(PALETTE) for i, method in enumerate(slots)}
    return {m: {"color": PALETTE[i], "marker": MARKERS[i], "linestyle": DASHES[i]} for m, i in index.items()}


def _draw(
    plot: Plot,
    lines: dict[str, Series],
    bands: dict[str, dict[int, float]],
    style: dict[str, dict[str, Any]],
    path: Path,
) -> None:
    # Figure and canvas directly, not pyplot: Agg needs no display, and a caller's own backend stays as it is.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7.0, 4.2), dpi=130)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if plot.baseline is not None:
        axes.axhline(plot.baseline, color="#888888", linewidth=0.8, zorder=0)
    for method, series in lines.items():
        steps, values = zip(*series, strict=True)
        every = max(1, len(steps) // 12)
        axes.plot(steps, values, label=method, linewidth=1.5, markersize=5, markevery=every, **style[method])
        half = bands.get(method, {})
        both = [(step, value, half[step]) for step, value in series if step in half]
        if both:
            x, y, h = zip(*both, strict=True)
            low, high = [a - b for a, b in zip(y, h, strict=True)], [a + b for a, b in zip(y, h, strict=True)]
            axes.fill_between(x, low, high, color=style[method]["color"], alpha=0.15, linewidth=0)
    axes.set_title(plot.title)
    axes.set_xlabel("training step")
    axes.set_ylabel(plot.y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    # Beside the axes: four noisy lines leave no free corner inside.
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False)
    figure.tight_layout()
    figure.savefig(path, format="png")
