"""Which rollouts a page keeps when a run has more than it can hold."""

from __future__ import annotations

import zlib
from collections.abc import Sequence


def shares(wanted: Sequence[int], limit: int) -> list[int]:
    """Divide `limit` over steps as equally as their numbers allow; what a step does not need goes to the others.

    Returns:
        As many whole numbers as `wanted`, none above its own, with the sum min(limit, sum(wanted)).
    """
    left, given = limit, [0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for place, i in enumerate(order):
        given[i] = min(wanted[i], left // (len(order) - place))
        left -= given[i]
    return given


def choose(
    groups: Sequence[str], bonuses: Sequence[float | None], lengths: Sequence[int], rows: int, tokens: int
) -> list[int]:
    """Indices of the rollouts to keep of one step, in their order.

    First those with the highest and the lowest bonus; then whole prompts, since rollouts are compared within one, in
    an order that depends on their names alone, so that the same run gives the same page.

    Args:
        groups, bonuses, lengths: of each rollout: its prompt, its bonus, its number of tokens.
        rows, tokens: limits. A rollout that would go beyond one is passed over.
    """
    known = [i for i, bonus in enumerate(bonuses) if bonus is not None]
    first = [max(known, key=lambda i: bonuses[i] or 0.0), min(known, key=lambda i: bonuses[i] or 0.0)] if known else []
    rest = sorted(range(len(groups)), key=lambda i: (zlib.crc32(groups[i].encode("utf-8", "replace")), groups[i], i))
    kept: set[int] = set()
    for i in [*first, *rest]:
        if i not in kept and len(kept) < rows and lengths[i] <= tokens:
            kept.add(i)
            tokens -= lengths[i]
    return sorted(kept)
