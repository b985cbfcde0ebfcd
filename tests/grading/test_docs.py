"""docs/rewards.md says what happens: its table of what stays wrong, its settings and its outcomes."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from verl_grail.core.answers import AnswerPolicy
from verl_grail.grading.compare import Outcome
from verl_grail.grading.grade import Grader
from verl_grail.grading.policy import GradingPolicy

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text()
GRADER = Grader(seconds=2.0, workers=1)


def wrong_rows() -> list[tuple[str, str, str]]:
    table = PAGE.split("### What stays wrong")[1].split("\n## ")[0]
    return re.findall(r"^\| `(.+?)` \| `(.+?)` \| (\w+) \|", table, re.M)


@pytest.mark.parametrize(("gold", "pred", "verdict"), wrong_rows())
def test_what_stays_wrong_is_as_the_page_says(gold, pred, verdict):
    assert GRADER.grade(f"\\boxed{{{pred}}}", gold).outcome.value == verdict


def test_the_page_names_every_setting_and_outcome():
    spans = set(re.findall(r"`([^`\n]+)`", PAGE))
    names = {f.name for cls in (AnswerPolicy, GradingPolicy) for f in fields(cls)} | {"seconds", "memory_mb", "workers"}
    missing = {n for n in names if n not in spans and not any(s.startswith(f"{n}=") for s in spans)}
    assert not missing
    assert {o.value for o in Outcome} <= spans
    assert len(wrong_rows()) > 20
