"""Methods over seeds: what is run again, statistics on numbers worked by hand, the tables; nothing is trained."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import seeds
import seeds_summary as of
import seeds_task
import shared
import torch
import train
from transformers import Qwen3Config, Qwen3ForCausalLM

SCRIPTS = Path(__file__).parents[2] / "scripts"
STEPS = 4


@pytest.fixture(scope="module")
def docs_results():
    spec = importlib.util.spec_from_file_location("docs_results", SCRIPTS / "docs_results.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


# ------------------------------ which runs, and again ------------------------------


def write_metrics(folder: Path, steps: int, **metrics: float) -> None:
    """A run's metrics up to a step, with validation before the first step and after the last."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(steps + 1):
            data = {"critic/score/mean": 0.4 + 0.01 * step, "response_length/mean": 30.0, "timing_s/step": 2.0}
            data = data | metrics if step else {}
            if step in (0, STEPS):
                data["val-core/arithmetic/acc/mean@1"] = 0.4 + metrics.get("gain", 0.1) * (step == STEPS)
            file.write(json.dumps({"step": step, "data": data}) + "\n")


class Attempts:
    """What `complete` calls: each try writes metrics up to a step and ends with a trouble or none."""

    def __init__(self, folder: Path, *tries: tuple[int, str | None]):
        self.folder, self.tries, self.made = folder, tries, 0

    def __call__(self) -> str | None:
        reached, trouble = self.tries[self.made]
        self.made += 1
        write_metrics(self.folder, reached)
        (self.folder / "log.txt").write_text(f"try {self.made}")
        return trouble


def test_a_finished_run_is_not_repeated(tmp_path):
    first = Attempts(tmp_path, (STEPS, None))
    assert seeds.complete(tmp_path, "a", STEPS, first) and first.made == 1
    again = Attempts(tmp_path)
    assert seeds.complete(tmp_path, "a", STEPS, again) and again.made == 0
    assert seeds.record_of(tmp_path, "a")["failures"] == []


def test_other_settings_and_lost_metrics_are_run_again(tmp_path):
    seeds.complete(tmp_path, "a", STEPS, Attempts(tmp_path, (STEPS, None)))
    assert not seeds.is_finished(tmp_path, "b", STEPS) and not seeds.is_finished(tmp_path, "a", STEPS + 1)
    write_metrics(tmp_path, STEPS - 1)
    assert not seeds.is_finished(tmp_path, "a", STEPS)
    again = Attempts(tmp_path, (STEPS, None))
    assert seeds.complete(tmp_path, "b", STEPS, again) and again.made == 1
    assert not seeds.is_finished(tmp_path, "a", STEPS)


def test_a_failed_run_is_tried_once_more_and_stays_on_record(tmp_path):
    attempts = Attempts(tmp_path, (2, "exit status 1"), (STEPS, None))
    assert seeds.complete(tmp_path, "a", STEPS, attempts) and attempts.made == 2
    assert seeds.record_of(tmp_path, "a") == {
        "settings": "a",
        "finished": True,
        "failures": [f"exit status 1 at step 2 of {STEPS}"],
    }
    assert (tmp_path / "log-failure-1.txt").read_text() == "try 1" and (tmp_path / "log.txt").read_text() == "try 2"


def test_a_run_that_keeps_failing_is_reported_and_counted_on(tmp_path):
    # the second ends well but too early; the third reaches the last step and ends badly
    attempts = Attempts(tmp_path, (1, "stopped after 5 s"), (3, None), (STEPS, "exit status 1"), (STEPS, None))
    assert not seeds.complete(tmp_path, "a", STEPS, attempts) and attempts.made == 2
    assert seeds.complete(tmp_path, "a", STEPS, attempts) and attempts.made == 4
    reasons = [text.split(" at step ")[0] for text in seeds.record_of(tmp_path, "a")["failures"]]
    assert reasons == ["stopped after 5 s", "ended", "exit status 1"]


def test_an_interrupted_run_is_not_taken_for_the_old_one(tmp_path):
    seeds.complete(tmp_path, "a", STEPS, Attempts(tmp_path, (STEPS, None)))

    def killed() -> None:
        write_metrics(tmp_path, STEPS)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        seeds.complete(tmp_path, "b", STEPS, killed)
    assert not seeds.is_finished(tmp_path, "b", STEPS) and not seeds.is_finished(tmp_path, "a", STEPS)


def test_waiting():
    def run(code: str) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", code])

    assert seeds.wait(run(""), 60) is None
    assert seeds.wait(run("raise SystemExit(3)"), 60) == "exit status 3"
    slow = run("import time; time.sleep(600)")
    assert seeds.wait(slow, 0.1) == "stopped after 0 s" and slow.poll() is not None


