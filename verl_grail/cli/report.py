"""``verl-grail report RUN_DIR``: a run's curves, weights, cosines and rollouts as one HTML file and as pictures.

RUN_DIR holds metrics.jsonl (trainer.logger=[console,file], VERL_FILE_LOGGER_PATH) and rollouts/
(trainer.rollout_data_dir); docs/report.md says what is shown.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def run(args: argparse.Namespace) -> int:
    """Write and say what was written; 2 if the folder cannot be used or a package is missing."""
    from verl_grail.report.run import build_report
    from verl_grail.report.runs import RunRootError

    limits = {name: getattr(args, name) for name in ("max_rollouts", "max_tokens") if getattr(args, name) is not None}
    try:
        done = build_report(
            args.run_dir,
            args.out,
            args.png,
            metrics=args.metrics,
            rollouts=args.rollouts,
            title=args.title,
            **limits,
        )
    except (RunRootError, ModuleNotFoundError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for note in done.notes:
        print(f"note: {note}")
    if done.kept < done.total:
        print(f"note: the page keeps {done.kept} of {done.total} rollouts (--max-rollouts, --max-tokens)")
    for picture in done.pictures:
        print(f"picture: {picture}")
    print(f"report: {done.page} ({done.page.stat().st_size / 1e6:.1f} MB, {done.kept} rollouts)")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


def add(commands) -> None:
    """The command's arguments."""
    parser = commands.add_parser("report", help="one run as an HTML page and pictures", description=__doc__)
    parser.add_argument("run_dir", type=Path, help="folder of one run")
    parser.add_argument("--out", type=Path, help="the page (RUN_DIR/report.html)")
    parser.add_argument("--png", type=Path, help="folder for pictures of 300 dpi; none are drawn without it")
    parser.add_argument("--metrics", type=Path, help="verl's file log (RUN_DIR/metrics.jsonl)")
    parser.add_argument("--rollouts", type=Path, help="folder of dumped rollouts (RUN_DIR/rollouts)")
    parser.add_argument("--title", help="heading of the page")
    parser.add_argument("--max-rollouts", type=_positive, help="rollouts that the page keeps (10000)")
    parser.add_argument("--max-tokens", type=_positive, help="tokens that the page keeps (6000000)")
    parser.set_defaults(run=run)
