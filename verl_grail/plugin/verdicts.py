"""What the reward function said about the rows of a step: counted by name, and dropped where there is no verdict.

A reward function that names its results (``outcome`` and ``graded`` in its dictionary, as those of reward_fns do) gets
them counted under ``reward/``. Rows without a verdict, because their gold cannot be read, are no rewards of 0: they are
kept from the statistics of base estimators, from the loss and from verl's reward metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transfer_queue import KVBatchMeta

from verl_grail.grading.compare import Outcome
from verl_grail.plugin.step import StepRows


def verdict_metrics(rows: StepRows) -> dict[str, float]:
    """Counts by outcome, and the share of graded and of correct ones; empty if the reward function names none."""
    infos = [rows.info[r] for r in rows.sessions.final_rows if not rows.padding[r]]
    named = [str(i["outcome"]) for i in infos if i.get("outcome")]
    if not named:
        return {}
    metrics = {f"reward/rows/{o.value}": float(named.count(o.value)) for o in Outcome}
    graded = [n for n in named if n != Outcome.UNPARSEABLE_GOLD.value]
    metrics["reward/graded_rate"] = len(graded) / len(named)
    metrics["reward/correct_rate"] = graded.count(Outcome.CORRECT.value) / len(graded) if graded else 0.0
    return metrics


@contextmanager
def left_out_of_metrics(batch: KVBatchMeta, keys: set[str]) -> Iterator[None]:
    """Rows of these keys pass for padding, which verl leaves out of its data metrics."""
    marked = [tag for key, tag in zip(batch.keys, batch.tags, strict=True) if key in keys]
    before = [tag.get("is_padding", False) for tag in marked]
    for tag in marked:
        tag["is_padding"] = True
    try:
        yield
    finally:
        for tag, value in zip(marked, before, strict=True):
            tag["is_padding"] = value
