"""math_boxed for end-to-end tests, with every n-th response made to hang it and golds made unreadable."""

from __future__ import annotations

import importlib.util
import itertools
import zlib
from pathlib import Path

FILE = Path(__file__).parents[2] / "reward_fns" / "math_boxed.py"
_spec = importlib.util.spec_from_file_location("math_boxed", FILE)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
_calls = itertools.count(1)
HANG = r"\boxed{1 + 5^{5^{5^{5^{5}}}}}"


def unreadable(gold: str, every: int) -> bool:
    """Whether this gold is one of those spoiled."""
    return every > 0 and zlib.crc32(gold.encode()) % every == 0


def compute_score(data_source, solution_str, ground_truth, extra_info=None, hang_every=0, spoil_every=0, **options):
    """verl's contract."""
    n = next(_calls)  # of this reward worker; these runs have one
    response = HANG if hang_every and n % hang_every == 0 else solution_str
    gold = r"\begin{foo}" if unreadable(str(ground_truth), spoil_every) else ground_truth
    return _module.compute_score(data_source, response, gold, extra_info, **options)
