"""What a signal pass computes and sends under Megatron's layouts, against verl's own log-prob pass.

    PYTHONPATH=. python scripts/bench/megatron_cost.py       minutes; writes scripts/bench/results/megatron_cost.json

Counted, not timed, on verl's Megatron engine with the CPU modules of the layout tests: FLOPs by PyTorch's counter, and
the bytes that ranks send in collectives and pipeline sends, by the usual ring algorithms. All passes have the same rows
and micro-batches. The CPU attention is dense: its share of the FLOPs is that of an unmasked product, in every pass.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.signals.engines import run_ranks, schedule_rows
from tests.signals.megatron_engines import Layout, build_engine, run_log_probs, run_pass, save_with_tokenizer
from tests.signals.tiny import Row, build_model
from tests.signals.traffic import cost_of
from verl_grail.signals.schedule import Limits

OUT = Path(__file__).parent / "results" / "megatron_cost.json"
LAYOUTS = [
    Layout(tp=2),
    Layout(tp=2, sequence_parallel=False),
    Layout(pp=2),
    Layout(pp=2, vpp=2),
    Layout(cp=2),
    Layout(dp=2),
    Layout(tp=2, pp=2),
    Layout(tp=2, cp=2),
    Layout(tp=2, pp=2, recompute="full"),
]
EXPERTS = [Layout(dp=2, ep=2), Layout(tp=2, ep=2)]
SIZE = dict(vocab_size=2048, hidden_size=128, intermediate_size=256, layers=4, num_attention_heads=4, head_dim=32)
PROMPT, RESPONSE, ANSWER = 16, 112, 4


def make_rows(n: int, share: float) -> list[Row]:
    """Rows of one length; ``share`` of them has an answer, and half of all a vector over the whole response."""
    g = torch.Generator().manual_seed(0)

    def ids(k: int) -> list[int]:
        return torch.randint(3, SIZE["vocab_size"], (k,), generator=g).tolist()

    rows = []
    for i in range(n):
        answer = (RESPONSE - ANSWER - 2, RESPONSE - 2) if i < share * n else (0, 0)
        rows.append(Row(ids(PROMPT), ids(RESPONSE), answer, (0, RESPONSE) if i % 2 else (0, 0)))
    return rows


def _job(rank: int, path: str, layout: Layout, passes: dict[str, tuple]) -> dict[str, Any]:
    engine = build_engine(path, layout)
    costs = {}
    for name, (rows, order, plans, request) in passes.items():
        costs[name] = cost_of(lambda a=(engine, rows, order, plans, request): run_pass(*a))
    rows, order, plans, _ = passes["forward"]
    costs["log_prob"] = cost_of(lambda: run_log_probs(engine, rows, order, plans))
    return costs


def measure(path: str, layout: Layout, n: int) -> dict[str, Any]:
    """Costs of the passes under one layout, summed over ranks."""
    passes = {}
    for name, share, vectors in (
        ("forward", 0.0, False),
        ("gar", 0.0, True),
        ("grail_half", 0.5, False),
        ("grail_all", 1.0, False),
        ("grail_gar", 1.0, True),
    ):
        rows = make_rows(n, share)
        passes[name] = (rows, *schedule_rows(rows, layout.dp, Limits(rows=2), vectors=vectors))
    ranks = run_ranks(layout.ranks, _job, path, layout, passes)
    out = {}
    for name in ranks[0]:
        sent: dict[str, float] = {}
        for cost in (r[name] for r in ranks):
            for kind, value in cost.sent.items():
                sent[kind] = sent.get(kind, 0) + value
        out[name] = {"flops": sum(r[name].flops for r in ranks), "bytes": sum(sent.values()), "sent": sent}
    return out


def show(results: dict[str, dict[str, Any]]) -> None:
    """Ratios to the log-prob pass."""
    table = Table("layout", *[f"{n}: FLOPs, bytes" for n in next(iter(results.values())) if n != "log_prob"])
    for layout, costs in results.items():
        base = costs["log_prob"]
        cells = []
        for name, cost in costs.items():
            if name != "log_prob":
                sent = f"{cost['bytes'] / base['bytes']:.2f}" if base["bytes"] else "-"
                cells.append(f"{cost['flops'] / base['flops']:.2f}, {sent}")
        table.add_row(layout, *cells)
    Console(width=150).print(table)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = {k: save_with_tokenizer(Path(folder) / k, build_model(k, **SIZE)) for k in ("qwen3", "qwen3_moe")}
        layouts = [("qwen3", x) for x in LAYOUTS] + [("qwen3_moe", x) for x in EXPERTS]
        for kind, layout in track(layouts, "layouts"):
            results[f"{kind} {layout}"] = measure(paths[kind], layout, args.rows)
    show(results)
    card = {n: metadata.version(n) for n in ("torch", "verl", "megatron-core", "mbridge")}
    shape = {**SIZE, "rows": args.rows, "prompt": PROMPT, "response": RESPONSE, "answer": ANSWER}
    args.out.write_text(json.dumps({"versions": card, "shape": shape, "layouts": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
