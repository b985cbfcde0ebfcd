"""The loop on an engine that answers from a table: records, resuming, failures, metrics."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from verl_grail.evaluation import EvaluationError
from verl_grail.evaluation.engines import FAILED, Completion, Request, failed
from verl_grail.evaluation.problems import Benchmark, Problem
from verl_grail.evaluation.protocol import Sampling
from verl_grail.evaluation.run import FAILURES_IN_ROW, evaluate
from verl_grail.evaluation.store import Sample, Store, read_samples
from verl_grail.evaluation.summary import (
    ProblemLine,
    ProblemRun,
    average,
    problem_lines,
    read_lines,
    scores,
    summarise,
)
from verl_grail.grading.grade import Grader

GRADER = Grader(workers=1)
SAMPLING = Sampling(samples=2, runs=2, temperature=1.0, max_tokens=9)


class Table:
    """Answers request by request from a function, and remembers what it was asked."""

    kind = "table"

    def __init__(self, answer):
        self.answer, self.asked, self.closed = answer, [], False

    def generate(self, requests, sampling):
        for request in requests:
            self.asked.append(request)
            found = self.answer(request)
            yield found if isinstance(found, Completion) else Completion(request, found, len(found.split()), "stop")

    def close(self):
        self.closed = True


def benchmark(name="sums", golds=("0", "2", "4")):
    problems = [Problem(f"p{i}", [{"role": "user", "content": f"{i} + {i}"}], g) for i, g in enumerate(golds)]
    return Benchmark(name, problems)


def open_store(folder, settings=None, of=None):
    of = of or benchmark()
    return Store(folder, settings or {"sampling": {"samples": 2}, "seed": 0}, {of.name: of.digest}, {"method": "m"})


def right(request: Request) -> str:
    return rf"so \boxed{{{2 * int(request.problem[1:])}}}"


def test_everything_is_sampled_once_with_seeds_of_its_own_and_kept(tmp_path):
    engine, store, seen = Table(right), open_store(tmp_path / "run"), []
    found = evaluate([benchmark()], SAMPLING, 7, lambda: engine, GRADER, store, lambda *a: seen.append(a[1].key))
    keys = {(f"p{p}", r, s) for p in range(3) for r in range(2) for s in range(2)}
    assert set(found["sums"]) == keys == set(seen) and len(seen) == 12
    assert len({r.seed for r in engine.asked}) == 12 and engine.closed
    records = list(read_samples(tmp_path / "run/samples/sums.jsonl"))
    assert all((s.outcome, s.tokens, s.finish, s.error) == ("correct", 2, "stop", "") for s in records)
    assert records[0].response.startswith("so") and records[0].answer in ("0", "2", "4")


def test_a_run_that_was_stopped_goes_on_with_what_is_missing(tmp_path):
    whole = open_store(tmp_path / "whole")
    evaluate([benchmark()], SAMPLING, 7, lambda: Table(right), GRADER, whole)

    class Stopped(Exception):
        pass

    def stop_after_five(name, sample, tally):
        if sum(tally.done.values()) == 5:
            raise Stopped

    store = open_store(tmp_path / "run")
    with pytest.raises(Stopped):
        evaluate([benchmark()], SAMPLING, 7, lambda: Table(right), GRADER, store, stop_after_five)
    store.close()
    path = tmp_path / "run/samples/sums.jsonl"
    with path.open("a") as file:  # and a line that was not written to its end
        file.write('{"id": "p2", "run": 1, "sam')
    engine, store = Table(right), open_store(tmp_path / "run")
    found = evaluate([benchmark()], SAMPLING, 7, lambda: engine, GRADER, store)
    assert len(engine.asked) == 7 and len(found["sums"]) == 12
    assert len(path.read_text().splitlines()) == 12

    def by_key(samples):
        return sorted(samples, key=lambda s: s.key)

    assert by_key(read_samples(path)) == by_key(read_samples(tmp_path / "whole/samples/sums.jsonl"))

    def no_engine():
        raise AssertionError("an engine is made although nothing is missing")

    assert evaluate([benchmark()], SAMPLING, 7, no_engine, GRADER, store) == found


def test_texts_are_not_kept_in_memory_and_empty_ones_are_known_all_the_same(tmp_path):
    texts = [" " * 9 + "x" * 5000, " \n ", "", r"\boxed{0}"]

    def answer(request):
        return texts[2 * request.run + request.sample]

    seen = []
    store = open_store(tmp_path)
    found = evaluate([benchmark()], SAMPLING, 0, lambda: Table(answer), GRADER, store, lambda *a: seen.append(a[1]))
    for samples in (found["sums"].values(), store.load("sums").values(), seen):
        assert max(len(s.response) for s in samples) == 1
        assert summarise([], samples, [])["rates"]["empty"] == 0.5
    assert {s.response for s in read_samples(tmp_path / "samples/sums.jsonl")} == set(texts)


@pytest.mark.parametrize("length", [1, 100, 70_000, 200_000])
def test_half_a_line_is_cut_however_long(tmp_path, length):
    (tmp_path / "samples").mkdir()
    path = tmp_path / "samples/sums.jsonl"
    store = open_store(tmp_path)
    for before in (b"", b"{}\n", b"{}\n" * 30_000):
        path.write_bytes(before + b"x" * length)
        store.append("sums", Sample("p0", 0, 0, "wrong", None, "", 1, "stop", "", ""))
        store._files.popitem()[1].close()
        assert path.read_bytes().startswith(before + b'{"id": "p0"')


def test_other_settings_are_refused_by_name(tmp_path):
    settings = {"sampling": {"samples": 2, "temperature": 0.6}, "seed": 0}
    store = open_store(tmp_path, settings)
    with pytest.raises(EvaluationError, match="in use by another evaluation"):
        open_store(tmp_path, settings)
    store.close()
    changed = {"sampling": {"samples": 2, "temperature": 1.0}, "seed": 0}
    open_store(tmp_path, changed).close()  # nothing was sampled yet
    store = open_store(tmp_path, settings)
    evaluate([benchmark()], SAMPLING, 0, lambda: Table(right), GRADER, store)
    store.close()
    with pytest.raises(EvaluationError, match=r"sampling\.temperature: 0\.6, now 1\.0\): take the same ones"):
        open_store(tmp_path, changed)
    with pytest.raises(EvaluationError, match="the problems of sums are others"):
        open_store(tmp_path, settings, benchmark(golds=("0", "2", "5")))
    open_store(tmp_path, settings, benchmark("more")).close()  # another benchmark may come in
    assert set(json.loads((tmp_path / "run.json").read_text())["benchmarks"]) == {"sums", "more"}
    path = tmp_path / "samples/sums.jsonl"
    path.write_text(path.read_text().replace('"protocol": "', '"protocol": "x', 1))
    with pytest.raises(EvaluationError, match="line 1 was made with other settings"):
        open_store(tmp_path, settings).load("sums")
    path.write_text("nonsense\n")
    with pytest.raises(EvaluationError, match="line 1 is no record"):
        list(read_samples(path))


def test_one_failure_is_recorded_and_tried_again_the_next_time(tmp_path):
    def answer(request):
        return (
            failed(request, TimeoutError("too\nslow"))
            if request.problem == "p1" and request.run == 0
            else right(request)
        )

    store = open_store(tmp_path)
    found = evaluate([benchmark()], SAMPLING, 0, lambda: Table(answer), GRADER, store)["sums"]
    bad = [s for s in found.values() if s.outcome == FAILED]
    assert {s.key for s in bad} == {("p1", 0, 0), ("p1", 0, 1)} and bad[0].error == "TimeoutError: too slow"
    lines = problem_lines(benchmark().problems, found, 2, GRADER)
    assert lines[1].runs == [ProblemRun(0, 0, None), ProblemRun(2, 2, 1.0, "2")]
    summary = summarise(lines, found.values(), ["accuracy"])
    assert summary["failed"] == 2 and summary["metrics"]["accuracy"]["problems"] == 2  # p1 has no score in every run
    engine = Table(right)
    again = evaluate([benchmark()], SAMPLING, 0, lambda: engine, GRADER, store)["sums"]
    assert len(engine.asked) == 2 and all(s.outcome == "correct" for s in again.values())


def test_many_failures_in_a_row_stop_the_run_and_keep_what_there_is(tmp_path):
    many = benchmark(golds=["0"] * 60)
    engine = Table(lambda r: right(r) if r.problem == "p0" else failed(r, "APIConnectionError: no"))
    store = open_store(tmp_path, of=many)
    with pytest.raises(EvaluationError, match=rf"{FAILURES_IN_ROW} requests failed .* APIConnectionError: no"):
        evaluate([many], SAMPLING, 0, lambda: engine, GRADER, store)
    kept = list(read_samples(tmp_path / "samples/sums.jsonl"))
    assert sum(s.outcome != FAILED for s in kept) == 2 and len(kept) == 2 + FAILURES_IN_ROW and engine.closed


@pytest.mark.parametrize("own", [True, False])
def test_failures_that_stay_do_not_stop_the_next_start_nor_take_its_summary(tmp_path, own):
    """40 problems that never fit, between others: recorded; and then alone, as a resume sends them."""
    most = benchmark(golds=[str(2 * i) for i in range(60)])

    def answer(request):
        return right(request) if int(request.problem[1:]) % 3 == 0 else failed(request, "prompt_too_long: no", own)

    store = open_store(tmp_path, of=most)
    found = evaluate([most], SAMPLING, 0, lambda: Table(answer), GRADER, store)["sums"]
    assert sum(s.outcome == FAILED for s in found.values()) == 160
    summary = tmp_path / "summary.json"
    summary.write_text("{}")
    store.close()
    engine, store = Table(answer), open_store(tmp_path, of=most)
    assert summary.is_file()  # opening the folder says nothing new
    again = evaluate([most], SAMPLING, 0, lambda: engine, GRADER, store)["sums"]
    assert len(engine.asked) == 160 > FAILURES_IN_ROW and again == found and summary.is_file()
    evaluate([most], SAMPLING, 0, lambda: Table(right), GRADER, store)
    assert not summary.exists()  # the samples are newer


def test_a_failure_of_a_requests_own_counts_for_nothing_in_a_row(tmp_path):
    many = benchmark(golds=["0"] * 60)
    engine = Table(lambda r: failed(r, "prompt_too_long", own=True))
    found = evaluate([many], SAMPLING, 0, lambda: engine, GRADER, open_store(tmp_path / "own", of=many))
    assert len(found["sums"]) == 240
    # nor does it hide that the server is gone
    mixed = Table(lambda r: failed(r, "down", own=r.sample == 1))
    with pytest.raises(EvaluationError, match=f"{FAILURES_IN_ROW} requests failed .* down"):
        evaluate([many], SAMPLING, 0, lambda: mixed, GRADER, open_store(tmp_path / "mixed", of=many))
    assert len(mixed.asked) < 3 * FAILURES_IN_ROW


ANSWERS = {
    "right": (r"\boxed{0.5}", "stop"),
    "wrong": (r"\boxed{7}", "stop"),
    "none": ("I give up", "stop"),
    "empty": ("", "stop"),
    "cut": (r"half of \boxed{1}, is \boxed{\frac{1}{2}", "length"),  # the last complete box is graded: 1
}


def test_metrics_and_rates_by_hand(tmp_path):
    order = ["right", "wrong", "none", "empty", "cut", "right"]
    sampling = Sampling(samples=6, temperature=1.0, max_tokens=9)
    of = Benchmark("halves", [Problem("p0", [], r"\frac12"), Problem("p1", [], float("nan"))])

    def answer(request):
        text, finish = ANSWERS[order[request.sample]]
        return Completion(request, text, None if request.sample == 1 else 10 * request.sample, finish)

    store = Store(tmp_path, {}, {"halves": of.digest}, {})
    found = evaluate([of], sampling, 0, lambda: Table(answer), GRADER, store)["halves"]
    lines = problem_lines(of.problems, found, 1, GRADER)
    names = ["accuracy", "pass@3", "majority@6"]
    got = summarise(lines, found.values(), names)
    assert got["outcomes"] == {"correct": 2, "no_answer": 2, "unparseable_gold": 6, "wrong": 2}
    assert got["ungraded_problems"] == 1 and got["problems"] == 2 and got["samples"] == 12
    values = {n: got["metrics"][n]["value"] for n in names}
    # 2 of 6 right; pass@3 = 1 - C(4,3)/C(6,3); votes: right 2, 7 and 1 one each
    assert values == {"accuracy": pytest.approx(1 / 3), "pass@3": pytest.approx(1 - 4 / 20), "majority@6": 1.0}
    assert got["rates"] == {"truncated": 2 / 12, "no_answer": 2 / 12, "empty": 2 / 12}
    assert got["tokens"] == {"mean": 28.0, "median": 30.0, "max": 50, "unknown": 2}
    assert got["metrics"]["accuracy"]["low"] is None  # one problem


def lines_of(counts, n=4):
    """counts: (runs, problems) of right samples out of n."""
    return [
        ProblemLine(f"p{i}", "1", [ProblemRun(n, c, float(2 * c > n)) for c in column])
        for i, column in enumerate(np.array(counts).T.tolist())
    ]


def test_scores_runs_and_averages():
    lines = lines_of([[0, 2, 4], [1, 1, 4]])
    assert scores(lines, "accuracy").tolist() == [[0, 0.5, 1], [0.25, 0.25, 1]]
    assert scores(lines, "pass@2").tolist() == [[0, 1 - 1 / 6, 1], [0.5, 0.5, 1]]
    assert scores(lines, "majority@4").tolist() == scores(lines, "majority").tolist() == [[0, 0, 1], [0, 0, 1]]
    assert np.isnan(scores(lines, "pass@5")).all()
    assert np.isnan(scores(lines, "majority@3")).all() and np.isnan(scores(lines, "majority@5")).all()
    lines[2].runs[1] = ProblemRun(3, 3, 1.0)  # a sample that failed: a vote of three is no vote of four
    assert np.isnan(scores(lines, "majority@4")).tolist() == [[False] * 3, [False, False, True]]
    assert scores(lines, "majority")[1, 2] == 1
    lines[2].runs[1] = ProblemRun(4, 4, 1.0)
    found = summarise(lines, [], ["accuracy"])["metrics"]["accuracy"]
    assert found["runs"] == [0.5, 0.5] and found["spread"] == 0 and found["value"] == 0.5 and found["problems"] == 3
    assert found["low"] < 0.5 < found["high"]
    assert average({"a": lines, "b": lines_of([[4, 4], [4, 4]])}, ["accuracy"])["accuracy"]["value"] == 0.75
    for name in ("pass", "pass@0", "pass@x", "accuracy@3", "mean"):
        with pytest.raises(EvaluationError, match="is not accuracy, pass@k or majority"):
            scores(lines, name)


def test_nothing_is_none_and_not_a_number():
    got = summarise([], [], ["accuracy"])
    assert got["metrics"]["accuracy"]["value"] is None and got["rates"]["truncated"] is None
    assert "NaN" not in json.dumps(got) and not any(isinstance(v, float) and math.isnan(v) for v in got.values())


def test_lines_that_cannot_be_read_are_named(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(EvaluationError, match="cannot be read"):
        read_lines(tmp_path / "x.jsonl")
