"""``verl-grail check``: what it says of good and of bad runs."""

from __future__ import annotations

import json
import re

import pytest

from tests.recipes.scripts import ROOT, command_of
from tests.signals.tiny import build_model
from verl_grail.cli import main

SIZES = ["data.train_batch_size=8", "actor_rollout_ref.rollout.n=4", "trainer.n_gpus_per_node=4"]
FSDP = [
    *SIZES,
    "actor_rollout_ref.actor.strategy=fsdp2",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.model.path=Qwen/Qwen3-8B",
]


def check(capsys, *overrides):
    code = main(["check", *overrides])
    return code, capsys.readouterr().out


def flat(said):
    """Without the console's line breaks."""
    return " ".join(said.split())


def test_what_a_method_does_and_costs(capsys):
    code, said = check(capsys, "+method=grail_gar", *FSDP)
    assert code == 0 and "passes all checks" in said
    assert "every wrong rollout (verdict)" in said and "last boxed" in said
    assert "gradient_activation vector" in said and "(expert_solution)" in said
    assert "in place of verl's log-prob pass, on the fsdp2 actor" in said
    assert "8.2e9 parameters over 4" in said and "saliency +" in said and "expert solutions +" in said


def test_integrated_gradients_cost_a_forward_and_a_backward_a_step(capsys):
    added = []
    for steps in (1, 8):
        chosen = ["algorithm.grail.saliency=integrated_gradients", f"algorithm.grail.ig_steps={steps}"]
        code, said = check(capsys, "+method=grail", *FSDP, *chosen)
        said = flat(said)
        assert code == 0 and f"gets {steps} forwards and backwards between zero and its embeddings" in said
        added.append(float(re.search(r"saliency \+([\d.]+) %", said).group(1)))
    assert added[1] == pytest.approx(8 * added[0], abs=0.5)
    said = flat(check(capsys, "+method=grail", *FSDP)[1])
    plain = float(re.search(r"saliency \+([\d.]+) %", said).group(1))
    assert "a backward to its embeddings" in said and plain < added[0] < 2 * plain


def test_a_run_without_signals(capsys):
    code, said = check(capsys, "+method=grpo", *FSDP)
    assert code == 0 and "verl's own grpo: no signal is computed" in said and "FLOPs" not in said


def test_a_local_model_is_read(capsys, tmp_path):
    config = build_model("llama").config.to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    code, said = check(capsys, "+method=grail", *FSDP, f"actor_rollout_ref.model.path={tmp_path}")
    assert code == 0 and "0.0e9 parameters" in said
    code, said = check(capsys, "+method=grail", *FSDP, "actor_rollout_ref.model.path=somebody/something")
    assert code == 0 and "no estimate of cost" in said


def test_what_saliency_adds_depends_on_how_its_backward_runs(capsys):
    """Skipping prompts (FSDP, no function of the user's) and not recomputing each take something off."""

    def added(*overrides: str) -> float:
        code, said = check(capsys, "+method=grail", *FSDP, *overrides)
        assert code == 0
        return float(re.search(r"saliency \+([0-9.]+) %", said.replace("\n", " ")).group(1))

    usual = added()
    assert added("algorithm.grail.measure=tests.signals.tiny:attribution") > usual
    assert added("algorithm.signals.recompute=False") < 0.7 * usual


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["+method=grail", "algorithm.grail.lief=middle"], "algorithm.grail.lief"),
        (["+method=grail", "algorithm.grail.leaf=top"], "algorithm.grail.leaf='top' is not one of"),
        (["+method=grail", "trainer.v1.trainer_mode=sync"], "set trainer.v1.trainer_mode=grail_sync"),
        (["+method=nothing"], "method/nothing"),
        (["+method=gar_grpo", "algorithm.filter_groups.enable=True"], "filter_groups"),
        (["+method=grail", "data.train_batch_size=3"], "train_batch_size (3)"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_wrong_is_said(capsys, overrides, said):
    code, out = check(capsys, *FSDP, *overrides)
    assert code == 1 and "refused" in out and said in out


def test_warnings_are_notes(capsys):
    code, said = check(capsys, "+method=grpo", *FSDP, "+algorithm.grail.leaf=middle")
    assert code == 0 and "algorithm.grail is set but not read" in said


def test_a_missing_chat_template_is_noted(capsys, tmp_path):
    config = build_model("llama").config.to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config, default=str))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    path = f"actor_rollout_ref.model.path={tmp_path}"
    assert "has no chat template" in check(capsys, "+method=grail", *FSDP, path)[1].replace("\n", " ")
    own = "actor_rollout_ref.model.custom_chat_template=x"
    assert "chat template" not in check(capsys, "+method=grail", *FSDP, path, own)[1]
    (tmp_path / "chat_template.jinja").write_text("x")
    assert "chat template" not in check(capsys, "+method=grail", *FSDP, path)[1]


@pytest.mark.parametrize("backend", ["fsdp2", "megatron"])
def test_a_recipe_can_be_checked(capsys, tmp_path, backend):
    recipe = ROOT / f"recipes/qwen3/run_qwen3-8b_grail_{backend}.sh"
    code, said = check(capsys, *command_of(recipe, tmp_path)[2:])
    assert code == 0 and f"on the {backend} actor" in said and "saliency +" in said
