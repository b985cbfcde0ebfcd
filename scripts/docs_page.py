"""What the scripts that write tables of the documents share: blocks between markers, writing, and ``--check``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def filled(page: str, blocks: Mapping[str, str], end: str) -> str:
    """The page with new content between each block's opening marker and the next ``end``.

    Args:
        blocks: opening marker -> content.

    Raises:
        ValueError: a block's markers are missing, or there are several.
    """
    for begin, content in blocks.items():
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"the page must hold exactly one {begin} with {end} after it")
        page = pattern.sub(lambda _, new=f"{begin}\n\n{content}\n\n{end}": new, page)
    return page


def write_or_check(argv: list[str] | None, path: Path, rendered: Callable[[str], str], script: str) -> int:
    """Write ``rendered(page)``; with ``--check`` nothing is written, and the exit status is 1 if the page is stale."""
    parser = argparse.ArgumentParser(description=f"Write the tables of {path.name}.")
    parser.add_argument("--check", action="store_true", help="write nothing, only say whether the page is up to date")
    args = parser.parse_args(argv)
    old = path.read_text(encoding="utf-8")
    new = rendered(old)
    if new == old:
        return 0
    if args.check:
        print(f"{path} is stale: run python scripts/{script}", file=sys.stderr)
        return 1
    path.write_text(new, encoding="utf-8")
    return 0