def test_all_methods_of_a_seed_run_before_the_next():
    found = seeds.jobs(seeds.METHODS, [1, 2])
    assert [job.seed for job in found] == [1] * 7 + [2] * 7 + [1] and found[-1].ranks == 2
    assert len({job.name for job in found}) == 15 and found[-1].method == "grail_gar"
    assert set(seeds.METHODS) == set(train.METHODS | train.OTHERS)
    assert seeds.jobs(["grpo"], [1]) == [seeds.Job("grpo", 1)]


def test_the_fingerprint_tells_settings_apart():
    job, size, card = seeds.Job("grail", 1), seeds.SIZE, {"arguments": {"seed": 0}, "seconds": 3.0}
    known = seeds.fingerprint(job, size, card)
    assert known == seeds.fingerprint(job, replace(size), card | {"seconds": 9.9})
    others = [
        seeds.fingerprint(seeds.Job("grail", 2), size, card),
        seeds.fingerprint(seeds.Job("gar", 1), size, card),
        seeds.fingerprint(seeds.Job("grail", 1, 2), size, card),
        seeds.fingerprint(job, replace(size, lr=1.0), card),
        seeds.fingerprint(job, size, {"arguments": {"seed": 1}}),
    ]
    assert len({known, *others}) == 6


def test_validation_samples_reach_verl(tmp_path):
    (tmp_path / "task.json").write_text(json.dumps({"max_prompt_length": 8, "max_response_length": 8}))
    size = replace(seeds.SIZE, val_samples=3)
    given = train.run_overrides("local", tmp_path, tmp_path, "grpo", size, 7, list(seeds.EXTRA))
    assert "actor_rollout_ref.rollout.val_kwargs.n=3" in given and set(seeds.EXTRA) <= set(given)
    assert {"data.seed=7", "actor_rollout_ref.rollout.seed=7"} <= set(given)


# ------------------------------ the model ------------------------------


def test_a_rescaled_model_computes_the_same():
    torch.manual_seed(0)
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=2, head_dim=16)
    config = Qwen3Config(vocab_size=40, num_key_value_heads=1, tie_word_embeddings=False, **sizes)
    model, ids = Qwen3ForCausalLM(config).eval(), torch.randint(40, (2, 9))
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(10)  # as far above RMSNorm's epsilon as trained ones are
        before = model(input_ids=ids).logits
        seeds_task.rescale(model, 16.0, 8.0)
        torch.testing.assert_close(model(input_ids=ids).logits, before, atol=1e-4, rtol=1e-3)
        assert model.model.embed_tokens.weight.std() > 1
        seeds_task.rescale(model, 16.0, 1.0)
        model.lm_head.weight.mul_(2)
        assert not torch.allclose(model(input_ids=ids).logits, before, atol=1e-2)


# ------------------------------ statistics ------------------------------


def test_t_interval_by_hand():
    # mean 3, deviation sqrt(2.5), t(0.975, 4) = 2.776445: half-width 2.776445 * sqrt(2.5 / 5)
    assert of.t_interval([1, 2, 3, 4, 5]) == {"mean": 3.0, "low": 1.03676, "high": 4.96324, "n": 5}
    assert of.t_interval([0.5]) == {"mean": 0.5, "low": None, "high": None, "n": 1}


def runs_of(finals: dict[str, dict[int, float]]) -> list[dict]:
    """Runs with the given validation accuracy after the last step, by method and seed."""
    return [
        {
            "method": method,
            "seed": seed,
            "val_steps": [0, STEPS],
            "val_accuracy": [0.4, value],
            "final": dict.fromkeys(of.OUTCOMES, value),
            "shares": {part: [0.25, 0.5] for part in of.PARTS} | {"step": [2.0, 4.0]},
        }
        for method, values in finals.items()
        for seed, value in values.items()
    ]


FINALS = {
    "grpo": {1: 0.50, 2: 0.60, 3: 0.55, 4: 0.50, 5: 0.52},
    "a": {5: 0.57, 4: 0.54, 3: 0.58, 2: 0.62, 1: 0.51},  # less GRPO: 1, 2, 3, 4, 5 points
    "b": {1: 0.52, 2: 0.59, 3: 0.56, 4: 0.49, 5: 0.52},  # 2, -1, 1, -1, 0
    "c": {2: 0.50, 4: 0.60},
}


def test_differences_are_of_the_same_seed_and_only_of_seeds_that_both_have():
    runs = runs_of(FINALS)
    found = of.differences(runs, "a", "val_accuracy")
    assert found[0] == [1, 2, 3, 4, 5] and found[1] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    assert of.differences(runs, "c", "val_accuracy")[0] == [2, 4]
    assert of.differences(runs, "missing", "val_accuracy") == ([], [])


