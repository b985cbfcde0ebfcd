"""``verl-grail compare RUN...``: methods against a baseline, by paired tests.

A RUN is a folder of verl-grail eval, as FOLDER, METHOD=FOLDER or METHOD@BASE=FOLDER. Methods are paired on the same
base and benchmark; several folders of one method and base (training seeds) are the units of the paired t, in the order
given.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def run(args: argparse.Namespace) -> int:
    """Print; 2 if there is nothing to compare."""
    from verl_grail.evaluation import EvaluationError

    try:
        return _run(args)
    except EvaluationError as e:
        print(f"verl-grail compare: {e}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from verl_grail.evaluation import tables
    from verl_grail.evaluation.compare import check_alike, compare, load_run
    from verl_grail.evaluation.store import write_json

    runs = [load_run(argument) for argument in args.runs]
    if not args.allow_differences:
        check_alike(runs)
    methods = list(dict.fromkeys(r.method for r in runs))
    baseline = args.baseline or ("grpo" if "grpo" in methods else methods[0])
    metrics = args.metric or [n for n in runs[0].metrics if not n.startswith("majority")]
    found = [c for metric in metrics for c in compare(runs, metric, baseline, args.alternative)]
    text = tables.report(found)
    notes = [note for r in runs for note in r.notes]
    if notes:
        text += "\n" + "\n".join(f"- {note}" for note in notes) + "\n"
    print(text, end="")
    if args.markdown:
        _write(args.markdown, text)
    if args.latex:
        _write(args.latex, tables.latex_report(found))
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(args.json, [asdict(c) for c in found])
    if args.plot:
        from verl_grail.evaluation.plot import write_plot

        write_plot(found, args.plot)
    return 0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def add(commands) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "compare",
        help="methods against a baseline: paired tests, effect sizes, power, tables and a plot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--baseline", help="method (grpo, else that of the first run)")
    parser.add_argument(
        "--metric", action="append", help="accuracy, pass@k, majority@n or majority; repeatable (the suite's own)"
    )
    parser.add_argument(
        "--alternative", choices=("two-sided", "greater", "less"), default="two-sided", help="of the method (two-sided)"
    )
    parser.add_argument("--allow-differences", action="store_true", help="compare runs that were sampled differently")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--latex", type=Path, metavar="FILE", help="tables for the package booktabs")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="PNG, or what the suffix says")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every number")
    parser.set_defaults(run=run)
