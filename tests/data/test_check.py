"""``verl-grail data check``."""

from __future__ import annotations

import copy

import pytest

from tests.data.samples import DEEPMATH
from verl_grail.cli import main
from verl_grail.data.build import Options, build
from verl_grail.data.check import check_rows, gold_reader, identities
from verl_grail.data.files import write
from verl_grail.data.sources import SOURCES

GOOD = build("deepmath", SOURCES["deepmath"], DEEPMATH[:6], Options()).train


def look(rows, **options):
    return check_rows(rows, lambda gold: "?" not in gold, **options)


def changed(**changes):
    rows = copy.deepcopy(GOOD)
    rows[2].update(changes)
    return rows


def test_a_good_file():
    report = look(GOOD, solution_key="expert_solution", evaluation={"another": "eval.parquet"})
    assert report.rows == 6 and not report.wrong and not report.doubtful
    assert len(report.lengths["prompt"]) == 6 and len(report.lengths["solution"]) == 12


@pytest.mark.parametrize(
    ("changes", "options", "kind", "what"),
    [
        ({"prompt": None}, {}, "wrong", "no prompt"),
        ({"prompt": [{"role": "system", "content": "x"}]}, {}, "wrong", "no user message"),
        ({"reward_model": None}, {}, "wrong", "no reward_model"),
        ({"reward_model": {"ground_truth": " "}}, {}, "wrong", "no reward_model.ground_truth"),
        ({"reward_model": {"ground_truth": "?"}}, {}, "doubtful", "cannot read"),
        ({"data_source": None}, {}, "wrong", "no data_source"),
        ({"expert_solution": []}, {"solution_key": "expert_solution"}, "doubtful", "no expert_solution: its"),
        ({"expert_solution": [" ", None]}, {"solution_key": "expert_solution"}, "doubtful", "no expert_solution: its"),
        ({}, {"solution_key": "teacher"}, "wrong", "no column teacher"),
        ({"prompt": GOOD[0]["prompt"], "extra_info": {}}, {}, "doubtful", "an earlier row"),
        ({}, {"evaluation": identities(GOOD[2:3], "math500.parquet")}, "wrong", "a problem of math500.parquet"),
        ({}, {"max_prompt": 50}, "doubtful", "over 50"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_found(changes, options, kind, what):
    report = look(changed(**changes), **options)
    matching = {w: r for w, r in getattr(report, kind).items() if what in w}
    assert matching and all(2 in r for r in matching.values())


def test_an_evaluation_problem_is_found_under_another_instruction():
    other = build("deepmath", SOURCES["deepmath"], DEEPMATH[:6], Options(instruction="think")).train
    for row in other:
        row["extra_info"] = None
    assert len(look(GOOD, evaluation=identities(other, "eval")).wrong["a problem of eval"]) == 6


def test_the_command(tmp_path, capsys):
    rows = changed(reward_model={"style": "rule", "ground_truth": r"\mathfrak{q} \diamond \spadesuit"})
    write(rows, tmp_path / "train.parquet")
    write(GOOD[:1], tmp_path / "eval.parquet")
    assert main(["data", "check", str(tmp_path / "train.parquet"), "--solution-key", "expert_solution"]) == 0
    said = capsys.readouterr().out
    assert "6 rows; 6 deepmath" in said and "cannot read" in said and "(rows 2)" in said and "ground_truth" in said
    command = ["data", "check", str(tmp_path / "train.parquet"), "--eval", str(tmp_path / "eval.parquet")]
    assert main(command) == 1 and "a problem of eval.parquet" in capsys.readouterr().out
    assert main(["data", "check", str(tmp_path / "none.parquet")]) == 2


def test_golds_are_read_as_the_grader_does():
    with gold_reader() as readable:
        assert readable("3") and readable(r"\frac{1}{2}") and readable("(1, 2)")
        assert not readable("") and not readable(r"\mathfrak{q} \diamond \spadesuit")
