"""Which rank runs which row in which micro-batch, decided once for all ranks.

Rows with a backward are balanced over the ranks by themselves and get micro-batches of their own, apart from the
forward-only rows: with sharded parameters every rank must run the same number of forwards and backwards in the same
order, or the collectives of different layers meet.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Size of a micro-batch: rows, or tokens when ``tokens`` is set (as verl's use_dynamic_bsz)."""

    rows: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.rows is None) == (self.tokens is None):
            raise ValueError("a micro-batch is limited either by rows or by tokens")


@dataclass(frozen=True)
class Schedule:
    """``order``: row indices, rank by rank, equally many for each; ``micro_batch[i]``: that of row i, -1 if not run;
    ``n_forward`` and ``n_backward``: micro-batches of each kind on every rank."""

    order: list[int]
    micro_batch: list[int]
    n_forward: int
    n_backward: int


def _workload(length: int) -> int:
    """Cost of a sequence: linear layers plus attention, in the proportion of a small transformer."""
    return length * 4096 + length * length


def _assign(rows: Sequence[int], lengths: Sequence[int], load: list[int], room: list[int]) -> list[list[int]]:
    """Longest first, each row to the least loaded rank that has room; ``load`` and ``room`` are updated."""
    shares: list[list[int]] = [[] for _ in load]
    for row in sorted(rows, key=lambda i: (-lengths[i], i)):
        rank = min((r for r in range(len(load)) if room[r] > 0), key=lambda r: (load[r], r))
        shares[rank].append(row)
        load[rank] += _workload(lengths[row])
        room[rank] -= 1
    return shares


def _fits(rows: Sequence[int], lengths: Sequence[int], limits: Limits) -> int:
    """Fewest micro-batches that hold the rows, first-fit decreasing; one longer than the limit gets its own."""
    if limits.rows is not None:
        return -(-len(rows) // limits.rows)
    space: list[int] = []
    for row in sorted(rows, key=lambda i: (-lengths[i], i)):
        bin_ = next((b for b, s in enumerate(space) if s >= lengths[row]), None)
        if bin_ is None:
            space.append(limits.tokens)  # type: ignore[arg-type]
            bin_ = len(space) - 1
        space[bin_] -= lengths[row]
    return len(space)


def _pack(rows: Sequence[int], lengths: Sequence[int], limits: Limits, count: int) -> list[list[int]]:
    """The rows in ``count`` micro-batches (some maybe empty) within the limits."""
    bins: list[list[int]] = [[] for _ in range(count)]
    ordered = sorted(rows, key=lambda i: (-lengths[i], i))
    if limits.rows is not None:
        for i, row in enumerate(ordered):  # neighbours in length share a micro-batch: least padding
            bins[i // limits.rows].append(row)
        return bins
    heap = [(0, b) for b in range(count)]
    overflow = []
    for row in ordered:  # emptiest first balances the micro-batches
        used, b = heap[0]
        if used and used + lengths[row] > limits.tokens:  # type: ignore[operator]
            overflow.append(row)
            continue
        heapq.heapreplace(heap, (used + lengths[row], b))
        bins[b].append(row)
    if overflow:
        return _first_fit(ordered, lengths, limits, count)
    return bins


def _first_fit(ordered: Sequence[int], lengths: Sequence[int], limits: Limits, count: int) -> list[list[int]]:
    bins: list[list[int]] = [[] for _ in range(count)]
    used = [0] * count
    for row in ordered:
        b = next(b for b in range(count) if used[b] == 0 or used[b] + lengths[row] <= limits.tokens)  # type: ignore[operator]
        bins[b].append(row)
        used[b] += lengths[row]
    return bins


def plan_schedule(
    lengths: Sequence[int],
    backward: Sequence[bool],
    run: Sequence[bool],
    n_ranks: int,
    forward_limits: Limits,
    backward_limits: Limits,
) -> Schedule:
    """Plan one pass.

    Args:
        lengths: tokens of each row (prompt and response).
        backward: rows that need a backward.
        run: rows that are run at all; a backward row always is.
        n_ranks: data-parallel ranks; the number of rows must be a multiple of it.
        forward_limits, backward_limits: size of a micro-batch of each kind.
    """
    n = len(lengths)
    if n % n_ranks:
        raise ValueError(f"{n} rows cannot be shared equally by {n_ranks} data-parallel ranks")
    load, room = [0] * n_ranks, [n // n_ranks] * n_ranks
    with_backward = [i for i in range(n) if backward[i]]
    without = [i for i in range(n) if run[i] and not backward[i]]
    idle = [i for i in range(n) if not run[i] and not backward[i]]
    b_shares = _assign(with_backward, lengths, load, room)
    f_shares = _assign(without, lengths, load, room)
    i_shares = _assign(idle, [0] * n, [0] * n_ranks, room)

    n_backward = max(_fits(s, lengths, backward_limits) for s in b_shares)
    n_forward = max(_fits(s, lengths, forward_limits) for s in f_shares)
    micro_batch = [-1] * n
    for b_share, f_share in zip(b_shares, f_shares, strict=True):
        bins = _pack(f_share, lengths, forward_limits, n_forward)
        bins += _pack(b_share, lengths, backward_limits, n_backward)
        for index, rows in enumerate(bins):
            for row in rows:
                micro_batch[row] = index
    order = [row for shares in zip(b_shares, f_shares, i_shares, strict=True) for share in shares for row in share]
    return Schedule(order, micro_batch, n_forward, n_backward)
