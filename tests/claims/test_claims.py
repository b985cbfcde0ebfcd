r"""The scripts that check the papers' claims: their statistics on hand-made numbers, their inputs, their results."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import cosine
import ig
import ntk
import numpy as np
import pytest
import real
import real_problems
import rollouts
import shared
import torch
import weight_profile

from tests.signals.tiny import build_model, ragged_rows, reference
from verl_grail.core.spans import AnswerSpan

SCRIPTS = Path(__file__).parents[2] / "scripts"
NAMES = ("profile", "cosine", "ntk", "ig", "seeds")
# whole numbers, no letters next to them, nothing in front of the left side that belongs to it
PLAIN_EQUATION = re.compile(r"(?<![\w.)^(-])(?<![-+*/] )(\d+(?:\s*[-+*/]\s*\d+)+)\s*=\s*(\d+)(?![\w^(]|\.\d|\s*[-+*/])")


# ------------------------------ solutions ------------------------------


def test_every_solution_is_right_and_worded_in_its_own_way():
    grade, problems = real.load_grader(), json.loads(cosine.FILE.read_text())
    assert len(problems) >= 20 and len({p["id"] for p in problems}) == len(problems)
    equations = 0
    for problem in problems:
        assert len({m["name"] for m in problem["methods"]}) == 2
        for method in problem["methods"]:
            assert len(set(method["solutions"])) == len(method["solutions"]) >= 2
            for text in method["solutions"]:
                assert grade("gsm", text, problem["answer"])["outcome"] == "correct", text
                for left, right in PLAIN_EQUATION.findall(text):
                    assert real_problems.value(left.replace(" ", "")) == int(right), text
                    equations += 1
    assert equations > 60


def test_solutions_are_read_in_order():
    found = cosine.read()
    assert len(found) == 4 * len({s.problem for s in found})
    assert [s.problem for s in found] == sorted(s.problem for s in found)
    assert found[0].method == found[1].method != found[2].method == found[3].method


# ------------------------------ statistics ------------------------------


def test_profile_and_trend():
    weights = np.array([1.0, 2.0, 3.0, 4.0, 9.0, 9.0])
    assert weight_profile.profile(weights, 4, bins=2).tolist() == [1.5, 3.5]
    assert weight_profile.profile(weights, 2, bins=4)[[1, 3]].tolist() == [1.0, 2.0]  # at 1/4 and 3/4
    assert np.isnan(weight_profile.profile(weights, 2, bins=4)[[0, 2]]).all()
    assert weight_profile.trend(weights, 4) == pytest.approx(1.0)
    assert np.isnan(weight_profile.trend(np.ones(5), 5)) and np.isnan(weight_profile.trend(weights * np.nan, 4))


def test_means_of_resampled_clusters_equal_explicit_resampling():
    values = np.array([[1.0, 5.0], [3.0, np.nan], [10.0, 2.0], [20.0, 4.0]])
    clusters, names = ["a", "a", "b", "c"], ["a", "b", "c"]
    draws = shared.resamples(3, seed=1, times=50)
    assert (draws.sum(1) == 3).all()
    got = shared.cluster_means(values, clusters, draws, names)
    for draw, mean in zip(draws, got, strict=True):
        rows = [i for k, name in enumerate(names) for _ in range(draw[k]) for i in range(4) if clusters[i] == name]
        want = [np.mean(c[np.isfinite(c)]) if np.isfinite(c).any() else np.nan for c in values[rows].T]
        np.testing.assert_allclose(mean, want)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    rng, hits = np.random.default_rng(0), 0
    for seed in range(200):
        sample = rng.normal(size=40)
        found = shared.estimate(sample.mean(), shared.resamples(40, seed, 500) / 40 @ sample)
        assert found["low"] < found["mean"] < found["high"]
        hits += found["low"] <= 0 <= found["high"]
    assert 0.89 < hits / 200 < 0.99


def test_right_and_wrong_are_resampled_together():
    """A difference between problems is none between right and wrong rollouts."""
    values = np.array([[p + 0.0] for p in range(6) for _ in range(2)])
    problems = [f"p{p}" for p in range(6) for _ in range(2)]
    found = weight_profile.compared(values, np.array([True, False] * 6), problems, seed=0)
    assert found["right - wrong"] == {"mean": [0.0], "low": [0.0], "high": [0.0]}
    assert found["right"]["high"][0] - found["right"]["low"][0] > 1


def solutions(problems: int) -> list[cosine.Solution]:
    return [cosine.Solution(p, m, f"{m}{k}", "?") for p in range(problems) for m in "ab" for k in range(2)]


def test_pairs_by_kind():
    matrix = np.full((8, 8), 0.1)
    for p in (0, 4):
        matrix[p : p + 4, p : p + 4] = 0.3
        for m in (p, p + 2):
            matrix[m : m + 2, m : m + 2] = 0.7 + p / 100
    kinds = cosine.by_problem(matrix, solutions(2))
    np.testing.assert_allclose(kinds["same"], [0.7, 0.74])
    np.testing.assert_allclose(kinds["other"], [0.3, 0.3])
    np.testing.assert_allclose(kinds["other problem"], [0.1, 0.1])
    found = cosine.compare(kinds, seed=0)
    assert found["same - other"]["mean"] == pytest.approx(0.42) and found["same / other"]["mean"] == pytest.approx(2.4)
    assert found["problems_with_same_above_other"] == 2


def test_what_the_method_adds_to_the_words():
    some, n = solutions(12), 48
    rng = np.random.default_rng(0)
    words = rng.uniform(size=(n, n))
    words = (words + words.T) / 2
    same = np.array([[a.method == b.method for b in some] for a in some])
    level = rng.uniform(size=12)[[a.problem for a in some]]
    found = cosine.beyond_words(level[:, None] + 0.3 * words + 0.2 * same, words, some, seed=0)
    for name, value in (("same_method", 0.2), ("overlap", 0.3)):
        assert found[name]["mean"] == pytest.approx(value, abs=1e-3)
        assert found[name]["low"] == pytest.approx(value, abs=1e-3) == found[name]["high"]


def test_overlap():
    assert cosine.overlap([1, 2, 2, 3], [2, 3, 4]) == 0.5


def test_agreement():
    a = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 0.5, 0.1, 0.2, 0.3, 0.4, 99.0])
    assert ig.agreement(a, a, 10) == pytest.approx([1.0, 1.0])
    assert ig.agreement(a, -a, 10) == pytest.approx([-1.0, 0.0])


# ------------------------------ choices ------------------------------


def test_rollouts_of_mixed_problems(monkeypatch):
    rows = [("a", "correct")] + [("a", "wrong")] * 5 + [("b", "wrong")] * 3 + [("c", "correct")] * 2
    found = [{"problem": p, "outcome": o, "id": i} for i, (p, o) in enumerate(rows)] + [
        {"problem": "a", "outcome": "no_answer", "id": 99}
    ]
    spans = [AnswerSpan(3, 5, ((4, 5),))] * len(rows) + [None]
    monkeypatch.setattr(shared, "answered", lambda some, *_: zip(some, spans, strict=True))
    kept = shared.mixed_problems(found, None, 2, seed=0)
    assert [r["problem"] for r in kept] == ["a"] * 3 and [r["outcome"] for r in kept] == ["correct", "wrong", "wrong"]


def test_rollouts_for_integrated_gradients():
    found = [
        {"problem": f"p{i % 3}", "outcome": o, "prompt": [0] * (9 - i)} for o in ("correct", "wrong") for i in range(6)
    ]
    kept = ig.chosen(found, 4)
    assert [r["outcome"] for r in kept] == ["correct"] * 2 + ["wrong"] * 2
    assert [r["problem"] for r in kept] == ["p2", "p1"] * 2  # the shorter of the first of each problem


def test_the_prompts_last_token_is_counted_to_the_response():
    row = weight_profile.row_of({"prompt": [1, 2, 3], "response": [4, 5, 6]}, AnswerSpan(1, 3, ((2, 3),)))
    assert (row.prompt, row.response, row.answer, row.holes) == ([1, 2], [3, 4, 5, 6], (2, 4), [0])


# ------------------------------ the pass ------------------------------


def test_signals_come_back_in_the_order_of_the_rows():
    model, rows = build_model("llama"), ragged_rows(7)
    for row, got in zip(rows, shared.signals(model, rows, batch=3, vectors=True), strict=True):
        want = reference(model, row)
        torch.testing.assert_close(got["log_probs"], want.log_probs, atol=3e-6, rtol=3e-6)
        torch.testing.assert_close(got["gradient_vector"], want.vector, atol=1e-6, rtol=1e-4)


def test_attributions_are_summed_over_prompt_and_response():
    model, row = build_model("llama", rms_norm_eps=1.0), ragged_rows(1)[0]
    saliency, total = ig.attributed(model, row, 64)
    change = ig.answer_loss(model, row, 1.0) - ig.answer_loss(model, row, 0.0)
    assert total == pytest.approx(change, rel=2e-3)
    (plain,) = shared.signals(model, [row], ig_steps=64)
    np.testing.assert_allclose(saliency, plain["saliency"].numpy(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_the_decomposition_holds_and_the_check_would_notice(kind, monkeypatch):
    model, rows = build_model(kind).double(), ragged_rows(3)
    found = ntk.check(model, rows)
    assert found["pairs"] == found["tokens"] * (found["tokens"] + 1) // 2 and found["max_relative_error"] < 1e-12
    monkeypatch.setattr(ntk, "errors", lambda h, y, w: torch.softmax(h @ w.T, -1))  # without the label
    assert ntk.check(model, rows)["max_relative_error"] > 1e-2


def test_similarity_of_sequences_equals_that_of_mean_gradients():
    model, rows = build_model("llama").double(), ragged_rows(3)
    weight = model.lm_head.weight.detach()
    parts, gradients = [], []
    for row in rows:
        hidden, labels = ntk.states(model, row)
        parts.append((ntk.errors(hidden, labels, weight), hidden))
        w = weight.clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(hidden @ w.T, labels)
        gradients.append(torch.autograd.grad(loss, w)[0].flatten())
    v = torch.nn.functional.normalize(torch.stack(gradients), dim=1)
    torch.testing.assert_close(ntk.similarity(parts), v @ v.T, atol=1e-12, rtol=1e-9)


def test_peak():
    assert ntk.peak(torch.tensor([3.0, -4.0, 0.0, 0.0]), 1) == pytest.approx(16 / 25)


# ------------------------------ results ------------------------------


def test_the_cosines_of_the_pass_are_those_of_the_formula():
    pair, formula = (json.loads((shared.RESULTS / f"{n}.json").read_text()) for n in ("cosine", "ntk"))
    for kind in ("same", "other"):
        assert pair["conditions"]["chat"][kind]["mean"] == pytest.approx(formula["solutions"]["gar"][kind], abs=2e-4)


def test_the_tables_of_the_results_are_up_to_date(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("docs_results", SCRIPTS / "docs_results.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.main(["--check"]) == 0, "run python scripts/docs_results.py"
    stale = tmp_path / "results.md"
    stale.write_text(script.PAGE.read_text().replace("| SmolLM2-135M-Instruct | 6 |", "| SmolLM2-135M-Instruct | 7 |"))
    monkeypatch.setattr(script, "PAGE", stale)
    assert script.main(["--check"]) == 1 and script.main([]) == 0 and script.main(["--check"]) == 0


@pytest.mark.parametrize("name", NAMES)
def test_results_say_how_they_came_about_and_nothing_about_where(name):
    text = (shared.RESULTS / f"{name}.json").read_text()
    content = json.loads(text)
    script = content["command"].split()[2]
    assert (Path(__file__).parents[2] / script).exists() and "--seed" in content["command"]
    assert {"torch", "verl", "transformers"} <= set(content["versions"]) and content["machine"]["cpus"] >= 1
    assert not re.search(r"/(tmp|home|root|work|mnt)\b", text) and "NaN" not in text


def test_rollouts_are_sampled_from_the_demos_problems():
    content = json.loads((shared.RESULTS / "profile.json").read_text())
    named = json.loads(rollouts.PROBLEMS.read_text())
    assert content["sampled"]["arguments"]["problems"] == content["sampled"]["problems"] == len(set(named)) == 24
    assert content["rollouts"]["problems"] <= 24 and rollouts.WORK == shared.WORK