def test_comparisons_by_hand():
    found = of.comparisons(runs_of(FINALS), list(FINALS))["val_accuracy"]
    assert list(found) == ["a", "b", "c"] and found["c"]["difference"]["n"] == 2
    # a: t = 3 / sqrt(2.5 / 5) = 4.2426 with 4 degrees of freedom; all five ranks positive: 2 / 2**5
    assert found["a"]["difference"] == {"mean": 0.03, "low": 0.01037, "high": 0.04963, "n": 5}
    assert found["a"]["t_p"] == pytest.approx(0.01324, abs=2e-5) and found["a"]["wilcoxon_p"] == 0.0625
    # Holm over three methods: the smallest p three times, at most 1
    assert found["a"]["t_p_holm"] == pytest.approx(3 * 0.01324, abs=5e-5)
    assert found["a"]["wilcoxon_p_holm"] == 0.1875 and found["b"]["t_p_holm"] == 1.0
    # 5 pairs: dz 1.68 is found with 80 % power; the deviation of 1..5 points is 1.58
    assert found["a"]["found_with_80_percent_power"] == pytest.approx(1.68 * 0.0158, abs=2e-4)


def test_equal_runs_have_no_p():
    found = of.comparisons(runs_of({"grpo": FINALS["grpo"], "a": FINALS["grpo"]}), ["grpo", "a"])["val_gain"]["a"]
    assert found["t_p"] is None and found["t_p_holm"] is None and found["difference"]["mean"] == 0


def test_summary():
    found = of.summary(runs_of(FINALS), ["grpo", "a", "none"])
    assert list(found) == ["grpo", "a"] and found["a"]["seeds"] == [1, 2, 3, 4, 5]
    assert found["a"]["val_curve"]["steps"] == [0, STEPS] and found["a"]["val_curve"]["mean"] == [0.4, 0.564]
    assert found["a"]["final"]["val_accuracy"]["mean"] == 0.564


def test_validation_before_the_first_step_tells_the_error_by_sampling():
    runs = [{"seed": s, "val_accuracy": [v, 0.9]} for s, v in ((1, 0.4), (1, 0.5), (2, 0.6))]
    assert of.before(runs) == {"runs": 3, "mean": 0.5, "deviation": 0.1, "seeds": 2, "of_difference": 0.1}
    assert of.before(runs[:1]) == {"runs": 1, "mean": 0.4, "deviation": None, "seeds": 1, "of_difference": None}


def test_last_quarter():
    assert of.last_quarter([9.0] * 6 + [1.0, 2.0]) == 1.5
    assert of.last_quarter([None, 3.0]) == 3.0 and math.isnan(of.last_quarter([3.0, None]))


# ------------------------------ runs ------------------------------


def test_a_run_is_read(tmp_path):
    times = {"timing_s/old_log_prob": 0.6, "timing_s/signal_plan": 0.1, "timing_s/signal_pass": 0.3}
    write_metrics(tmp_path, STEPS, **times, **{"timing_s/gar_anchors": 0.1, "gar/cosine_mean": 0.7})
    run = of.read_run(tmp_path, "gar", 3)
    assert (run["val_steps"], run["val_accuracy"], run["final"]["val_gain"]) == ([0, STEPS], [0.4, 0.5], 0.1)
    assert run["train_accuracy"] == [0.41, 0.42, 0.43, 0.44] and run["final"]["train_accuracy"] == 0.44
    assert run["cosine"] == [0.7] * STEPS and "weight_deviation" not in run
    assert run["shares"]["signals"] == pytest.approx([0.25] * (STEPS - 1))  # without the first step
    assert of.published(run)["shares"]["anchors"] == 0.05 and "step" not in of.published(run)["shares"]


def test_verdicts_come_before_scores(tmp_path):
    write_metrics(tmp_path, STEPS, **{"reward/correct_rate": 0.3})
    assert of.read_run(tmp_path, "gar", 1)["train_accuracy"] == [0.3] * STEPS


def test_a_run_without_validation_is_refused():
    with pytest.raises(ValueError, match="one at 0 and one later"):
        of.finals([(4, 0.5)], {})


