"""What a rank computes, sends and holds: FLOPs by PyTorch's counter, bytes of every collective and send, peaks."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode


def _size(value: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tree_leaves(value) if isinstance(t, torch.Tensor))


def _ranks(args: tuple) -> int:
    for arg in args:
        if isinstance(arg, torch.ScriptObject) and hasattr(arg, "size"):
            return arg.size()
        try:
            return torch.distributed.ProcessGroup.unbox(arg).size()
        except (TypeError, RuntimeError, AttributeError):
            continue
    raise AssertionError("a collective without a group")


def _all_reduce(args: tuple, n: int) -> float:
    return 2 * (n - 1) / n * _size(args[0])


def _gather(args: tuple, n: int) -> float:
    return (n - 1) / n * _size(args[0])  # of the output


def _scatter(args: tuple, n: int) -> float:
    return (n - 1) / n * _size(args[1])  # of the input


def _send(args: tuple, n: int) -> float:
    return _size(args[0])


def _nothing(args: tuple, n: int) -> float:
    return 0.0


VOLUME: dict[str, Callable[[tuple, int], float]] = {
    "allreduce_": _all_reduce,
    "allgather_": _gather,
    "_allgather_base_": _gather,
    "reduce_scatter_": _scatter,
    "_reduce_scatter_base_": _scatter,
    "alltoall_base_": _scatter,
    "broadcast_": _send,
    "send": _send,
    "recv_": _nothing,
    "barrier": _nothing,
}
"""Operator of c10d -> bytes that a rank sends, by the usual ring algorithms."""


@dataclass
class Traffic(TorchDispatchMode):
    """Bytes that this rank sends, by operator, and those of collectives that the plugin's own code calls."""

    sent: Counter = field(default_factory=Counter)
    ours: Counter = field(default_factory=Counter)

    def __post_init__(self):
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            name = func._schema.name.split("::")[1]
            volume = VOLUME[name](args, _ranks(args) if VOLUME[name] is not _nothing else 1)
            self.sent[name] += volume
            if _called_by_us():
                self.ours[name] += volume
        return func(*args, **(kwargs or {}))


def _called_by_us() -> bool:
    """Whether the innermost caller that is neither PyTorch nor this file is the plugin."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/verl_grail/" in name:
            return True
        if "/megatron/" in name or "/verl/" in name:
            return False
        frame = frame.f_back
    return False


class _NoModules:
    """In place of the counter's module tracker, whose hooks refuse gradients of a leaf (``torch.autograd.grad``)."""

    parents = frozenset({"Global"})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def counting() -> FlopCounterMode:
    """PyTorch's counter, for calls that take gradients of a leaf too."""
    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModules()
    return counter


def flops_of(call: Callable[[], Any]) -> int:
    """Run ``call`` and count its FLOPs."""
    counter = counting()
    with counter:
        call()
    return counter.get_total_flops()


def peak_bytes(call: Callable[[], Any]) -> int:
    """Peak of live bytes allocated while ``call`` runs, by the profiler's memory events."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        call()
    live = peak = 0
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    for e in sorted(events, key=lambda e: e.start_ns()):
        live += e.nbytes()
        peak = max(peak, live)
    return peak


@dataclass
class Cost:
    """What one call cost this rank."""

    flops: int
    sent: dict[str, float]
    ours: float

    @property
    def bytes(self) -> float:
        return sum(self.sent.values())


def cost_of(call: Callable[[], Any]) -> Cost:
    """Run ``call`` and count."""
    flops, traffic = FlopCounterMode(display=False), Traffic()
    with flops, traffic:
        call()
    return Cost(flops.get_total_flops(), dict(traffic.sent), sum(traffic.ours.values()))
