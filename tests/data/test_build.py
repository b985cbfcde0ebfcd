"""Data sets of the papers in verl's schema."""

from __future__ import annotations

import importlib.util
import json
import random

import pyarrow.parquet as pq
import pytest

from tests.data.samples import DEEPMATH, NUMINA, OLYMPIAD, PLAIN
from tests.recipes.scripts import ROOT
from verl_grail.data.build import BOXED, Options, build, identity, normalised, place
from verl_grail.data.files import DataError, hub_rows, read_rows
from verl_grail.data.sources import SOURCES


def made(name, rows, **options):
    return build(name, SOURCES[name], rows, Options(**options))


def test_a_row_of_deepmath():
    (row,) = made("deepmath", DEEPMATH[:1]).train
    assert row == {
        "data_source": "deepmath",
        "prompt": [
            {
                "role": "user",
                "content": "Compute the derivative of $x^{2}$ at $x = 1$. Please reason step by step, and put your "
                "final answer within \\boxed{}.",
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "expert_solution": [DEEPMATH[0]["r1_solution_1"], DEEPMATH[0]["r1_solution_3"]],
        "extra_info": {
            "index": identity(DEEPMATH[0]["question"]),
            "problem": DEEPMATH[0]["question"],
            "difficulty": "2.0",
            "topic": "Mathematics -> Calculus",
        },
    }


def test_the_instruction_has_a_backslash_and_no_backspace():
    """``\\b`` in a plain string is a backspace, the bug of the published code."""
    assert "\\boxed{}" in BOXED and "\b" not in BOXED


def test_numina_takes_the_last_box_and_drops_what_has_none():
    built = made("numina", NUMINA)
    golds = {r["extra_info"]["problem"]: r["reward_model"]["ground_truth"] for r in built.train}
    assert golds["Solve $2x = 8$."] == "4" and golds["Solve $x + 2 = 5$."] == "3"
    assert built.dropped == {"no answer": 1, "duplicate": 1} and len(built.train) == 3
    only = made("numina", NUMINA, include={"source": ["amc_aime"]})
    assert len(only.train) == 1 and only.dropped["not asked for"] == 2


def test_golds_that_the_grader_cannot_read_can_be_dropped():
    built = build("numina", SOURCES["numina"], NUMINA, Options(), readable=lambda gold: "diamond" not in gold)
    assert built.dropped["answer cannot be read"] == 1 and len(built.train) == 2


@pytest.mark.parametrize("name", PLAIN)
def test_evaluation_sets(name):
    (row,) = made(name, [PLAIN[name]]).train
    assert row["prompt"][0]["content"].startswith("One plus one? Please reason")
    assert float(row["reward_model"]["ground_truth"]) == 2 and row["data_source"] == name


def test_a_gold_of_several_values():
    rows = made("olympiadbench", OLYMPIAD).train
    assert sorted(r["reward_model"]["ground_truth"] for r in rows) == ["1, 2", "7"]


def test_every_source_has_been_read():
    assert set(SOURCES) == {"deepmath", "numina", "olympiadbench", *PLAIN}


def test_split_and_limit_are_functions_of_the_problem():
    shuffled = random.Random(0).sample(DEEPMATH, len(DEEPMATH))
    a, b = (made("deepmath", rows, validation=0.25, limit=20) for rows in (DEEPMATH, shuffled))
    assert a == b and len(a.train) == 20 and a.dropped["over the limit"] == 40 - len(a.validation) - 20
    assert 3 <= len(a.validation) <= 18
    # another subset of the data puts none of them on the other side
    half = made("deepmath", DEEPMATH[::2], validation=0.25)
    names = lambda rows: {r["extra_info"]["index"] for r in rows}  # noqa: E731
    assert names(half.validation) <= names(a.validation)
    assert all(place(n) < 0.25 for n in names(a.validation))


def test_what_typesetting_varies_does_not_make_another_problem():
    same = [r"Solve $x + 2 = 5$.", r"solve \left $x+2=5$", r"Solve  $x\,+\,2 = 5$ ."]
    assert len({normalised(t) for t in same}) == 1
    different = ["Solve $x + 2 = 5$.", "Solve $x - 2 = 5$.", "Solve $x + 2 = 6$.", "1.5% of 20", "15% of 20", "$5!+1$"]
    different += ["$5+1$", "$|x|=1$", "$x=1$", "$2(x+1)$", "$2x+1$", "$(a+b)c$", "$a+bc$", "\u6c42$x>0$", "\u8bc1$x>0$"]
    assert len({normalised(t) for t in different}) == len(different)


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="row 0 of deepmath has no column 'final_answer'"):
        made("deepmath", [{"question": "?"}])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        list(read_rows(tmp_path / "none.parquet"))
    for name, text, message in (
        ("a.csv", "", "only .parquet"),
        ("a.json", "{", "cannot"),
        ("a.parquet", "x", "cannot"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=message):
            list(read_rows(tmp_path / name))


def test_without_a_hub_the_error_says_what_to_do(monkeypatch):
    import datasets

    def refuse(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(DataError, match=r"zwhe99/DeepMath-103K cannot be loaded .* --file"):
        list(hub_rows(SOURCES["deepmath"]))


def prepare():
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "scripts/data/prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def test_the_command_writes_what_verl_reads(tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, DEEPMATH)))
    command = [
        "deepmath",
        "--file",
        str(tmp_path / "rows.jsonl"),
        "--out",
        str(tmp_path / "out"),
        "--validation",
        "0.25",
    ]
    assert prepare()(command) == 0
    said = capsys.readouterr().out
    train = pq.read_table(tmp_path / "out/deepmath.parquet").to_pylist()
    validation = pq.read_table(tmp_path / "out/deepmath_val.parquet").to_pylist()
    assert len(train) + len(validation) == 40 and f"{len(train)} problems" in said and "dropped: none" in said
    assert set(train[0]) == {"data_source", "prompt", "ability", "reward_model", "expert_solution", "extra_info"}
    assert prepare()(["deepmath", "--file", str(tmp_path / "nothing.jsonl"), "--out", str(tmp_path)]) == 1
