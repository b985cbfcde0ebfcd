"""``python -m verl_grail.report RUN_ROOT --out DIR [--title TITLE]``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from verl_grail.report.build import write_report
from verl_grail.report.runs import RunRootError


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 on success, 2 if a folder cannot be used or the extra is missing."""
    parser = argparse.ArgumentParser(prog="python -m verl_grail.report", description="Table, plots and page of runs.")
    parser.add_argument("run_root", type=Path, help="folder with one sub-folder per method")
    parser.add_argument("--out", type=Path, required=True, help="folder to write index.html and the PNG files to")
    parser.add_argument("--title", help="heading of the page; default: the run root's name")
    args = parser.parse_args(argv)
    try:
        page = write_report(args.run_root, args.out, args.title or f"Runs of {args.run_root.resolve().name}")
    except (RunRootError, ModuleNotFoundError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"report: {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
