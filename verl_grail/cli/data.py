"""``verl-grail data check FILE``: what is wrong with a parquet file, before a run finds out."""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from verl_grail.data.check import Report, check_rows, gold_reader, identities
from verl_grail.data.files import DataError, read_rows

_SHOWN_ROWS = 10


def run_check(args: argparse.Namespace) -> int:
    """Print; 1 if a run on the file would fail or be worthless, 2 if a file cannot be read."""
    length = len
    if args.tokenizer:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
        length = lambda text: len(tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
    try:
        evaluation: dict[str, str] = {}
        for file in args.eval:
            evaluation |= identities(read_rows(file), file.name)
        with gold_reader() as readable:
            report = check_rows(
                read_rows(args.file), readable, evaluation, args.solution_key, length, args.max_prompt_length
            )
        shown = list(itertools.islice(read_rows(args.file), args.show))
    except DataError as e:
        print(e, file=sys.stderr)
        return 2
    report.unit = "tokens" if args.tokenizer else "characters"
    _print(args.file, report, shown)
    return int(bool(report.wrong) or not report.rows)


def _print(file: Path, report: Report, shown: list) -> None:
    from rich.console import Console
    from rich.pretty import Pretty

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(f"{file}: {report.rows} rows; " + ", ".join(f"{n} {s}" for s, n in report.sources.most_common(8)))
    for name, values in report.lengths.items():
        if values:
            middle, high = values[len(values) // 2], values[min(len(values) - 1, int(0.99 * len(values)))]
            console.print(f"{name}: {middle} {report.unit} (median), {high} (99 %), {values[-1]} (longest)")
    for mark, found in (("[bold red]wrong[/]", report.wrong), ("[yellow]note[/] ", report.doubtful)):
        for what, rows in found.items():
            console.print(f"{mark} {len(rows)} rows: ", end="")
            more = ", ..." if len(rows) > _SHOWN_ROWS else ""
            console.print(f"{what} (rows {', '.join(map(str, rows[:_SHOWN_ROWS]))}{more})", markup=False)
    for row in shown:
        console.print(Pretty(row, max_string=300, max_length=4))
    if not report.rows:
        console.print("[bold red]wrong[/] no rows")


def add(commands) -> None:
    """The command's arguments."""
    data = commands.add_parser("data", help="look at data files").add_subparsers(required=True, metavar="COMMAND")
    parser = data.add_parser("check", help="schema, golds, expert solutions, duplicates, lengths, first rows")
    parser.add_argument("file", type=Path)
    parser.add_argument("--eval", type=Path, action="append", default=[], help="evaluation file that must not overlap")
    parser.add_argument("--solution-key", default="", help="column with expert solutions (GAR: expert_solution)")
    parser.add_argument("--tokenizer", help="count tokens of this tokenizer instead of characters")
    parser.add_argument("--max-prompt-length", type=int, default=0, help="data.max_prompt_length of the run")
    parser.add_argument("--show", type=int, default=2, help="rows to print (2)")
    parser.set_defaults(run=run_check)
