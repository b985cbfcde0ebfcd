"""What the plugin's signals cost beside verl's GRPO step and beside the authors' way of computing them.

    PYTHONPATH=. python scripts/bench/side_by_side     about ten minutes; writes scripts/bench/results/side_by_side.json

live     on verl's FSDP2 engine (one rank, fp32, one thread): every step of `ways.py` against verl's, in one run: wall
         time (median of pairs), counted FLOPs, peak memory
memory   peaks of single passes above what stays, with checkpointing, by the profiler's allocations
papers   FLOPs counted on the meta device for Qwen3-4B and 8B, with the targets
growth   the same as response, vocabulary, rollouts of a prompt, epochs, and the selected and passing shares grow
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("VERL_PLATFORM", "cpu")
sys.path.append(str(Path(__file__).parents[2]))  # for `card`; another package may be called scripts

import torch
from card import versions_and_machine
from measuring import pass_memory, side_by_side
from papers import growth, papers, targets
from plot import plot_growth
from rich.console import Console
from rich.table import Table
from setting import DEEP, SMALL, TINY, join_world

OUT = Path(__file__).parents[1] / "results" / "side_by_side.json"
PACKAGES = ("torch", "transformers", "verl", "verl-grail")
console = Console(width=120)


def live(folder: Path, pairs: int) -> dict[str, Any]:
    """Both models, at one and at four epochs."""
    found = {}
    for name, setting in (("tiny", TINY), ("small", SMALL.changed(prompts=1))):
        for epochs in (1, 4):
            console.print(f"steps of the {name} model, {epochs} epochs")
            found[f"{name}, {epochs} epochs"] = side_by_side(setting.changed(epochs=epochs), folder, pairs)
    return {"runs": found}


def growths(folder: Path, pairs: int) -> dict[str, Any]:
    """One field at a time, counted."""
    return {"fields": growth()}


def memory(folder: Path, pairs: int) -> dict[str, Any]:
    """Every shape of `setting.DEEP`."""
    return {"shapes": {name: pass_memory(setting, folder) for name, setting in DEEP.items()}}


def at_papers_sizes(folder: Path, pairs: int) -> dict[str, Any]:
    """Counted parts, and the targets."""
    found = papers()
    return {**found, "targets": list(targets(found))}


PARTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "papers": at_papers_sizes, "memory": memory, "growth": growths, "live": live
}  # fmt: skip


def rounded(value: Any) -> Any:
    """Five digits of every ratio, so that a new run changes what has changed."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(v) for v in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def show(results: dict[str, Any]) -> None:
    """The main numbers."""
    for name, steps in results.get("live", {}).get("runs", {}).items():
        table = Table("step", "time", "FLOPs", "peak memory", title=f"against verl's step: {name}")
        for step, found in steps.items():
            time = found["time"]
            span = f"{time['median']:.2f} ({time['low']:.2f} to {time['high']:.2f})"
            table.add_row(step, span, f"{found['flops']:.3f}", f"{found['peak_memory']:.2f}")
        console.print(table)
    for name, passes in results.get("memory", {}).get("shapes", {}).items():
        table = Table("pass", "against verl's log-prob pass", title=f"peak memory: {name}")
        for step, found in passes.items():
            table.add_row(step, f"{found['to_log_probs']:.2f}")
        console.print(table)
    table = Table("model", "case", "epochs", "at most", "found", "", title="targets, FLOPs against a GRPO step")
    for t in results.get("papers", {}).get("targets", []):
        verdict = "met" if t["met"] else "[red]missed[/]"
        cells = (f"+{100 * t['at_most']:.1f} %", f"+{100 * t['found']:.1f} %", verdict)
        table.add_row(t["model"], t["case"], str(t["epochs"]), *cells)
    console.print(table)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7, help="rounds of timed steps")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="others are kept as they are")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    torch.set_num_threads(1)
    join_world()
    results = json.loads(args.out.read_text()) if args.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for part in args.parts:
            console.print(f"measuring: {part}")
            card = {"command": f"PYTHONPATH=. python scripts/bench/side_by_side --parts {part} --pairs {args.pairs}"}
            card |= versions_and_machine(PACKAGES)
            results[part] = {"card": card, **rounded(PARTS[part](Path(folder), args.pairs))}
            args.out.write_text(json.dumps(results, indent=1) + "\n")
    if args.out == OUT:
        plot_growth(results["growth"]["fields"])
    show(results)


if __name__ == "__main__":
    main()
