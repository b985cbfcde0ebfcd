"""From a run's folder to its page and its pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from verl_grail.report.run.collect import collect, find_inputs

MAX_ROLLOUTS = 10_000
"""Rollouts that a page keeps."""
MAX_TOKENS = 6_000_000
"""Tokens that a page keeps: with long responses this is reached before `MAX_ROLLOUTS`."""


@dataclass(frozen=True)
class RunReport:
    """What was written."""

    page: Path
    pictures: list[Path]
    kept: int
    """Rollouts on the page."""
    total: int
    """Rollouts read."""
    notes: list[str]
    """What was missing, broken or left out."""


def build_report(
    run_dir: Path,
    out: Path | None = None,
    png: Path | None = None,
    *,
    metrics: Path | None = None,
    rollouts: Path | None = None,
    title: str | None = None,
    max_rollouts: int = MAX_ROLLOUTS,
    max_tokens: int = MAX_TOKENS,
) -> RunReport:
    """Write the page, and the pictures where `png` names a folder.

    Args:
        run_dir: folder of one run.
        out: the page; by default ``report.html`` in `run_dir`.
        metrics, rollouts: verl's file log and ``trainer.rollout_data_dir``, where they are not ``metrics.jsonl`` and
            ``rollouts`` in `run_dir`.
        max_rollouts, max_tokens: limits of what the page keeps; the charts are of all rollouts.

    Raises:
        RunRootError: `run_dir` holds no run, or several.
        ModuleNotFoundError: the extra ``eval`` is not installed.
    """
    _require_eval()
    from verl_grail.report.run.figures import write_figures
    from verl_grail.report.run.page import run_page
    from verl_grail.report.run.payload import payload

    name = run_dir.resolve().name
    files = find_inputs(run_dir, metrics, rollouts)
    collected = collect(name, *files, max_rollouts, max_tokens)
    pictures: list[Path] = []
    if png is not None:
        pictures, missing = write_figures(collected, png)
        collected.run.notes += missing
    page = out or run_dir / "report.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(run_page(title or f"Run {name}", _subtitle(collected), payload(collected)), encoding="utf-8")
    return RunReport(page, pictures, len(collected.kept), collected.total, collected.run.notes)


def _subtitle(collected) -> str:
    steps = sorted({*collected.run.metrics, *collected.sums} - {0})
    said = [f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"] if steps else []
    if collected.total:
        said.append(f"{collected.total:,} rollouts of {len(collected.sums)} dumped steps")
    return ", ".join(said)


def _require_eval() -> None:
    """Fail before any work is done, and with the mend."""
    for name in ("numpy", "matplotlib", "scipy"):
        try:
            __import__(name)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"the report needs {name}: pip install 'verl-grail[eval]'") from error
