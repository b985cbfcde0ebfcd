"""Blocks of docs/results.md from ``scripts/bench/results/side_by_side.json``; `docs_results.py` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def percent(share: float) -> str:
    """Added to a step."""
    return f"{100 * share:+.1f} %"


def _against(target: dict[str, Any], key: str) -> str:
    value = percent(target[key])
    return value if target[key] <= target["at_most"] else f"**{value}**, missed"


def papers(content: dict[str, Any]) -> str:
    """Targets, every case by epochs, and what a backward is made of."""
    found = content["papers"]
    rows = [
        [t["model"].split("/")[1], t["case"], str(t["epochs"]), f"at most {percent(t['at_most'])}",
         *(_against(t, key) for key in ("found", "with_checkpointing", "in_training_alone"))]
        for t in found["targets"]
    ]  # fmt: skip
    header = ["model", "case", "epochs", "target", "no checkpointing", "checkpointing in training and pass"]
    parts = [table([*header, "in training, pass with `recompute=False`"], rows)]
    rows = []
    for model, result in found["models"].items():
        for case, by_epochs in result["added"].items():
            ways = ("plugin", "limit") if case.startswith("oar_g") else ("plugin", "limit", "authors")
            cells = [", ".join(percent(by_epochs[n][way]) for way in ways) for n in ("1", "2", "3", "4")]
            rows.append([model.split("/")[1], case, *cells])
    header = ["model", "case", "1 epoch: plugin, limit, authors' way", "2 epochs", "3 epochs", "4 epochs"]
    parts.append(table(header, rows))
    made = "; ".join(
        f"{model.split('/')[1]}: " + ", ".join(f"{name} {percent(share)}" for name, share in result["where"].items())
        for model, result in found["models"].items()
    )
    parts.append(f"Of a step with 1 epoch, every rollout selected: {made}.")
    return "\n\n".join(parts)


def live(content: dict[str, Any]) -> str:
    """Time, FLOPs and memory of the live steps."""
    runs = content["live"]["runs"]
    rows = []
    for step in next(iter(runs.values())):
        cells = []
        for run in runs.values():
            t = run[step]["time"]
            cells.append(
                f"{t['median']:.2f} ({t['low']:.2f} to {t['high']:.2f}), {run[step]['flops']:.2f}, "
                f"{run[step]['peak_memory']:.2f}"
            )
        rows.append([step, *cells])
    return table(["step", *(name.replace("1 epochs", "1 epoch") for name in runs)], rows)


def memory(content: dict[str, Any]) -> str:
    """Peaks of single passes."""
    shapes = content["memory"]["shapes"]
    rows = [
        [name, *(f"{shape[name]['to_log_probs']:.2f}" for shape in shapes.values())]
        for name in next(iter(shapes.values()))
    ]
    return table(["pass", *shapes], rows)


BLOCKS = {"cost_papers": papers, "cost_live": live, "cost_memory": memory}
