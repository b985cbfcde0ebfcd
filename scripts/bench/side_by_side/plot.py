"""Picture of how the cost of the signals grows, from the results file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

IMAGE = Path(__file__).parents[3] / "docs" / "images" / "cost_growth.png"
LINES = {
    "plugin: GRAIL": ("grail", "plugin", "#0072B2", "-"),
    "plugin: GAR": ("gar", "plugin", "#009E73", "-"),
    "plugin: OAR-G": ("oar_g", "plugin", "#CC79A7", "-"),
    "authors' way: GRAIL": ("grail", "authors", "#0072B2", "--"),
    "authors' way: GAR": ("gar", "authors", "#009E73", "--"),
}
"""Method, way, colour of Okabe and Ito's palette, and style."""
FIELDS = {
    "response": "response tokens",
    "vocab": "vocabulary",
    "group": "rollouts of a prompt",
    "epochs": "epochs",
    "selected": "share of rollouts selected (GRAIL)",
    "passing": "share of rollouts passing (GAR)",
}


def plot_growth(growth: dict[str, Any], out: Path = IMAGE) -> None:
    """One panel for each field; added FLOPs in per cent of verl's GRPO step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(10, 5.6), dpi=110)
    FigureCanvasAgg(drawing)
    panels = drawing.subplots(2, 3, sharey=True)
    for ax, (field, label) in zip(panels.flat, FIELDS.items(), strict=True):
        values = list(growth[field])
        for name, (method, way, colour, style) in LINES.items():
            shares = [100 * growth[field][v][method][way] for v in values]
            ax.plot(range(len(values)), shares, style, color=colour, label=name, marker="o", markersize=3.5)
        ticks = [f"{int(v) // 1000}k" if v.isdigit() and int(v) >= 10_000 else v for v in values]
        ax.set_xticks(range(len(values)), ticks)
        ax.set_xlabel(label)
        ax.axhline(0, color="black", linewidth=0.6)
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in panels[:, 0]:
        ax.set_ylabel("added FLOPs, % of GRPO step")
    handles, labels = panels.flat[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
    drawing.tight_layout(rect=(0, 0, 1, 0.94))
    out.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(out, format="png")
