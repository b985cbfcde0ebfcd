"""The presets are the papers' protocols; problems come out of files as they are asked."""

from __future__ import annotations

import pytest

from tests.evaluation.tiny import row, write_benchmark
from verl_grail.data.build import BOXED, THINK
from verl_grail.data.files import write
from verl_grail.data.sources import SOURCES
from verl_grail.evaluation import EvaluationError
from verl_grail.evaluation.problems import load_benchmark, suite_files
from verl_grail.evaluation.protocol import FILES, GAR, GRAIL, PROTOCOLS, Sampling, sample_seed
from verl_grail.evaluation.summary import metric_names


def test_grails_protocol_is_the_published_one():
    assert GRAIL.sampling == Sampling(samples=3, runs=1, temperature=0.6, top_p=0.95, top_k=20, max_tokens=8192)
    assert list(GRAIL.benchmarks) == ["math500", "aime2024", "amc2023", "minerva", "collegemath", "olympiadbench"]
    assert GRAIL.benchmarks["collegemath"] == GRAIL.benchmarks["olympiadbench"] == 200
    assert GRAIL.template == {"enable_thinking": False}
    assert metric_names(GRAIL) == ["accuracy", "pass@3", "majority@3"]


def test_gars_protocol_is_the_published_one_where_it_is():
    assert (GAR.sampling.samples, GAR.sampling.runs, GAR.pass_at) == (16, 10, (1, 16))
    assert list(GAR.benchmarks) == ["aime2026", "hmmt_feb2025", "hmmt_feb2026", "imo_answerbench"]
    assert any("temperature" in text for text in GAR.unpublished)
    assert metric_names(GAR) == ["accuracy", "pass@16", "majority@16"]


def test_every_benchmark_of_a_preset_can_be_prepared():
    for protocol in PROTOCOLS.values():
        for name in protocol.benchmarks:
            assert SOURCES[name].kind == "eval"


def test_options_change_a_protocol_and_wrong_ones_are_named():
    changed = GRAIL.changed(samples=8, temperature=1.0, pass_at=(1, 8), runs=None)
    assert changed.sampling == Sampling(samples=8, temperature=1.0, top_p=0.95, top_k=20, max_tokens=8192)
    assert changed.pass_at == (1, 8) and changed.benchmarks == GRAIL.benchmarks
    assert GRAIL.changed(samples=8).pass_at == (3,) and GRAIL.changed(samples=2).pass_at == (2,)
    for options, words in (
        ({"samples": 0}, "--samples 0 must be at least 1"),
        ({"max_tokens": 0}, "--max-tokens 0 must be"),
        ({"temperature": -1.0}, "--temperature"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"top_p": 0.0}, "--top-p"),
        ({"top_k": 0}, "--top-k"),
        ({"pass_at": (4,)}, "pass@4 needs at least 4 samples"),
    ):
        with pytest.raises(EvaluationError, match=words):
            GRAIL.changed(**options)


def test_seeds_are_those_of_the_sample_and_of_nothing_else():
    seeds = {sample_seed(0, p, r, s) for p in ("a", "b") for r in range(3) for s in range(20)}
    assert len(seeds) == 120 and all(0 <= s < 2**31 for s in seeds)
    assert sample_seed(0, "a", 1, 2) == sample_seed(0, "a", 1, 2) != sample_seed(1, "a", 1, 2)


def test_problems_of_a_file(tmp_path):
    path = write_benchmark(tmp_path / "tiny.parquet", ["0", "2", "4"])
    found = load_benchmark("tiny", path, 2, FILES.instruction)
    assert [(p.id, p.gold) for p in found.problems] == [("p0", "0"), ("p1", "2")] and found.as_is == 0
    assert found.problems[1].messages == [{"role": "user", "content": f"Compute 1 + 1. {BOXED}"}]
    think = load_benchmark("tiny", path, 2, "think")
    assert think.problems[1].messages[0]["content"] == f"Compute 1 + 1. {THINK}"
    assert think.digest != found.digest == load_benchmark("tiny", path, 2, "boxed").digest
    assert load_benchmark("tiny", path, 2, "Answer.").problems[0].messages[0]["content"] == "Compute 0 + 0. Answer."


def test_rows_without_a_bare_question_keep_their_prompt_and_are_counted(tmp_path):
    system = {"role": "system", "content": "Be brief."}
    bare = row(0, "Q.", "1")
    other = {**bare, "prompt": [system, {"role": "user", "content": "Q. In a box."}], "extra_info": {"index": "x"}}
    write([other, {**other, "extra_info": {"index": "x"}}], tmp_path / "f.parquet")
    found = load_benchmark("f", tmp_path / "f.parquet", 0, "boxed")
    assert found.as_is == 2 and found.problems[0].messages == other["prompt"]
    assert [p.id for p in found.problems] == ["x", "x#2"]


def test_files_that_cannot_be_evaluated_are_refused(tmp_path):
    write([{**row(0, "Q.", "1"), "prompt": []}], tmp_path / "empty.parquet")
    write([{**row(0, "Q.", "1"), "reward_model": {"ground_truth": None}}], tmp_path / "gold.parquet")
    for name, words in (
        ("none", "does not exist"),
        ("empty", "row 0 of .* has no prompt"),
        ("gold", "row 0 of .* has no reward_model.ground_truth"),
    ):
        with pytest.raises(EvaluationError, match=words):
            load_benchmark(name, tmp_path / f"{name}.parquet", 0, "")
    with pytest.raises(EvaluationError, match=r"no file for aime2024, amc2023(.|\n)*prepare.py amc2023 --out"):
        suite_files(GRAIL, tmp_path, ["aime2024", "amc2023"])
    with pytest.raises(EvaluationError, match="--benchmarks gsm8k: grail has math500"):
        suite_files(GRAIL, tmp_path, ["gsm8k"])
    (tmp_path / "collegemath.parquet").touch()
    assert suite_files(GRAIL, tmp_path, ["collegemath"]) == {"collegemath": (tmp_path / "collegemath.parquet", 200)}