def test_costs_are_medians_over_steps_and_ratios_are_of_the_same_seed():
    runs = runs_of({"grpo": {1: 0.5, 2: 0.5}, "gar": {1: 0.5, 2: 0.5}})
    runs[2]["shares"] |= {"signals": [0.1, 0.2], "log_prob": [0.5, 0.5], "step": [4.0, 8.0]}
    found = of.costs(runs, ["grpo", "gar"])
    assert found["grpo"]["steps"] == 4 and found["grpo"]["log_prob"] == 0.375 and "step_to_grpo" not in found["grpo"]
    assert found["gar"]["signals"] == 0.225  # of 0.1, 0.2, 0.25, 0.5
    assert found["gar"]["step_to_grpo"] == {"median": 1.5, "low": 1.0, "high": 2.0}
    # 0.5 of 4 and 8 s: median 3 s; GRPO: 0.25 of 2 s and 0.5 of 4 s, median 1.25 s
    assert found["gar"]["pass_to_grpo"]["high"] == pytest.approx(3 / 1.25)


# ------------------------------ results ------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A results file's content from made-up runs; one failed for good, one was tried twice."""
    work, task = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("task")
    card = {"arguments": {"val_size": 64}, "parameters": 500_000, "seconds": 1.0}
    (task / "task.json").write_text(json.dumps(card))
    size, todo = replace(seeds.SIZE, steps=STEPS), seeds.jobs(["grpo", "gar", "grail_gar"], [1, 2, 3])
    failed = [job for job in todo if job.method == "gar" and job.seed == 2]
    for k, job in enumerate(todo):
        times = {"timing_s/old_log_prob": 0.5, "timing_s/gen": 1.0, "timing_s/update_actor": 0.5}
        if job.method != "grpo":
            times |= {"timing_s/signal_pass": 0.4, "timing_s/gar_anchors": 0.1, "gar/cosine_mean": 0.6}
        folder, settings = work / job.name, seeds.fingerprint(job, size, json.loads((task / "task.json").read_text()))

        def attempt(folder=folder, times=times, k=k, bad=job in failed):
            write_metrics(folder, STEPS, **times, gain=0.02 * (k * k % 7))
            return "exit status 1" if bad else None

        seeds.complete(folder, settings, STEPS, attempt)
    return seeds.collect(todo, failed, task, work, size)


def test_a_failed_run_is_counted_and_not_dropped(made):
    assert (made["runs_wanted"], made["runs_finished"], made["failed"]) == (10, 9, ["gar-seed2"])
    assert made["failures"] == {"gar-seed2": [f"exit status 1 at step {STEPS} of {STEPS}"] * 2}
    assert made["methods"]["gar"]["seeds"] == [1, 3] and len(made["runs"]) == 8
    assert made["compared_with_grpo"]["val_accuracy"]["gar"]["seeds"] == [1, 3]
    assert [run["ranks"] for run in made["ranks"]] == [1, 2]


def test_tables_render(made, docs_results):
    text = docs_results.seeds(made)
    assert "9 of 10 runs finished; tries that failed: 2: gar-seed2 (exit status 1" in text
    assert "Seeds for each method: 2 to 3." in text and "| `grail_gar` |" in text
    cost = docs_results.end_to_end(made)
    assert "| `grpo` | 25 % |  |  | 50 % | 25 % | 1 | 1 |" in cost
    assert "| `gar` | 25 % | 25 % | 5 % | 50 % | 25 % | 1.00" in cost and "| 2 | 25 % | 25 % | 5 % |" in cost
    assert "| ranks |" not in docs_results.end_to_end(made | {"ranks": []})


def test_the_picture_is_drawn(made, tmp_path, monkeypatch):
    monkeypatch.setattr(shared.save, "__defaults__", (tmp_path,))
    seeds.draw(made)
    assert (tmp_path / "claims_seeds.png").stat().st_size > 10_000


def test_lists_of_numbers_are_on_one_line(tmp_path):
    content = {"a": [1, 2.5, None, -3e-5], "b": ["x, [y", 1], "c": [], "d": [[1, 2], [3]]}
    shared.write("x", content, tmp_path, compact=True)
    text = (tmp_path / "x.json").read_text()
    assert json.loads(text) == content and '"a": [1, 2.5, null, -3e-05]' in text


def test_results_are_of_these_methods_and_say_nothing_of_time_or_place():
    text = (shared.RESULTS / "seeds.json").read_text()
    content = json.loads(text)
    assert tuple(content["methods"]) == seeds.METHODS and all(len(m["seeds"]) >= 5 for m in content["methods"].values())
    assert content["runs_finished"] + len(content["failed"]) == content["runs_wanted"]
    assert [run["ranks"] for run in content["ranks"]] == [1, 2]
    assert '"seconds"' not in text and '"step":' not in text
    assert content["settings"]["size"]["lr"] == seeds.SIZE.lr and content["settings"]["overrides"] == list(seeds.EXTRA)
