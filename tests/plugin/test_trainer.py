"""Pieces of the trainer that end-to-end runs do not pin down, on an in-memory stand-in for TransferQueue."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta

from tests.plugin.rows import make_rows
from tests.plugin.test_alignment import info
from verl_grail.config import GarConfig, parse_section
from verl_grail.plugin import trainer as module
from verl_grail.plugin.alignment import AlignmentPlan, Anchor
from verl_grail.plugin.trainer import SignalTrainer, _Update
from verl_grail.plugin.verdicts import left_out_of_metrics, verdict_metrics


class Store:
    """The two calls that the trainer makes, on a dictionary of fields."""

    def __init__(self, keys, **fields):
        self.keys, self.fields = list(keys), fields

    def kv_batch_get(self, keys, partition_id, select_fields):
        at = [self.keys.index(k) for k in keys]
        return {f: _jagged([self.fields[f][i] for i in at]) for f in select_fields}

    def kv_batch_put(self, keys, partition_id, fields):
        assert keys == self.keys
        self.fields.update({name: list(value.unbind()) for name, value in fields.items()})


def _jagged(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _batch(rows) -> KVBatchMeta:
    return KVBatchMeta(keys=rows.keys, tags=[{} for _ in rows.keys], partition_id="train")


@pytest.fixture
def rows():
    return make_rows(
        [
            {"key": "a_0_0", "text": "one two three four", "reward": 1.0, "info": info()},
            {"key": "a_1_0", "text": "one", "reward": 0.0, "info": info(0.0, outcome="wrong")},
            {"key": "a_2_0", "text": "draft", "reward": 1.0, "info": info()},
            {"key": "a_2_1", "text": "final", "reward": 1.0, "info": info()},
        ]
    )


def test_truncated_completions_leave_the_loss_and_nothing_else_does(rows, monkeypatch):
    masks = [torch.ones(len(r), dtype=torch.int64) for r in rows.responses]
    store = Store(rows.keys, response_mask=masks)
    monkeypatch.setattr(module, "tq", store)
    limit = len(rows.responses[0])
    trainer = SimpleNamespace(
        config=OmegaConf.create({"actor_rollout_ref": {"rollout": {"response_length": limit}}}),
        _end_ids=frozenset([10_000]),
    )
    metrics = {}
    SignalTrainer._mask_truncated(trainer, _batch(rows), rows, "grail", metrics)
    cut = [len(r) >= limit for r in rows.responses]
    assert sum(cut) == 1 and metrics == {"grail/truncated_masked": 1.0}
    for name in ("response_mask", "loss_mask"):
        for value, before, gone in zip(store.fields[name], masks, cut, strict=True):
            assert torch.equal(value, torch.zeros_like(before) if gone else before)


UNGRADED = {"outcome": "unparseable_gold", "graded": 0.0, "acc": 0.0}


def _graded_rows(*infos):
    return make_rows(
        [{"key": f"a_{i}_0", "text": "some words", "reward": 0.0, "info": info} for i, info in enumerate(infos)]
    )


def test_rows_without_a_verdict_leave_loss_advantage_and_reward_metrics(monkeypatch):
    rows = _graded_rows({"outcome": "correct", "acc": 1.0}, UNGRADED, {"outcome": "timeout", "acc": 0.0, "graded": 1.0})
    masks = [torch.ones(len(r), dtype=torch.int64) for r in rows.responses]
    store = Store(rows.keys, response_mask=masks)
    monkeypatch.setattr(module, "tq", store)
    trainer = SimpleNamespace(_ungraded=set())
    SignalTrainer._drop_ungraded(trainer, _batch(rows), rows)
    assert trainer._ungraded == {"a_1_0"} and rows.left_out.tolist() == [False, True, False]
    assert [int(m.sum()) > 0 for m in store.fields["loss_mask"]] == [True, False, True]
    metrics = verdict_metrics(rows)
    assert metrics["reward/rows/unparseable_gold"] == metrics["reward/rows/timeout"] == 1.0
    assert metrics["reward/graded_rate"] == pytest.approx(2 / 3) and metrics["reward/correct_rate"] == 0.5
    batch = _batch(rows)
    with left_out_of_metrics(batch, trainer._ungraded):
        assert [t.get("is_padding") for t in batch.tags] == [None, True, None]
    assert not any(t.get("is_padding") for t in batch.tags)


def test_an_update_without_any_verdict_keeps_its_rows(monkeypatch, caplog):
    rows = _graded_rows(UNGRADED, UNGRADED)
    monkeypatch.setattr(module, "tq", Store(rows.keys))
    SignalTrainer._drop_ungraded(SimpleNamespace(_ungraded=set()), _batch(rows), rows)
    assert "no row of this update has a gold that can be read" in caplog.text
    assert verdict_metrics(rows)["reward/correct_rate"] == 0.0


def test_reward_functions_that_name_nothing_are_not_counted():
    assert verdict_metrics(_graded_rows({"acc": 1.0}, {})) == {}


def test_an_update_of_truncated_completions_only_keeps_them(rows, monkeypatch, caplog):
    """Its loss would divide by zero tokens."""
    monkeypatch.setattr(module, "tq", Store(rows.keys))
    trainer = SimpleNamespace(
        config=OmegaConf.create({"actor_rollout_ref": {"rollout": {"response_length": 1}}}),
        _end_ids=frozenset([10_000]),
    )
    metrics = {}
    SignalTrainer._mask_truncated(trainer, _batch(rows), rows, "grail", metrics)
    assert metrics == {"grail/truncated_masked": 0.0} and "cut at the length limit" in caplog.text


def test_anchors_are_cleared_even_if_the_pass_fails(monkeypatch):
    from verl_grail.config import Settings, SignalsConfig
    from verl_grail.plugin import passes

    calls = []
    queue = SimpleNamespace(
        kv_batch_put=lambda **k: calls.append(("put", k["keys"])),
        kv_clear=lambda **k: calls.append(("clear", k["keys"])),
    )
    monkeypatch.setattr(passes, "tq", queue)

    def compute_signals(meta):
        raise RuntimeError("a worker died")

    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "actor": {"use_dynamic_bsz": False, "ppo_micro_batch_size_per_gpu": 2},
                "rollout": {"log_prob_micro_batch_size_per_gpu": 2, "temperature": 1.0},
            }
        }
    )
    settings = Settings(None, None, parse_section(GarConfig, None), SignalsConfig())
    runner = passes.SignalRunner(SimpleNamespace(compute_signals=compute_signals), 2, config, settings)
    with pytest.raises(RuntimeError, match="a worker died"):
        runner.run_anchors([Anchor("a", False, [1, 2], [3, 4], (0, 2))])
    assert [c[0] for c in calls] == ["put", "clear"] and calls[0][1] == calls[1][1]
    assert len(calls[0][1]) == 2  # one anchor, filled up to two ranks


def test_the_bonus_goes_to_every_output_of_the_session_on_its_last_token(rows, monkeypatch):
    vectors = [torch.tensor([1.0, 0.0]), torch.zeros(2), torch.zeros(2), torch.tensor([0.6, 0.8])]
    store = Store(rows.keys, gradient_vector=vectors, rm_scores=[])
    monkeypatch.setattr(module, "tq", store)
    monkeypatch.setattr("verl_grail.plugin.passes.tq", store)
    plan = AlignmentPlan(rows=[0, 3], anchors=[Anchor("a", False, [1], [2], (0, 1))], passing=2)
    update = _Update(rows, None, plan)
    update.anchors = torch.tensor([[0.0, 1.0]])
    trainer = SimpleNamespace(settings=SimpleNamespace(gar=parse_section(GarConfig, None)))
    metrics = {}
    SignalTrainer._add_bonus(trainer, _batch(rows), update, metrics)
    bonus = 0.5 * (0.8 - 0.4)  # cosines 0 and 0.8, mean 0.4
    want = [1.0, 0.0, 1.0 + bonus, 1.0 + bonus]
    for value, total, response in zip(store.fields["rm_scores"], want, rows.responses, strict=True):
        assert value.shape == (len(response),) and value[-1].item() == pytest.approx(total) == value.sum().item()
    assert metrics["gar/bonus_mean"] == pytest.approx(bonus / 2)


def test_rewards_are_left_alone_without_a_bonus(rows, monkeypatch):
    store = Store(rows.keys, gradient_vector=[torch.tensor([1.0, 0.0])] * 4)
    monkeypatch.setattr(module, "tq", store)
    monkeypatch.setattr("verl_grail.plugin.passes.tq", store)
    update = _Update(rows, None, AlignmentPlan(rows=[0, 3], anchors=[Anchor("a", False, [1], [2], (0, 1))]))
    update.anchors = torch.tensor([[1.0, 0.0]])
    trainer = SimpleNamespace(settings=SimpleNamespace(gar=parse_section(GarConfig, None)))
    SignalTrainer._add_bonus(trainer, _batch(rows), update, {})
    assert "rm_scores" not in store.fields
