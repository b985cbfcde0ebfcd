"""verl's whole trainer (Ray, FSDP2, vLLM, TransferQueue, weight sync) with GRAIL and GAR, checked in numbers."""

from __future__ import annotations

import json
import math
import re

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.signals.tiny import Row, reference
from verl_grail.core.gar import group_bonus, normalise
from verl_grail.core.thinking import ThinkTags, locate_thinking
from verl_grail.core.tokens import TokenBytes

BOTH = ["algorithm.adv_estimator=grail", "reward.reward_manager.name=gar"]
GRAIL_METRICS = [
    *("answer_found_rate", "fallback_rate", "weight_mean", "weight_std", "clip_frac_min", "clip_frac_max"),
    *("grad_norm_p10", "grad_norm_p90", "advantage_scale_ratio", "rows_skipped"),
]
GAR_METRICS = [
    *("cosine_mean", "cosine_std", "bonus_mean", "anchors", "gate_rate", "format_valid_rate"),
    *("format_penalty_mean", "length_penalty_mean"),
]


@pytest.fixture(scope="module")
def both(verl):
    """GRAIL + GAR on two FSDP2 ranks, packed batches, gradient checkpointing, token budgets, all loggers."""
    return verl(
        "both",
        [
            *BOTH,
            "+algorithm.grail.rollouts=all",
            "actor_rollout_ref.model.use_remove_padding=True",
            "actor_rollout_ref.model.enable_gradient_checkpointing=True",
            "actor_rollout_ref.actor.use_dynamic_bsz=True",
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=400",
            "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=600",
            "trainer.logger=[console,file,tensorboard,wandb]",
        ],
        n_ranks=2,
    )


def test_rollout_and_actor_agree_after_every_sync(both):
    for step in (1, 2):
        m = both.metrics[step]
        assert m["training/rollout_probs_diff_max"] < 1e-4
        assert m["training/rollout_actor_probs_pearson_corr"] > 0.999


def test_every_metric_is_logged(both):
    m = both.metrics[2]
    for name in [f"grail/{k}" for k in GRAIL_METRICS] + [f"gar/{k}" for k in GAR_METRICS]:
        assert math.isfinite(m[name]), name
    for name in ("timing_s/signal_pass", "timing_s/gar_anchors", "timing_s/old_log_prob"):
        assert m[name] > 0
    assert re.search(r"step:2 - .*grail/weight_std", both.log)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(both.folder / "board"))
    board.Reload()
    tags = board.Tags()["scalars"]
    assert {"grail/weight_mean", "gar/cosine_mean"} <= set(tags)
    history = wandb_history(both.folder)
    for name in ("grail/weight_mean", "gar/cosine_mean", "timing_s/signal_pass"):
        assert history[2][name] == pytest.approx(m[name])


def wandb_history(folder) -> dict[int, dict[str, float]]:
    """Metrics by step in the run file that wandb wrote offline."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    history: dict[int, dict[str, float]] = {}
    for data in wandb_records(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            history.setdefault(int(items["_step"]), {}).update(items)
    return history


def wandb_records(data: bytes, header: int = 7, block: int = 32768):
    """Records of wandb's file: LevelDB's log format (crc, length, kind: 1 whole, 2 first, 3 middle, 4 last)."""
    at, record = header, b""
    while at + header <= len(data):
        if block - at % block < header:  # the rest of a block holds no header
            at += block - at % block
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        record += data[at + header : at + header + length]
        if kind in (1, 4):
            yield record
            record = b""
        at += header + length


def _ids(texts: list[str], tokenizer) -> list[int]:
    table = {piece: i for i, piece in enumerate(TokenBytes.from_tokenizer(tokenizer).pieces(range(len(tokenizer))))}
    return [table[t.encode()] for t in texts]


def _prompts(task, tokenizer) -> dict[str, dict]:
    """Dataset rows by the prompt's text as verl dumps it."""
    rows = pd.read_parquet(task / "train.parquet").to_dict("records")
    out = {}
    for row in rows:
        ids = tokenizer.apply_chat_template(list(row["prompt"]), add_generation_prompt=True, return_dict=False)
        out[tokenizer.decode(ids, skip_special_tokens=True)] = {**row, "ids": ids}
    return out


