"""verl's trainers with a signal pass: ``grail_sync``, ``grail_colocate_async`` and ``grail_separate_async``.

One class sits between each stock trainer and `PPOTrainer` (verl/trainer/ppo/v1/trainer_base.py), so that what a mode
does around a call still happens around ours: ``separate_async`` restores the old weights around the log-prob pass, and
the signal pass runs inside of that. Overridden are

    __init__                puts the stock mode's name back, which verl compares with and reads settings by
    _compute_old_log_prob   the signal pass takes the place of the log-prob pass (beside it in bypass mode)
    _compute_advantage      GAR's bonus goes into the rewards, the weights to the estimator
    _compute_metrics        rows without a verdict are left out of the reward statistics
    _log_rollout_data       dumps carry weights and cosines; padding rows are left out

With no signal asked for, none of them does anything of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, PPOTrainerSync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.utils.debug import marked_timer

from verl_grail import __version__
from verl_grail.config import MODE_KEY, OUR_MODES, ConfigError, GrailConfig
from verl_grail.core.grail import RowOutcome
from verl_grail.core.tokens import TokenBytes, end_ids
from verl_grail.plugin.alignment import Alignment, AlignmentPlan, align, plan_alignment
from verl_grail.plugin.dumps import dump_columns
from verl_grail.plugin.estimators import Handover, hand_over
from verl_grail.plugin.passes import SignalRunner, read_vectors
from verl_grail.plugin.startup import check_run
from verl_grail.plugin.step import StepRows, read_rows
from verl_grail.plugin.verdicts import left_out_of_metrics, verdict_metrics
from verl_grail.plugin.weighting import Weighting, WeightingPlan, plan_weighting, scale_ratio, weigh_grail, weigh_oar_g
from verl_grail.plugin.workers import SignalActorRolloutRefWorker, SignalDetachActorWorker

logger = logging.getLogger(__name__)


class _WithLogProbs:
    """A worker group whose ``compute_log_prob`` is answered by the signal pass; all else is the group's own."""

    def __init__(self, worker_group: Any, compute_log_prob: Any):
        self._worker_group = worker_group
        self.compute_log_prob = compute_log_prob

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker_group, name)


class _Update:
    """State of one local update, from the log-prob pass to the advantage."""

    def __init__(self, rows: StepRows, weighting: WeightingPlan | None, alignment: AlignmentPlan | None):
        self.rows = rows
        self.weighting_plan = weighting
        self.alignment_plan = alignment
        self.anchors: torch.Tensor | None = None
        self.weighting: Weighting | None = None
        self.alignment: Alignment | None = None


def _take_out_of_loss(batch: KVBatchMeta, gone: torch.Tensor) -> None:
    """Empty the response masks of the rows that ``gone`` (B,) marks."""
    if not gone.any():
        return
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    masks = [m * (not c) for m, c in zip(data["response_mask"].unbind(), gone.tolist(), strict=True)]
    nested = torch.nested.as_nested_tensor(masks, layout=torch.jagged)
    fields = TensorDict({"response_mask": nested, "loss_mask": nested.clone()}, batch_size=len(masks))
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)


