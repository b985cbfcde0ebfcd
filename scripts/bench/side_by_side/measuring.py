"""Wall time in pairs, FLOPs and peak memory of the live passes and steps of `ways.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from setting import Setting, live_engine, make_rollouts
from transformers import Qwen3ForCausalLM
from ways import METHODS, Ways

from tests.signals.traffic import flops_of, peak_bytes

Call = Callable[[], Any]


def ways_of(setting: Setting, folder: Path, **options: Any) -> Ways:
    """The ways on a new engine for the setting."""
    return Ways(live_engine(setting, folder, **options), setting, make_rollouts(setting))


def paired_times(calls: dict[str, Call], pairs: int) -> dict[str, list[float]]:
    """Seconds of each call over those of the first one, run after run: every round runs all of them once, each round in
    the other direction, and one round before the first is not counted."""
    names = list(calls)
    ratios: dict[str, list[float]] = {name: [] for name in names}
    for number in range(pairs + 1):
        seconds = {}
        for name in names if number % 2 else reversed(names):
            began = time.perf_counter()
            calls[name]()
            seconds[name] = time.perf_counter() - began
        if number:
            for name in names:
                ratios[name].append(seconds[name] / seconds[names[0]])
    return ratios


def summary(ratios: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(ratios), "low": min(ratios), "high": max(ratios)}


def side_by_side(setting: Setting, folder: Path, pairs: int) -> dict[str, Any]:
    """Every step against verl's: time in pairs, FLOPs, peak memory."""
    steps = ways_of(setting, folder).steps()
    times = paired_times(steps, pairs)
    # the counter does not know the CPU's fused attention
    flops = {name: flops_of(call) for name, call in ways_of(setting, folder, attention="eager").steps().items()}
    memory = {name: peak_bytes(call) for name, call in steps.items()}
    base_flops, base_memory = flops["verl"], memory["verl"]
    return {
        name: {
            "time": summary(times[name]),
            "flops": flops[name] / base_flops,
            "peak_memory": memory[name] / base_memory,
        }
        for name in steps
    }


def pass_memory(setting: Setting, folder: Path) -> dict[str, dict[str, float]]:
    """Peak memory of single passes above what stays, in bytes and against verl's log-prob pass; with the fused head's
    log-prob pass of verl beside it."""
    ways = ways_of(setting, folder)
    calls: dict[str, Call] = {"verl: log-probs": ways.log_probs}
    calls |= {f"plugin: {name}": partial(ways.signals, **options) for name, options in METHODS.items()}
    calls["plugin: grail, recompute=False"] = partial(ways.signals, weights="grail", recompute=False)
    calls |= {"authors' way: grail": ways.authors_saliency, "authors' way: gar": ways.authors_vectors}
    calls["verl: training"] = ways.train
    peaks = {name: _settled_peak(call) for name, call in calls.items()}
    with _restored(Qwen3ForCausalLM):  # verl patches the class
        fused = ways_of(setting, folder, fused=True)
        peaks["verl: log-probs, fused head"] = _settled_peak(lambda: fused.log_probs(fused=True))
    base = peaks["verl: log-probs"]
    return {name: {"bytes": n, "to_log_probs": n / base} for name, n in peaks.items()}


@contextmanager
def _restored(model_class: type) -> Iterator[None]:
    forward = model_class.forward  # type: ignore[attr-defined]
    try:
        yield
    finally:
        model_class.forward = forward  # type: ignore[attr-defined]


def _settled_peak(call: Call) -> int:
    call()  # what is allocated once, on first use, stays out
    return peak_bytes(call)
