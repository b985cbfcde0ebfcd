"""`verl-grail eval` with vLLM in its own process, on a tiny random model: sampled, cut as by a kill, gone on with."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.evaluation.tiny import row, write_model
from verl_grail.data.files import write
from verl_grail.evaluation.store import read_samples

pytestmark = pytest.mark.e2e

LONGEST = 12
TWICE = """
import sys
from pathlib import Path
from verl_grail.cli import main
from verl_grail.evaluation import engines

made = []
class Kept(engines.Vllm):  # loading it is what takes long
    def close(self):
        pass

engines.Vllm = lambda *a: made[0] if made else made.append(Kept(*a)) or made[0]
first = main(sys.argv[1:])
path = Path("run/samples/tiny.jsonl")
path.with_name("whole.jsonl").write_text(path.read_text())
lines = path.read_text().splitlines(keepends=True)
path.write_text("".join(lines[:7]) + lines[7][:40])
Path("codes").write_text(f"{first} {main(sys.argv[1:])} {len(made)}")
"""


def test_a_run_and_its_resumption_are_the_same(tmp_path):
    model = write_model(tmp_path / "model")
    rows = [row(i, f"Compute {i} + {i}.", str(2 * i)) for i in range(4)]
    write([*rows, row(4, "Compute 1 + 1. " * 60, "2")], tmp_path / "tiny.parquet")
    options = ["--suite", "tiny.parquet", "--out", "run", "--samples", "3", "--max-tokens", str(LONGEST)]
    options += ["--top-k", "-1", "--temperature", "1.0", "--grader", "workers=1"]
    env = {**os.environ, "VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", TWICE, "eval", str(model), *options]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert (tmp_path / "codes").read_text() == "1 1 1", done.stderr[-4000:]

    whole = {s.key: s for s in read_samples(tmp_path / "run/samples/whole.jsonl")}
    assert set(whole) == {(f"p{p}", 0, s) for p in range(5) for s in range(3)}
    long = [s for s in whole.values() if s.id == "p4"]
    assert all(s.outcome == "failed" and s.error.startswith("prompt_too_long: a prompt of") for s in long)
    assert "context of 256" in done.stderr and "3 requests failed" in done.stderr
    fine = [s for s in whole.values() if s.id != "p4"]
    assert len({s.response for s in fine}) > 8  # seeds of their own
    assert all(s.tokens == LONGEST if s.finish == "length" else 0 < s.tokens <= LONGEST for s in fine)
    assert {s.finish for s in fine} <= {"length", "stop"} and any(s.finish == "length" for s in fine)
    summary = json.loads((tmp_path / "run/summary.json").read_text())["benchmarks"]["tiny"]
    assert summary["rates"]["truncated"] == sum(s.finish == "length" for s in fine) / 12 and summary["failed"] == 3
    assert "| tiny | 5 |" in done.stdout

    # the seed is the sample's, whatever is sampled beside it
    assert {s.key: s for s in read_samples(tmp_path / "run/samples/tiny.jsonl")} == whole

    # another model under the same path
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    command = [sys.executable, "-m", "verl_grail.cli", "eval", str(model), *options]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "weights: " in done.stderr
