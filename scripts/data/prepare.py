"""A data set of the papers as verl's parquet files.

    python scripts/data/prepare.py deepmath --out data                      data/deepmath.parquet, from the hub
    python scripts/data/prepare.py deepmath --out data --file rows.parquet  the same from a file that you have
    python scripts/data/prepare.py numina --out data --limit 10000 --validation 0.02 --instruction think --need-solution
    python scripts/data/prepare.py math500 --out data

The split and the limit go by a hash of the problem's text: they do not depend on the order of the rows, and a problem
is on the same side in every data set. `verl-grail data check` looks at the result.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from verl_grail.data.build import INSTRUCTIONS, Options, build
from verl_grail.data.check import gold_reader
from verl_grail.data.files import DataError, hub_rows, read_rows, write
from verl_grail.data.sources import SOURCES


def main(argv: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=SOURCES)
    parser.add_argument("--out", type=Path, required=True, help="folder")
    parser.add_argument("--file", type=Path, help="a local file with the data set's own columns")
    parser.add_argument("--instruction", default="boxed", help=f"{', '.join(INSTRUCTIONS)}, or a text")
    parser.add_argument("--validation", type=float, default=0.0, help="share of the problems")
    parser.add_argument("--limit", type=int, default=0, help="training problems at most")
    parser.add_argument("--max-chars", type=int, default=0, help="longer problems and solutions are dropped")
    parser.add_argument("--need-solution", action="store_true", help="drop problems without an expert solution (GAR)")
    parser.add_argument("--source", action="append", default=[], help="NuminaMath: keep this source only; repeatable")
    parser.add_argument("--keep-unreadable", action="store_true", help="keep golds that the grader cannot read")
    args = parser.parse_args(argv)
    source = SOURCES[args.name]
    options = Options(
        instruction=args.instruction,
        max_chars=args.max_chars,
        need_solution=args.need_solution,
        validation=args.validation,
        limit=args.limit,
        include={"source": args.source} if args.source else {},
    )
    try:
        rows = read_rows(args.file) if args.file else hub_rows(source)
        with gold_reader() as readable:
            built = build(args.name, source, rows, options, None if args.keep_unreadable else readable)
    except (DataError, ValueError) as e:
        print(e, file=sys.stderr)
        return 1
    for part, rows in (("", built.train), ("_val", built.validation)):
        if rows:
            path = args.out / f"{args.name}{part}.parquet"
            write(rows, path)
            print(f"{path}: {len(rows)} problems")
    print("dropped: " + (", ".join(f"{n} {why}" for why, n in built.dropped.most_common()) or "none"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
