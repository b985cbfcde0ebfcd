"""The columns of dumped rollouts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.plugin.rows import BYTES, make_rows
from verl_grail.config import GarConfig, GrailConfig, parse_section
from verl_grail.plugin.dumps import dump_columns, left_out_ranges
from verl_grail.plugin.weighting import plan_weighting, weigh_grail


@pytest.mark.parametrize(
    ("mask", "ranges"),
    [([1, 1], []), ([], []), ([0, 1, 1, 0, 0], [[0, 1], [3, 5]]), ([1, 0, 1], [[1, 2]]), ([0, 0], [[0, 2]])],
)
def test_ranges_that_a_mask_leaves_out(mask, ranges):
    assert left_out_ranges(mask) == ranges
    assert [i for i, m in enumerate(mask) if not m] == [i for a, b in ranges for i in range(a, b)]


def dumped(entries, gar=None, tool=()):
    rows = make_rows(entries)
    for row, a, b in tool:
        rows.response_mask[row, a:b] = 0
    grail = parse_section(GrailConfig, None)
    plan = plan_weighting(rows, grail, BYTES, SimpleNamespace(get=lambda *_: None))
    weighting = weigh_grail(rows, plan, grail, torch.rand(rows.response_mask.shape))
    update = SimpleNamespace(rows=rows, weighting=weighting, weighting_plan=plan, alignment=None)
    lengths = list(map(len, rows.responses))
    advantages = torch.nested.as_nested_tensor([torch.ones(n) for n in lengths], layout=torch.jagged)
    return rows, dump_columns(update, advantages, BYTES, gar)


def test_contents_and_masked_tokens_are_ranges_of_the_tokens():
    _, columns = dumped([{"key": "a_0_0", "text": r"so it is \boxed{42}.", "reward": 0.0}], tool=[(0, 1, 3)])
    row = columns["a_0_0"]
    start, end = row["answer_span"]
    ((a, b),) = row["answer_contents"]
    texts = row["tokens"]
    # content tokens are those that hold a byte of it, so the last one may hold the brace too
    assert start < a < b <= end and "".join(texts[start:end]).startswith(r" \boxed{42}")
    assert "".join(texts[a:b]).startswith("42") and "4" not in "".join(texts[start:a])
    assert row["masked"] == [[1, 3]]
    _, plain = dumped([{"key": "a_0_0", "text": "no box", "reward": 0.0}])
    assert plain["a_0_0"]["answer_contents"] is None and plain["a_0_0"]["masked"] is None
    assert "expert_solutions" not in plain["a_0_0"]


def test_expert_solutions_are_written_once_a_prompt_on_the_row_that_verl_writes_first():
    cells = {"expert_solution": ["first way", " ", "second way"]}
    keys = ["b_10_0", "b_2_0", "a_0_1", "a_0_0", "c_0_0"]
    entries = [{"key": key, "text": r"\boxed{1}", "reward": 0.0, "columns": cells} for key in keys]
    entries[4]["columns"] = {"expert_solution": None}
    entries.append({"key": "b_1_0", "text": "x", "reward": 0.0, "padding": True, "columns": cells})
    _, columns = dumped(entries, parse_section(GarConfig, None))
    carried = {key: row["expert_solutions"] for key, row in columns.items()}
    ways = ["first way", "second way"]
    assert carried == {"b_10_0": None, "b_2_0": ways, "a_0_1": None, "a_0_0": ways, "c_0_0": None}
    assert len({tuple(row) for row in columns.values()}) == 1  # verl writes the same columns for every row
