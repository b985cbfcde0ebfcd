"""Read the folders of finished runs; trouble with a file becomes a note, never a crash."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_grail.report.rollouts import Rollout, finite, is_count, parse_rollout

# The baseline leads in tables and legends; methods not named here follow in alphabetical order.
METHOD_ORDER = ("grpo", "oar_g", "grail", "gar", "grail_gar")

# NaN in one of these is worth a note; in the hundred others that verl logs it would only be noise.
METRICS_READ = (
    "critic/score/",
    "critic/rewards/",
    "val-core/",
    "grail/",
    "gar/",
    "timing_s/step",
    "timing_s/old_log_prob",
)


class RunRootError(ValueError):
    """The folder given as run root does not exist or holds no run."""


@dataclass
class Run:
    """One method's finished run, as far as it could be read."""

    method: str
    """Name of the run's folder."""
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    """Logged step -> finite metrics of that step, in the order of the steps; step 0 is the initial validation."""
    rollouts: list[Rollout] = field(default_factory=list)
    """Rollouts of the last step that has a readable, non-empty dump."""
    problems: int | None = None
    """Number of validation problems, from ``val_n.json``."""
    samples: int | None = None
    """Samples per validation problem, from ``val_n.json``."""
    notes: list[str] = field(default_factory=list)
    """What was missing or broken, one sentence each, every one starting with the method's name."""

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of one metric, in the order of the steps, only where it was logged as a finite number."""
        return [(step, data[key]) for step, data in self.metrics.items() if key in data]

    def has(self, prefix: str) -> bool:
        """Whether any step logged a metric whose name starts with `prefix`."""
        return any(key.startswith(prefix) for data in self.metrics.values() for key in data)


def load_runs(run_root: Path) -> list[Run]:
    """All runs under `run_root`, baseline first.

    Raises:
        RunRootError: `run_root` is no folder, is itself a run, or has no sub-folder that looks like a run.
    """
    if not run_root.is_dir():
        raise RunRootError(f"run root {run_root} is not a folder; expected one with RUN_ROOT/<method>/metrics.jsonl")
    folders = [p for p in run_root.iterdir() if p.is_dir() and looks_like_run(p)]
    if not folders:
        mend = f"it is itself a run, pass {run_root.parent}" if looks_like_run(run_root) else "no run found in it"
        raise RunRootError(f"run root {run_root}: {mend}; expected RUN_ROOT/<method>/metrics.jsonl or .../rollouts/")
    return [load_run(folder) for folder in sorted(folders, key=_rank)]


def load_run(folder: Path) -> Run:
    """Read one run's folder."""
    run = Run(method=folder.name)
    run.metrics = load_metrics(folder / "metrics.jsonl", run)
    run.rollouts = _load_last_rollouts(folder / "rollouts", run)
    run.problems, run.samples = _load_val_n(folder / "val_n.json", run)
    return run


def looks_like_run(folder: Path) -> bool:
    """Whether a folder has a run's metrics or rollouts in it."""
    return (folder / "metrics.jsonl").is_file() or (folder / "rollouts").is_dir()


def _rank(folder: Path) -> tuple[int, str]:
    known = METHOD_ORDER.index(folder.name) if folder.name in METHOD_ORDER else len(METHOD_ORDER)
    return known, folder.name