def test_weights_and_cosines_of_step_one_equal_a_plain_computation_on_the_initial_model(both, task):
    """Step 1 ran on the model as it lies on disk, so an independent pass over the dumped rollouts must agree."""
    model = AutoModelForCausalLM.from_pretrained(task / "model", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(task / "model")
    table = TokenBytes.from_tokenizer(tokenizer)
    prompts = _prompts(task, tokenizer)
    rollouts = both.rollouts(1)
    assert len(rollouts) == 32
    weighted = with_cosine = 0
    for r in rollouts:
        if any("\ufffd" in t for t in r["tokens"]):
            continue  # a token that is no text by itself, whose id the dump cannot tell
        source, ids = prompts[r["input"]], _ids(r["tokens"], tokenizer)
        if r["grail_outcome"] == "weighted":
            weighted += 1
            a, b = r["answer_span"]
            s = reference(model, Row(source["ids"], ids, (a, b))).saliency[len(source["ids"]) :][:a]
            z = torch.log(s + 1e-8)
            w = (1 + 0.5 * (z - z.mean()) / (z.var(unbiased=False) + 1e-8).sqrt()).clamp(0.5, 5.0)
            torch.testing.assert_close(torch.tensor(r["grail_weights"][:a]), w, atol=3e-3, rtol=0)
            inside = r["grail_weights"][a:b]
            assert 5.0 in inside and set(inside) <= {1.0, 5.0} and set(r["grail_weights"][b:]) <= {1.0}
        else:
            assert set(r["grail_weights"]) == {1.0}
        if r["gar_cosine"] is not None:
            with_cosine += 1
            span = locate_thinking(ids, table, ThinkTags(), frozenset([tokenizer.eos_token_id]))
            v = reference(model, Row(source["ids"], ids, vector=span)).vector
            cosines = []
            for text in source["expert_solution"]:
                expert = tokenizer.encode(text, add_special_tokens=False)
                at = locate_thinking(expert, table, ThinkTags())
                anchor = reference(model, Row(source["ids"], expert, vector=at)).vector
                cosines.append(float(normalise(v) @ normalise(anchor)))
            assert r["gar_cosine"] == pytest.approx(max(cosines), abs=1e-4)
    assert weighted >= 3 and with_cosine >= 3
    # the first line of each prompt, and no other, carries its expert solutions; the answer's content is a part of it
    lines: dict[str, list[dict]] = {}
    for r in rollouts:
        lines.setdefault(r["uid"].rsplit("_", 2)[0], []).append(r)
        assert r["masked"] is None
        if r["answer_span"] is not None:
            assert all(r["answer_span"][0] < a < b <= r["answer_span"][1] for a, b in r["answer_contents"])
    for first, *others in lines.values():
        assert first["expert_solutions"] == list(prompts[first["input"]]["expert_solution"])
        assert all(r["expert_solutions"] is None for r in others)
    # one anchor forward for each solution of each prompt that has a passing rollout, shared by its group
    passing = {r["uid"].rsplit("_", 2)[0]: r["input"] for r in rollouts if r["gar_outcome"] == "pass"}
    assert both.metrics[1]["gar/anchors"] == sum(len(prompts[text]["expert_solution"]) for text in passing.values())


def test_the_bonus_is_centred_over_the_whole_group_whichever_rank_ran_its_rollouts(both):
    groups = {}
    for r in both.rollouts(1) + both.rollouts(2):
        groups.setdefault(r["uid"].rsplit("_", 2)[0], []).append(r)
    checked = 0
    for members in groups.values():
        passing = [m for m in members if m["gar_cosine"] is not None]
        if not passing:
            continue
        want = group_bonus(torch.tensor([m["gar_cosine"] for m in passing]), ["g"] * len(passing))
        for m, bonus in zip(passing, want.tolist(), strict=True):
            assert m["gar_bonus"] == pytest.approx(bonus, abs=1e-5)
            assert m["score"] == pytest.approx(1.0 + bonus, abs=1e-5)
            checked += len(passing) > 1
        for m in members:
            if m["gar_cosine"] is None:
                assert m["score"] <= 0
    assert checked >= 4


def test_advantages_are_weights_times_the_group_centred_reward(both):
    groups = {}
    for r in both.rollouts(2):
        groups.setdefault(r["uid"].rsplit("_", 2)[0], []).append(r)
    for members in groups.values():
        mean = sum(m["score"] for m in members) / len(members)
        for m in members:
            for w, a in zip(m["grail_weights"], m["advantages"], strict=True):
                assert a == pytest.approx(w * (m["score"] - mean), abs=2e-3)


@pytest.mark.parametrize("mode,extra", [
    ("grail_colocate_async", []),
    ("grail_separate_async", ["trainer.v1.separate_async.num_warmup_batches=0"]),
])  # fmt: skip
def test_asynchronous_modes(verl, mode, extra):
    run = verl(mode, [*BOTH, "+algorithm.grail.rollouts=all", *extra], mode=mode)
    for step in (1, 2):
        m = run.metrics[step]
        assert math.isfinite(m["gar/cosine_mean"]) and m["grail/weight_std"] > 0
        if mode == "grail_separate_async":  # colocated rollouts of step 2 began under the weights of step 0
            assert m["training/rollout_probs_diff_max"] < 1e-4
    if mode == "grail_separate_async":
        # parameter_sync_step=2: two updates of half a batch each make a step
        assert len(run.rollouts(1)) == 32 and run.metrics[1]["grail/rows/weighted"] > 0


@pytest.mark.parametrize("estimator", ["grpo", "reinforce_plus_plus"])
def test_gar_without_token_weights(verl, estimator):
    """Over a group's own statistics, and over an estimator that whitens over the whole batch."""
    run = verl(estimator, [f"algorithm.adv_estimator={estimator}", "reward.reward_manager.name=gar"])
    for step in (1, 2):
        m, dumped = run.metrics[step], run.rollouts(step)
        passing = [r for r in dumped if r["gar_cosine"] is not None]
        assert m["gar/cosine_mean"] == pytest.approx(sum(r["gar_cosine"] for r in passing) / len(passing), abs=1e-5)
        assert m["gar/gate_rate"] == pytest.approx(len(passing) / len(dumped))
        assert m["critic/rewards/mean"] == pytest.approx(sum(r["score"] for r in dumped) / len(dumped), abs=1e-5)
        assert not any(k.startswith("grail/") for k in m)
        if estimator == "grpo":
            continue
        advantages = torch.tensor([a for r in dumped for a in r["advantages"]])
        assert advantages.mean().item() == pytest.approx(0.0, abs=1e-4)
        assert advantages.std().item() == pytest.approx(1.0, abs=1e-2)


def test_ragged_groups_padding_bypass_truncation_and_oar_g(verl, task, tmp_path):
    """Groups of different sizes make verl append padding rows; REINFORCE++ under OAR-G; no log-prob pass."""
    rows = pd.read_parquet(task / "train.parquet")
    rows["__rollout_n__"] = [3 if i % 8 == 0 else 4 for i in range(len(rows))]
    rows["expert_solution"] = [None if i % 2 else s for i, s in enumerate(rows["expert_solution"])]
    for name in ("val.parquet", "task.json", "model"):
        (tmp_path / name).symlink_to(task / name)
    rows.to_parquet(tmp_path / "train.parquet")
    run = verl(
        "ragged",
        [
            "algorithm.adv_estimator=oar_g",
            "reward.reward_manager.name=gar",
            "+algorithm.oar_g.base_estimator=reinforce_plus_plus",
            "+algorithm.oar_g.mask_truncated=True",
            "algorithm.rollout_correction.bypass_mode=True",
            "data.max_response_length=38",  # about the mean length, so that many are cut
        ],
        n_ranks=2,
        data=tmp_path,
    )
    for step in (1, 2):
        m, dumped = run.metrics[step], run.rollouts(step)
        assert len(dumped) == 31  # 7 * 4 + 3; the padding row is neither dumped nor counted
        assert sum(m[f"oar_g/rows/{o}"] for o in ("weighted", "unselected", "no_answer", "degenerate", "non_finite",
                                                  "zero_advantage", "no_scored_tokens")) == 31  # fmt: skip
        assert m["oar_g/rows/weighted"] > 0 and m["oar_g/weight_mean"] == pytest.approx(1.0, abs=1e-3)
        assert 0 < m["oar_g/truncated_masked"] < 31 and math.isfinite(m["actor/grad_norm"])
        assert "timing_s/signal_pass" in m
    missing = {
        r["uid"].rsplit("_", 2)[0] for r in run.rollouts(1) if r["gar_outcome"] == "pass" and r["gar_cosine"] is None
    }
    assert run.metrics[1]["gar/missing_expert"] == len(missing) > 0
