"""One row per method: accuracy before and after, the signals' summary, and what they cost."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from verl_grail.report.runs import Run
from verl_grail.report.stats import last_quarter_mean, wilson_interval

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

MISSING = "–"  # noqa: RUF001 (an en dash is meant)

CAPTION = (
    "Before is the validation at step 0, after is the last one. In brackets: 95 % Wilson interval, with the number of "
    "problems as the number of trials even where several samples were drawn per problem, since samples of one problem "
    "are not independent; it covers the choice of problems, not the luck of the training run. Cosine, answer found and "
    "weight sd are means over the last quarter of the training steps. Signal share is the log-probability pass, on "
    "which the signals ride, over the whole step: median over the steps after the first."
)


def train_steps(run: Run) -> list[int]:
    """The logged steps that trained (step 0 holds the initial validation only)."""
    return [step for step in run.metrics if step > 0]


def accuracy_series(run: Run) -> list[tuple[int, float]]:
    """(step, accuracy); with several validation sets the plain mean over them, at the steps that have all of them."""
    keys = accuracy_keys(run)
    complete = ((step, [data[k] for k in keys]) for step, data in run.metrics.items() if all(k in data for k in keys))
    return [(step, sum(values) / len(values)) for step, values in complete] if keys else []


def accuracy_keys(run: Run) -> list[str]:
    """verl's names of this run's accuracies: the data source and the N of mean@N vary."""
    keys = {key for data in run.metrics.values() for key in data}
    return sorted(key for key in keys if key.startswith("val-core/") and "/acc/mean@" in key)


def signal_share(run: Run) -> float | None:
    """Median of log-prob pass over step time; the first step is left out, since it pays for warm-up."""
    step_time = dict(run.series("timing_s/step"))
    log_prob = dict(run.series("timing_s/old_log_prob"))
    shares = [log_prob[s] / step_time[s] for s in train_steps(run)[1:] if s in log_prob and step_time.get(s, 0.0) > 0]
    return median(shares) if shares else None


def summary_row(run: Run) -> dict[str, Any]:
    """The table's row of one run; None where there is nothing to report."""
    accuracy = accuracy_series(run)
    after = next((value for step, value in reversed(accuracy) if step > 0), None)
    # The mean over several validation sets is no proportion of `problems`, so it gets no interval.
    is_share = after is not None and 0.0 <= after <= 1.0 and len(accuracy_keys(run)) == 1
    low, high = wilson_interval(after, run.problems) if is_share and run.problems else (None, None)
    steps = train_steps(run)

    def recent(key: str) -> float | None:
        return last_quarter_mean(run.series(key), steps)

    return {
        "method": run.method,
        "steps": max(steps, default=None),
        "accuracy_before": dict(accuracy).get(0),
        "accuracy_after": after,
        "ci_low": low,
        "ci_high": high,
        "problems": run.problems,
        "samples": run.samples,
        "cosine": recent("gar/cosine_mean"),
        "answer_found_rate": recent("grail/answer_found_rate"),
        "weight_std": recent("grail/weight_std"),
        "signal_share": signal_share(run),
    }


def summary_notes(run: Run) -> list[str]:
    """What a reader of the row must know and cannot see in it."""
    notes = []
    keys, accuracy, steps = accuracy_keys(run), accuracy_series(run), train_steps(run)
    if len(keys) > 1:
        notes.append(f"{run.method}: accuracy is the plain mean of {', '.join(keys)}, so it gets no interval")
    if run.metrics and not accuracy:
        notes.append(f"{run.method}: no validation accuracy (val-core/<source>/acc/mean@N) was logged")
    elif accuracy and accuracy[0][0] != 0:
        notes.append(f"{run.method}: no validation at step 0, so no accuracy before")
    if accuracy and steps and accuracy[-1][0] != steps[-1]:
        notes.append(f"{run.method}: last validation at step {accuracy[-1][0]}, last step is {steps[-1]}")
    if not run.series("critic/rewards/mean") and run.series("critic/score/mean"):
        notes.append(f"{run.method}: critic/rewards/mean was not logged, reward.png shows critic/score/mean")
    if any(not 0.0 <= value <= 1.0 for _, value in accuracy):
        notes.append(f"{run.method}: an accuracy lies outside 0..1; no interval where it does")
    return notes


def summary_table(runs: list[Run]) -> pd.DataFrame:
    """One row per run, raw numbers; missing values are NaN (or pandas' NA in the whole-number columns)."""
    import pandas as pd

    table = pd.DataFrame([summary_row(run) for run in runs])
    counts = ["steps", "problems", "samples"]
    shares = [column for column in table.columns if column not in ("method", *counts)]
    return table.astype({**dict.fromkeys(counts, "Int64"), **dict.fromkeys(shares, "float64")})


def display_table(table: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table as a reader sees it, the same in the terminal and on the page."""
    headings = ["method", "steps", "acc. before", "acc. after", "problems", "cosine", "answer found", "weight sd"]
    rows = []
    for row in table.to_dict("records"):
        after = _fixed(row["accuracy_after"])
        if not _missing(row["ci_low"]):
            after += f" [{_fixed(row['ci_low'])}, {_fixed(row['ci_high'])}]"
        problems = _count(row["problems"])
        if not _missing(row["samples"]) and row["samples"] > 1:
            problems += f"×{row['samples']}"  # noqa: RUF001
        rows.append(
            [
                str(row["method"]),
                _count(row["steps"]),
                _fixed(row["accuracy_before"]),
                after,
                problems,
                _fixed(row["cosine"]),
                _percent(row["answer_found_rate"]),
                _fixed(row["weight_std"]),
                _percent(row["signal_share"]),
            ]
        )
    return [*headings, "signal share"], rows


def print_table(table: pd.DataFrame, console: Console | None = None, title: str | None = None) -> None:
    """Print the table with rich."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    headings, rows = display_table(table)
    # Few lines and little padding, so that the interval stays whole in 80 columns; what is narrower still folds.
    view = Table(title=Text(title) if title else None, box=SIMPLE_HEAD, padding=0, show_edge=False)
    for heading in headings:
        whole = heading in ("method", "acc. after", "problems")
        justify = "left" if heading == "method" else "right"
        view.add_column(heading, justify=justify, overflow="fold", no_wrap=whole)
    for row in rows:
        # Text, not str: rich would read the interval's square brackets as markup.
        view.add_row(*map(Text, row))
    (console or Console()).print(view)


def _missing(value: Any) -> bool:
    import pandas as pd

    return bool(pd.isna(value))


def _fixed(value: Any) -> str:
    return MISSING if _missing(value) else f"{value:.3f}"


def _percent(value: Any) -> str:
    return MISSING if _missing(value) else f"{100 * value:.1f}%"


def _count(value: Any) -> str:
    return MISSING if _missing(value) else str(int(value))
