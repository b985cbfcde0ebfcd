"""Read a run's folder: metrics, sums of every step, and the rollouts that the page keeps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from verl_grail.report.rollouts import Rollout
from verl_grail.report.run.regions import MASKED, token_regions
from verl_grail.report.run.sample import choose, shares
from verl_grail.report.run.sums import StepCounter, StepSums
from verl_grail.report.runs import Run, RunRootError, dump_files, load_metrics, looks_like_run, read_dump

BYTES_PER_TOKEN = 8
"""Less than the shortest token takes in a dump (`"", ` and `0.0, `), so that a file's size bounds its tokens."""


class Vocabulary:
    """Numbers for token texts, in the order of their first use."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._index)

    def numbers(self, tokens: tuple[str, ...]) -> np.ndarray:
        """(tokens,) uint32."""
        index = self._index
        return np.fromiter((index.setdefault(t, len(index)) for t in tokens), np.uint32, len(tokens))

    def texts(self) -> list[str]:
        """By number."""
        return list(self._index)


@dataclass(frozen=True)
class Kept:
    """A rollout with its per-token columns as arrays.

    ``rollout`` has lost its tokens, weights and advantages, which are ``ids`` (tokens,) uint32 into the vocabulary,
    ``weights`` (tokens,) float32 (empty if all are 1 or there are none) and ``advantage``: lowest and highest base
    advantage (advantage over weight) of its tokens, equal for most estimators; None if there is none.
    """

    rollout: Rollout
    ids: np.ndarray
    weights: np.ndarray
    mean_weight: float | None
    advantage: tuple[float, float] | None


@dataclass
class Collected:
    """A run's folder as the page and the pictures need it."""

    run: Run
    sums: dict[int, StepSums] = field(default_factory=dict)
    """By step, over every rollout of its dump."""
    kept: list[Kept] = field(default_factory=list)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    solutions: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    """Expert solutions by step and prompt (`Rollout.group`)."""
    total: int = 0
    """Rollouts read."""
    without_contents: int = 0
    """Of these, ones whose dump does not say which tokens of the answer are its content."""


def find_inputs(run_dir: Path, metrics: Path | None, rollouts: Path | None) -> tuple[Path, Path]:
    """Files of a run: ``metrics.jsonl`` and ``rollouts/`` in its folder, unless they are named.

    Raises:
        RunRootError: there is neither, or the folder holds several runs.
    """
    for option, path in (("--metrics", metrics), ("--rollouts", rollouts)):
        if path is not None and not path.exists():
            raise RunRootError(f"{option} {path} does not exist")
    if not run_dir.is_dir():
        raise RunRootError(f"run folder {run_dir} is not a folder; expected one with metrics.jsonl and rollouts/")
    found = (metrics or run_dir / "metrics.jsonl", rollouts or run_dir / "rollouts")
    if rollouts is None and not found[1].is_dir() and dump_files(run_dir):
        found = (found[0], run_dir)  # trainer.rollout_data_dir itself was named
    if not found[0].is_file() and not found[1].is_dir():
        runs = sorted(p.name for p in run_dir.iterdir() if p.is_dir() and looks_like_run(p))
        mend = (
            f"it holds several runs, pass one of them ({', '.join(runs[:5])}) or compare them with python -m "
            "verl_grail.report"
            if runs
            else "no metrics.jsonl and no rollouts/ in it; name them with --metrics FILE and --rollouts DIR"
        )
        raise RunRootError(f"run folder {run_dir}: {mend}")
    return found


def collect(name: str, metrics: Path, rollouts: Path, max_rollouts: int, max_tokens: int) -> Collected:
    """Read everything.

    Args:
        name: of the run, for its notes.
        max_rollouts, max_tokens: of what is kept; divided over the steps.
    """
    run = Run(method=name)
    run.metrics = load_metrics(metrics, run)
    out = Collected(run)
    files = dump_files(rollouts) if rollouts.is_dir() else []
    if not files:
        run.notes.append(f"{name}: no dumped rollouts in {rollouts} (trainer.rollout_data_dir), so curves only")
    row_shares = shares([_lines(path) for path in files], max_rollouts)
    token_shares = shares([path.stat().st_size // BYTES_PER_TOKEN for path in files], max_tokens)
    for path, rows, tokens in zip(files, row_shares, token_shares, strict=True):
        _read_step(path, out, rows, tokens)
    if out.without_contents:
        run.notes.append(
            f"{name}: {out.without_contents} answers without answer_contents (dumps of an older version): all of their "
            "tokens count as delimiters"
        )
    return out


def _read_step(path: Path, out: Collected, max_rows: int, max_tokens: int) -> None:
    counter, kept, step = StepCounter(), [], int(path.stem)
    for rollout in read_dump(path, out.run):
        regions = token_regions(rollout)
        # A null is no weight; numpy reads it as NaN.
        weights = np.array(rollout.weights, dtype=np.float32)
        counter.add(rollout, weights, regions)
        kept.append(compact(replace(rollout, step=step), weights, regions, out.vocabulary))
        if rollout.solutions:
            out.solutions.setdefault((step, rollout.group), rollout.solutions)
    if not kept:
        out.run.notes.append(f"{out.run.method}: rollouts/{path.name} holds no rollout")
        return
    out.without_contents += sum(bool(k.rollout.answer_span and not k.rollout.contents) for k in kept)
    out.sums[step] = counter.sums()
    out.total += len(kept)
    lengths = [len(k.ids) or len(k.rollout.output) // 4 for k in kept]
    groups, bonuses = [k.rollout.group for k in kept], [k.rollout.bonus for k in kept]
    out.kept += [kept[i] for i in choose(groups, bonuses, lengths, max_rows, max_tokens)]


def compact(rollout: Rollout, weights: np.ndarray, regions: np.ndarray, vocabulary: Vocabulary) -> Kept:
    """A rollout with arrays in place of its per-token columns."""
    ids = vocabulary.numbers(rollout.tokens)
    live = weights[(regions != MASKED) & np.isfinite(weights)] if len(weights) else weights
    mean = float(live.mean(dtype=np.float64)) if len(live) else None
    bare = replace(rollout, tokens=(), weights=(), advantages=(), output="" if rollout.tokens else rollout.output)
    stored = weights if len(weights) and not np.all(weights == 1.0) else weights[:0]
    return Kept(bare, ids, stored, mean, _base_advantage(rollout, weights, regions))


def _base_advantage(rollout: Rollout, weights: np.ndarray, regions: np.ndarray) -> tuple[float, float] | None:
    advantages = np.array(rollout.advantages, dtype=np.float64)
    if not len(advantages):
        return None
    divisor = weights.astype(np.float64) if len(weights) else np.ones(len(advantages))
    usable = np.isfinite(advantages) & np.isfinite(divisor) & (divisor != 0.0) & (regions != MASKED)
    base = advantages[usable] / divisor[usable]
    return (float(base.min()), float(base.max())) if len(base) else None


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b"")) + 1
