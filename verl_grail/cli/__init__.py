"""Command line ``verl-grail``."""

from __future__ import annotations

import argparse

from verl_grail import __version__
from verl_grail.cli import check, compare, data, doctor, report, spans
from verl_grail.cli import eval as evaluate


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="verl-grail", description=__doc__)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (check, compare, data, doctor, evaluate, report, spans):
        command.add(commands)
    args = parser.parse_args(argv)
    return args.run(args)
