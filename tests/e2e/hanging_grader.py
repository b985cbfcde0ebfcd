"""math_boxed for end-to-end tests, with a share of the responses made to hang it and golds made unreadable."""

from __future__ import annotations

import importlib.util
import zlib
from pathlib import Path

FILE = Path(__file__).parents[2] / "reward_fns" / "math_boxed.py"
_spec = importlib.util.spec_from_file_location("math_boxed", FILE)
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
HANG = r"\boxed{1 + 5^{5^{5^{5^{5}}}}}"


def hangs(response: str, share: float) -> bool:
    """Whether this response is one of the share: a function of its text, so that a test can count them."""
    return zlib.crc32(response.encode("utf-8", "replace")) % 1000 < 1000 * share


def unreadable(gold: str, every: int) -> bool:
    """Whether this gold is one of those spoiled."""
    return every > 0 and zlib.crc32(gold.encode()) % every == 0


def compute_score(data_source, solution_str, ground_truth, extra_info=None, share=0.0, spoil_every=0, **options):
    """verl's contract."""
    response = HANG if hangs(solution_str, share) else solution_str
    gold = r"\begin{foo}" if unreadable(str(ground_truth), spoil_every) else ground_truth
    return _module.compute_score(data_source, response, gold, extra_info, **options)