def json_lines(path: Path, run: Run) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file, one a line; anything else is noted by line number and skipped.

    Line by line, since a dump may be larger than the memory. Opened as bytes: only a newline ends a line then, and a
    run that was killed may leave half a UTF-8 character, with which only that line should be lost.
    """
    bad: int | None = None  # a broken line is half-written only if nothing comes after it
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, start=1):
                if not raw.strip():
                    continue
                if bad is not None:
                    run.notes.append(f"{run.method}: {path.name} line {bad} is not valid JSON, skipped")
                    bad = None
                try:
                    value = json.loads(raw.decode("utf-8", errors="replace"))
                except (ValueError, RecursionError):
                    bad = number
                    continue
                if isinstance(value, dict):
                    yield value
                else:
                    run.notes.append(f"{run.method}: {path.name} line {number} is not a JSON object, skipped")
    except OSError as error:
        run.notes.append(f"{run.method}: {path.name} cannot be read ({error.strerror or error})")
    if bad is not None:
        run.notes.append(f"{run.method}: {path.name} line {bad} is half-written, skipped")


def load_metrics(path: Path, run: Run) -> dict[int, dict[str, float]]:
    """Step -> finite metrics of verl's file logger, in the order of the steps."""
    if not path.is_file():
        run.notes.append(f"{run.method}: metrics.jsonl is missing")
        return {}
    steps: dict[int, dict[str, float]] = {}
    not_finite: dict[str, list[int]] = {}
    malformed = 0
    for row in json_lines(path, run):
        step, data = row.get("step"), row.get("data")
        if not is_count(step) or not isinstance(data, dict):
            malformed += 1
            continue
        # setdefault: verl may log one step in several calls; a later value replaces an earlier one.
        kept = steps.setdefault(step, {})
        for key, value in data.items():
            number = finite(value)
            if number is not None:
                kept[key] = number
            # orjson, which verl's file logger uses, writes NaN and infinity as null.
            elif (value is None or isinstance(value, float)) and key.startswith(METRICS_READ):
                not_finite.setdefault(key, []).append(step)
    if malformed:
        run.notes.append(f'{run.method}: {malformed} line(s) of metrics.jsonl lack "step" or "data", skipped')
    for key, where in not_finite.items():
        shown = ", ".join(map(str, where[:5])) + (", ..." if len(where) > 5 else "")
        run.notes.append(f"{run.method}: {key} is not a number at {len(where)} step(s) ({shown}), left out there")
    if not steps:
        run.notes.append(f"{run.method}: metrics.jsonl holds no logged step")
    return dict(sorted(steps.items()))


def dump_files(folder: Path) -> list[Path]:
    """The files ``<step>.jsonl`` of a folder, in the order of the steps."""
    return sorted((p for p in folder.glob("*.jsonl") if p.stem.isdecimal()), key=lambda p: int(p.stem))


def read_dump(path: Path, run: Run) -> Iterator[Rollout]:
    """The rollouts of one file, one at a time; what had to be left out is noted when the file ends."""
    counts: Counter[str] = Counter()
    for row in json_lines(path, run):
        rollout, trouble = parse_rollout(row, step=int(path.stem))
        counts.update(trouble)
        if rollout is not None:
            yield rollout
    run.notes.extend(f"{run.method}: rollouts/{path.name}, {n} row(s): {what}" for what, n in counts.items())


def _load_last_rollouts(folder: Path, run: Run) -> list[Rollout]:
    if not folder.is_dir():
        run.notes.append(f"{run.method}: no rollouts folder, no rollouts shown")
        return []
    for path in reversed(dump_files(folder)):
        rollouts = list(read_dump(path, run))
        if rollouts:
            return rollouts
        run.notes.append(f"{run.method}: rollouts/{path.name} holds no rollout, looking at the dump before it")
    run.notes.append(f"{run.method}: no rollout dump could be used, no rollouts shown")
    return []


def _load_val_n(path: Path, run: Run) -> tuple[int | None, int | None]:
    if not path.is_file():
        run.notes.append(f"{run.method}: val_n.json is missing, so no number of problems and no interval")
        return None, None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        run.notes.append(f"{run.method}: val_n.json cannot be read ({error}), so no interval")
        return None, None
    counts = [value.get(key) if isinstance(value, dict) else None for key in ("problems", "samples")]
    problems, samples = (n if is_count(n) and n > 0 else None for n in counts)
    if problems is None:
        run.notes.append(f'{run.method}: val_n.json lacks a positive "problems", so no interval')
    return problems, samples