class SignalTrainer(PPOTrainer):
    """`PPOTrainer` with the signal pass; see the module's docstring."""

    def __init__(self, config: DictConfig):
        self.settings = check_run(config)
        mode = config.trainer.v1.trainer_mode
        with open_dict(config):
            OmegaConf.update(config, MODE_KEY, mode)  # the reward workers check the run again
            config.trainer.v1.trainer_mode = OUR_MODES.get(mode, mode)
        super().__init__(config)
        self._update: _Update | None = None
        self._dumps: dict[str, dict[str, Any]] = {}
        self._dumping = False
        self._ungraded: set[str] = set()

    def _init_dataloader(self):
        super()._init_dataloader()
        gar, table = self.settings.gar, getattr(self.train_dataset, "dataframe", None)
        columns = getattr(table, "column_names", None)
        for key in ("solution_key", "aux_solution_key") if gar and columns is not None else ():
            name = getattr(gar, key)
            if name and name not in columns:
                raise ConfigError(
                    f"{gar.key}.{key}={name}: data.train_files has no such column (it has: {', '.join(columns)})"
                )

    def _setup(self):
        super()._setup()
        if not self.settings.active:
            return
        self._token_bytes = TokenBytes.from_tokenizer(self.tokenizer)
        self._end_ids = end_ids(self.tokenizer)
        grail = self.settings.grail
        asked = (grail.leaf, grail.measure) if grail else ("embeddings",)
        versions = set(self.actor_rollout_wg.check_signals(*asked))
        if versions != {__version__}:
            raise RuntimeError(
                f"actor workers run verl-grail {', '.join(sorted(versions))}, the driver {__version__}: install the "
                "same version on every node"
            )

    # ------------------------------ the pass ------------------------------

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        if not self.settings.active:
            return super()._compute_old_log_prob(batch, metrics)
        with marked_timer("signal_plan", self.timing_raw):
            update = self._update = self._plan_update(batch)
        correction = self.config.algorithm.get("rollout_correction", None)
        if correction and correction.get("bypass_mode", False):
            batch = super()._compute_old_log_prob(batch, metrics)
            self._signal_pass(batch, update, log_probs=False)
            return batch

        def compute_log_prob(meta: KVBatchMeta) -> KVBatchMeta:
            self._signal_pass(meta, update, log_probs=True)
            return meta

        with self._log_probs_from(compute_log_prob):
            return super()._compute_old_log_prob(batch, metrics)

    @contextmanager
    def _log_probs_from(self, compute_log_prob) -> Iterator[None]:
        worker_group = self.actor_rollout_wg
        self.actor_rollout_wg = _WithLogProbs(worker_group, compute_log_prob)
        try:
            yield
        finally:
            self.actor_rollout_wg = worker_group

    def _plan_update(self, batch: KVBatchMeta) -> _Update:
        settings, gar = self.settings, self.settings.gar
        columns = [k for k in (gar.solution_key, gar.aux_solution_key) if k] if gar else []
        rows = read_rows(batch, columns)
        alignment = None
        if gar:
            alignment = plan_alignment(
                rows,
                gar,
                lambda text: self.tokenizer.encode(text, add_special_tokens=False),
                self._token_bytes,
                self.config.data.max_response_length,
                self._end_ids,
            )
        weighting = None
        if settings.weighting:
            weighting = plan_weighting(
                rows,
                settings.weighting,
                self._token_bytes,
                self.config.algorithm,
                alignment.groups if alignment else frozenset(),
                self._advantage_is_final(),
                settings.answers.policy(str(settings.weighting.box)),
            )
        return _Update(rows, weighting, alignment)

    def _advantage_is_final(self) -> bool:
        """Whether rewards and masks stay as they are from here to the advantage, but for GAR's bonus."""
        correction = self.config.algorithm.get("rollout_correction", None) or {}
        return not self.config.algorithm.use_kl_in_reward and not correction.get("rollout_rs", None)

    def _signal_pass(self, batch: KVBatchMeta, update: _Update, log_probs: bool) -> None:
        worker_group = getattr(self.actor_rollout_wg, "_worker_group", self.actor_rollout_wg)
        dispatch = worker_group._dispatch_info  # filled by verl's _balance_batch, which runs before
        n_ranks = max(dispatch["actor"] if "actor" in dispatch else worker_group._query_dispatch_info("actor")) + 1
        runner = SignalRunner(worker_group, n_ranks, self.config, self.settings)
        with marked_timer("signal_pass", self.timing_raw):
            runner.run_rows(
                batch, update.rows, update.weighting_plan, update.alignment_plan, self.global_steps, log_probs
            )
        if update.alignment_plan is not None:
            with marked_timer("gar_anchors", self.timing_raw):
                update.anchors = runner.run_anchors(update.alignment_plan.anchors)

    # ------------------------------ the advantage ------------------------------

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        update = self._update
        if update is None:
            return super()._compute_advantage(batch, metrics)
        metrics.update(verdict_metrics(update.rows))
        self._drop_ungraded(batch, update.rows)
        self._add_bonus(batch, update, metrics)
        section = self.settings.weighting
        if section is None:
            batch = super()._compute_advantage(batch, metrics)
        else:
            update.weighting = self._weigh(batch, update)
            metrics.update(update.weighting.metrics)
            handover = Handover(update.weighting.weights, update.rows.sessions, section, update.rows.left_out)
            with hand_over(handover):
                batch = super()._compute_advantage(batch, metrics)
            ratio = scale_ratio(handover.base, handover.weights, update.rows.response_mask)
            metrics[f"{update.weighting.name}/advantage_scale_ratio"] = ratio
            if section.mask_truncated:
                self._mask_truncated(batch, update.rows, update.weighting.name, metrics)
        self._keep_for_dumps(batch, update)
        self._update = None
        return batch

    def _add_bonus(self, batch: KVBatchMeta, update: _Update, metrics: dict) -> None:
        """GAR: cosines from the vectors of the pass, and their bonus on the last token of the session's rewards."""
        plan = update.alignment_plan
        if plan is None:
            return
        vectors = torch.zeros(0, 1)
        if plan.rows:
            vectors = read_vectors([batch.keys[i] for i in plan.rows], batch.partition_id)
        assert update.anchors is not None
        done = update.alignment = align(update.rows, plan, self.settings.gar, vectors, update.anchors)
        metrics.update(done.metrics)
        if not any(done.bonus.values()):
            return
        sessions = update.rows.sessions
        by_session = {sessions.final_of_row[row]: bonus for row, bonus in done.bonus.items()}
        rewards = []
        for row, response in enumerate(update.rows.responses):
            r = update.rows.rewards[row, : len(response)].clone()
            r[-1] += by_session.get(sessions.final_of_row[row], 0.0)
            rewards.append(r)
        nested = torch.nested.as_nested_tensor(rewards, layout=torch.jagged)
        fields = TensorDict({"rm_scores": nested}, batch_size=len(rewards))
        tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=fields)

    def _weigh(self, batch: KVBatchMeta, update: _Update) -> Weighting:
        rows, plan, section = update.rows, update.weighting_plan, self.settings.weighting
        signal = torch.zeros(rows.response_mask.shape)
        if (plan.outcome == RowOutcome.WEIGHTED).any():
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["saliency"])
            signal = torch.nested.to_padded_tensor(data["saliency"], 0.0)
        if isinstance(section, GrailConfig):
            return weigh_grail(rows, plan, section, signal)
        return weigh_oar_g(rows, plan, section, signal)

    def _mask_truncated(self, batch: KVBatchMeta, rows: StepRows, name: str, metrics: dict) -> None:
        """Take truncated completions out of the loss; their group's mean has been taken with them, as in TRL."""
        rollout = self.config.actor_rollout_ref.rollout
        cut = rows.truncated(rollout.response_length, rollout.get("max_model_len", None), self._end_ids) & ~rows.padding
        if bool((cut | rows.padding).all()):  # nothing would be left to divide the loss by
            logger.warning("every completion of this update was cut at the length limit; none is taken out of the loss")
            cut = torch.zeros_like(cut)
        metrics[f"{name}/truncated_masked"] = float(cut.sum())
        _take_out_of_loss(batch, cut)

    def _drop_ungraded(self, batch: KVBatchMeta, rows: StepRows) -> None:
        """Take rows without a verdict out of advantages, loss and reward metrics."""
        self._ungraded |= {key for key, gone in zip(batch.keys, rows.ungraded.tolist(), strict=True) if gone}
        if bool(rows.left_out.all()):
            logger.warning("no row of this update has a gold that can be read: it teaches nothing")
            return
        _take_out_of_loss(batch, rows.ungraded)

    def _compute_metrics(self, batch: KVBatchMeta, *args, **kwargs):
        with left_out_of_metrics(batch, self._ungraded):
            result = super()._compute_metrics(batch, *args, **kwargs)
        self._ungraded.clear()
        return result

    # ------------------------------ dumps ------------------------------

    def _keep_for_dumps(self, batch: KVBatchMeta, update: _Update) -> None:
        if self.config.trainer.get("rollout_data_dir", None):
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["advantages"])
            self._dumps.update(dump_columns(update, data["advantages"], self._token_bytes, self.settings.gar))

    def _log_rollout_data(self, batch: KVBatchMeta, timing_raw: dict, rollout_data_dir: str):
        if self.settings.active:
            real = [k for k, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
            batch = batch.select_keys(real)
        self._dumping = True
        try:
            super()._log_rollout_data(batch, timing_raw, rollout_data_dir)
        finally:
            self._dumping = False
            self._dumps.clear()

    def _dump_generations(self, inputs, outputs, gts, scores, reward_extra_infos_dict, dump_path):
        keys = reward_extra_infos_dict.get("uid", [])
        if self._dumps and self._dumping:  # verl dumps validation through here too
            rows = [self._dumps[k] for k in keys]
            names = rows[0].keys()
            reward_extra_infos_dict = reward_extra_infos_dict | {n: [row[n] for row in rows] for n in names}
        super()._dump_generations(inputs, outputs, gts, scores, reward_extra_infos_dict, dump_path)

    # ------------------------------ workers ------------------------------

    def _use_signal_workers(self, worker_cls: type) -> None:
        if not self.settings.active:
            return
        for role in (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(worker_cls)


def make_trainer(stock: type[PPOTrainer], worker_cls: type) -> type[PPOTrainer]:
    """The stock mode's trainer with `SignalTrainer` under it and signal workers for its actor."""

    class Trainer(stock, SignalTrainer):  # type: ignore[misc, valid-type]
        def _init_resource_pool_mgr(self):
            super()._init_resource_pool_mgr()
            self._use_signal_workers(worker_cls)

    Trainer.__name__ = Trainer.__qualname__ = f"Grail{stock.__name__}"
    Trainer.__doc__ = f"{stock.__name__} with the signal pass."
    return Trainer


MODES = {
    "grail_sync": (PPOTrainerSync, SignalActorRolloutRefWorker),
    "grail_colocate_async": (PPOTrainerColocateAsync, SignalActorRolloutRefWorker),
    "grail_separate_async": (PPOTrainerSeparateAsync, SignalDetachActorWorker),
}
"""Our modes: the stock trainer that each extends, and its actor's worker."""
for _name, (_stock, _worker) in MODES.items():
    register_trainer(_name)(make_trainer(_stock, _worker))
