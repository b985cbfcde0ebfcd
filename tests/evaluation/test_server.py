"""`verl-grail eval --server` against a real HTTP server that speaks the protocol."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from types import SimpleNamespace

import pytest

from tests.evaluation.server import chat, serving
from tests.evaluation.tiny import write_benchmark
from verl_grail.cli import main
from verl_grail.evaluation import EvaluationError
from verl_grail.evaluation.engines import Request, Vllm
from verl_grail.evaluation.protocol import Sampling, sample_seed
from verl_grail.evaluation.store import read_samples

GOLDS = ["0", "2", "4", "6"]


def question(body: dict) -> int:
    return int(re.search(r"Compute (\d+)", body["messages"][-1]["content"])[1])


def right(body: dict):
    return chat(rf"so \boxed{{{2 * question(body)}}}")


@pytest.fixture
def run(tmp_path, capsys):
    """``run(url, *arguments)``: exit code, what was printed, what went to stderr."""
    file = write_benchmark(tmp_path / "tiny.parquet", GOLDS)

    def run(url, *arguments, model="tiny"):
        command = ["eval", model, "--suite", str(file), "--server", url, "--out", str(tmp_path / "run")]
        code = main([*command, "--samples", "2", "--retries", "2", "--grader", "workers=1", *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def samples(folder):
    return {s.key: s for s in read_samples(folder / "run/samples/tiny.jsonl")}


def test_an_evaluation_on_a_server(run, tmp_path):
    with serving(right) as (url, asked):
        code, out, _ = run(url, "--temperature", "0.7", "--template-arg", "enable_thinking=false", "--method", "grpo")
    assert code == 0 and "| tiny | 4 | 100.0 | 100.0 | 100.0 | 5 | 0.0 | 0.0 | 0 |" in out
    assert len(asked) == 8 and Counter(map(question, asked)) == {0: 2, 1: 2, 2: 2, 3: 2}
    body = next(b for b in asked if b["seed"] == sample_seed(0, "p1", 0, 1))
    assert (body["temperature"], body["top_p"], body["top_k"], body["max_tokens"]) == (0.7, 0.95, 20, 8192)
    # what vllm serve would else take from the model's generation_config.json
    assert (body["min_p"], body["repetition_penalty"]) == (0.0, 1.0)
    assert body["chat_template_kwargs"] == {"enable_thinking": False} and body["model"] == "tiny"
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["benchmarks"]["tiny"]["outcomes"] == {"correct": 8}
    lines = [json.loads(line) for line in (tmp_path / "run/problems/tiny.jsonl").read_text().splitlines()]
    assert [(line["id"], line["gold"], line["runs"][0]["correct"]) for line in lines][1] == ("p1", "2", 2)
    card = json.loads((tmp_path / "run/run.json").read_text())
    assert card["labels"]["method"] == "grpo" and card["settings"]["sampling"]["temperature"] == 0.7
    assert "OPENAI" not in json.dumps(card) and url not in json.dumps(card)


def test_a_server_that_stumbles_is_asked_again(run):
    seen = Counter()

    def answer(body):
        seen[body["seed"]] += 1
        return (503, {"error": {"message": "busy"}}) if seen[body["seed"]] == 1 and question(body) == 2 else right(body)

    with serving(answer) as (url, asked):
        code, out, _ = run(url)
    assert code == 0 and len(asked) == 10 and "| 0 |" in out


def test_a_request_that_fails_is_a_named_failure_and_the_run_goes_on(run, tmp_path):
    with serving(lambda b: (400, {"error": {"message": "too long"}}) if question(b) == 3 else right(b)) as (url, asked):
        code, out, err = run(url)
        assert code == 1 and len(asked) == 8  # what is refused for good is not sent again
        assert "| tiny | 4 | 100.0 | 100.0 | 100.0 | 5 | 0.0 | 0.0 | 2 |" in out
        assert "1 problems without a graded response are left out" in out
        assert "2 requests failed" in err and "BadRequestError" in err and "too long" in err
        bad = samples(tmp_path)["p3", 0, 1]
        assert (bad.outcome, bad.finish, bad.tokens, bad.response) == ("failed", "failed", None, "")
    with serving(right) as (url, asked):
        assert run(url, "--base", "4b")[0] == 0 and len(asked) == 2
        assert run(url)[0] == 0 and len(asked) == 2
        assert json.loads((tmp_path / "run/run.json").read_text())["labels"] == {"base": "4b", "model": "tiny"}
    with serving(right) as (url, asked):
        code, out, err = run(url, "--temperature", "0.1")
        assert code == 2 and "sampling.temperature: 0.6, now 0.1" in err and not asked


def test_a_server_that_refuses_some_problems_is_gone_on_with_and_one_that_refuses_all_is_not(run, tmp_path):
    write_benchmark(tmp_path / "tiny.parquet", [str(2 * i) for i in range(50)])
    refused = 400, {"error": {"message": "longer than the context"}}
    with serving(lambda b: refused) as (url, asked):
        code, _, err = run(url, "--concurrency", "1")
        assert code == 2 and "32 requests failed one after the other" in err and len(asked) < 80
    with serving(lambda b: right(b) if question(b) in (0, 49) else refused) as (url, _):
        code, out, _ = run(url, "--concurrency", "1", "--out", str(tmp_path / "other"))
        assert code == 1 and "48 problems without a graded response are left out" in out


def test_a_long_problem_at_the_start_is_no_server_that_refuses_all(run, tmp_path):
    write_benchmark(tmp_path / "tiny.parquet", GOLDS[:2])
    with serving(lambda b: right(b) if question(b) else (400, {"error": {"message": "long"}})) as (url, _):
        code, out, _ = run(url, "--concurrency", "1", "--samples", "33")
    assert code == 1 and "1 problems without a graded response are left out" in out


def test_a_response_that_is_longer_than_vllms_context_is_refused_at_once():
    class Fake(Vllm):
        context = 100

        def __init__(self):
            self.llm, self.in_flight = SimpleNamespace(llm_engine=None), 8

        def tokens(self, messages):
            return [0] * 60

    asked = [Request("b", f"p{i}", 0, 0, [], 0) for i in range(50)]
    with pytest.raises(EvaluationError, match="--max-tokens 100 does not fit into the model's context of 100 tokens"):
        next(Fake().generate(asked, Sampling(samples=1, temperature=1.0, max_tokens=100)))
    done = list(Fake().generate(asked, Sampling(samples=1, temperature=1.0, max_tokens=50)))
    assert len(done) == 50 and all(c.own and c.error.startswith("prompt_too_long") for c in done)


REPLIES = [
    (chat(r"\boxed{0"), ("no_answer", "stop", 5)),
    (chat(r"\boxed{0} and", finish="length"), ("correct", "length", 5)),
    (chat(""), ("no_answer", "stop", 5)),
    (chat(None, None), ("no_answer", "stop", None)),
    (chat(r"\boxed{0}", reasoning_content=r"maybe \boxed{5}"), ("correct", "stop", 5)),
    (chat(None, reasoning=r"maybe \boxed{0}", finish="length"), ("correct", "length", 5)),  # as in training
    (chat("\ud83d half a pair", 2), ("no_answer", "stop", 2)),
    ((200, {"id": "x", "object": "chat.completion", "choices": []}), ("failed", "failed", None)),
    ((200, b"<html>"), ("failed", "failed", None)),
    ((500, {"error": "down"}), ("failed", "failed", None)),
]


def test_replies_of_every_kind(run, tmp_path):
    write_benchmark(tmp_path / "tiny.parquet", ["0"] * len(REPLIES))
    with serving(lambda body: REPLIES[question(body)][0]) as (url, _):
        code, out, _ = run(url, "--retries", "0")
    found = samples(tmp_path)
    for i, (_, record) in enumerate(REPLIES):
        sample = found[f"p{i}", 0, 1]
        assert (sample.outcome, sample.finish, sample.tokens) == record, REPLIES[i]
        assert (record[0] == "failed") == bool(sample.error)
    assert code == 1 and "the length of 2 responses is not known" in out
    assert found["p4", 0, 0].response == r"<think>maybe \boxed{5}</think>\boxed{0}"  # put back


def test_what_cannot_work_is_said_at_once(run, tmp_path):
    with serving(right) as (url, asked):
        code, _, err = run(url, model="other")
        assert code == 2 and "does not serve other; it serves tiny" in err
        code, _, err = run(url, "--standard-fields")
        assert code == 2 and "--standard-fields cannot carry top_k=20: add --top-k -1" in err
        code, _, err = run(url, "--standard-fields", "--top-k", "-1", "--template-arg", "a=1")
        assert code == 2 and "cannot carry arguments of the chat template (a)" in err
        code, _, err = run(url, "--engine-arg", "dtype=float32")
        assert code == 2 and "set them on the server" in err
        code, _, err = run(url, "--grader", "speed=9")
        assert code == 2 and "speed is unknown; the settings of the grader are" in err
        code, _, err = run(url, "--grader", "speed")
        assert code == 2 and "--grader speed is not KEY=VALUE" in err
        assert not asked
        assert run(url, "--standard-fields", "--top-k", "-1")[0] == 0
        assert "top_k" not in asked[0] and "min_p" not in asked[0]
        code, _, err = run(url, "--top-k", "-1")
        assert code == 2 and "standard_fields: True, now False" in err
    code, _, err = run("http://127.0.0.1:9/v1", "--out", str(tmp_path / "none"), "--retries", "0")
    assert code == 2 and "cannot be used (APIConnectionError): start it" in err
    with serving(right, models=(401, {"error": {"message": "key"}})) as (url, _):
        assert "AuthenticationError" in run(url, "--out", str(tmp_path / "none"))[2]


def test_a_server_that_does_not_list_its_models_will_do(run):
    with serving(right, models=(404, {"error": {"message": "no such page"}})) as (url, _):
        assert run(url)[0] == 0


def test_suites_are_presets_or_files(run, tmp_path, capsys):
    base = ["eval", "tiny", "--server", "http://x", "--out", str(tmp_path / "o")]
    for arguments, words in (
        (["--suite", "grail", "--data", str(tmp_path)], "has no file for math500, aime2024"),
        (["--suite", "grail", "x.parquet"], "--suite grail stands alone"),
        (["--suite", "a/x.parquet", "b/x.parquet"], "two files have one name"),
        (["--suite", str(tmp_path / "no.parquet")], "does not exist"),
        (["--suite", "x.parquet", "--benchmarks", "aime2024"], "--benchmarks chooses from a preset"),
        (
            ["--suite", str(tmp_path / "tiny.parquet"), "--chat-template", "no.jinja"],
            "--chat-template no.jinja cannot be read",
        ),
        (["--suite", "x.parquet", "--limit", "-1"], "--limit -1 must be"),
        (["--suite", "x.parquet", "--pass-at", "9"], "pass@9 needs at least 9 samples"),
    ):
        assert main([*base, *arguments]) == 2
        assert words in capsys.readouterr().err
    for name in ("aime2026", "hmmt_feb2025"):
        write_benchmark(tmp_path / f"{name}.parquet", GOLDS[:2])
    with serving(right) as (url, asked):
        small = ["--suite", "gar", "--data", str(tmp_path), "--benchmarks", "aime2026", "hmmt_feb2025", "--runs", "2"]
        command = ["eval", "tiny", "--server", url, "--out", str(tmp_path / "gar"), *small]
        assert main([*command, "--samples", "3", "--pass-at", "1", "3", "--grader", "workers=1"]) == 0
    out = capsys.readouterr().out
    assert len(asked) == 2 * 2 * 2 * 3 and len({b["seed"] for b in asked}) == 12  # the problems are the same ones
    assert "between <think> and </think>" in asked[0]["messages"][-1]["content"]
    assert "| mean |  | 100.0 | 100.0 | 100.0 |" in out and "not published: temperature" in out


def test_a_folder_may_hold_benchmarks_that_are_not_complete(run, tmp_path, capsys):
    """One is finished; another is started and breaks off; the first is asked for again, alone."""
    summary, lines = tmp_path / "run/summary.json", tmp_path / "run/problems"

    def start(url, *names, temperature="0.6"):
        files = [str(write_benchmark(tmp_path / f"{n}.parquet", GOLDS * (20 if n == "long" else 1))) for n in names]
        command = ["eval", "tiny", "--suite", *files, "--server", url, "--out", str(tmp_path / "run")]
        options = ["--samples", "2", "--retries", "0", "--concurrency", "1", "--grader", "workers=1"]
        return main([*command, *options, "--temperature", temperature])

    def has():
        return set(json.loads(summary.read_text())["benchmarks"])

    with serving(right) as (url, _):
        assert start(url, "tiny") == 0 and has() == {"tiny"}
    with serving(lambda b: (500, {"error": "down"}) if question(b) > 5 else right(b)) as (url, _):
        assert start(url, "long") == 2 and not summary.exists()
        assert start(url, "tiny") == 0 and has() == {"tiny"}
        assert main(["compare", f"a={tmp_path / 'run'}", f"b={tmp_path / 'run'}"]) == 0
        assert "| - | tiny | 100.0 |" in capsys.readouterr().out
    with serving(right) as (url, _):
        assert start(url, "more") == 0 and has() == {"tiny", "more"}  # and not the last command's alone
        capsys.readouterr()
        assert start(url, "tiny") == 0 and "| more | 4 | 100.0 |" in capsys.readouterr().out
    # samples that are newer than the lines
    path = tmp_path / "run/samples/more.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    with serving(lambda b: (500, {"error": "down"})) as (url, _):
        assert start(url, "more") == 1 and json.loads(summary.read_text())["benchmarks"]["more"]["failed"] == 1
        assert start(url, "tiny") == 0  # the failure is another's
    # other settings, once the samples are gone
    for path in (tmp_path / "run/samples").iterdir():
        path.unlink()
    with serving(right) as (url, _):
        assert start(url, "tiny", temperature="0.1") == 0 and has() == {"tiny"}
    assert [p.name for p in lines.iterdir()] == ["tiny.jsonl"]


def test_an_interrupt_does_not_wait_for_requests_on_their_way(run, tmp_path):
    write_benchmark(tmp_path / "tiny.parquet", GOLDS)
    there, over = threading.Event(), threading.Event()

    def answer(body):
        there.set()
        over.wait(120)
        return right(body)

    with serving(answer) as (url, _):
        command = ["eval", "tiny", "--suite", "tiny.parquet", "--server", url, "--grader", "workers=1"]
        with subprocess.Popen(
            [sys.executable, "-m", "verl_grail.cli", *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert there.wait(60)
                process.send_signal(signal.SIGINT)
                assert "stopped; the same command goes on" in process.communicate(timeout=30)[1]
            finally:
                process.kill()
                over.set()
    assert process.returncode == 130


def test_the_command_line_stays_quick():
    code = (
        "import sys; from verl_grail.cli import main\n"
        "try: main(['eval', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'scipy', 'vllm', 'openai', 'pandas', 'matplotlib', 'statsmodels', 'torch', 'verl'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
