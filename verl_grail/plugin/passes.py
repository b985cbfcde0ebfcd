"""From plans to the worker call: row plans, micro-batches and anchors, through TransferQueue and back."""

from __future__ import annotations

from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig
from ray.exceptions import RayError
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from verl_grail.config import GrailConfig, OarGConfig, Settings
from verl_grail.core.grail import RowOutcome
from verl_grail.plugin.alignment import AlignmentPlan, Anchor
from verl_grail.plugin.startup import sequence_ranks
from verl_grail.plugin.step import StepRows
from verl_grail.plugin.weighting import WeightingPlan, noise_key
from verl_grail.signals.request import EMPTY_PLAN, PASS_FIELDS, Column, PassRequest
from verl_grail.signals.schedule import Limits, Schedule, plan_schedule

ANCHOR_PARTITION = "verl_grail_anchors"


def pass_limits(config: DictConfig, settings: Settings) -> tuple[Limits, Limits]:
    """Micro-batch limits of forward-only rows (verl's log-prob limits) and of rows with a backward (the actor's)."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ours = settings.signals
    if actor.use_dynamic_bsz:
        sp = sequence_ranks(config)
        backward = ours.backward_max_token_len_per_gpu or actor.ppo_max_token_len_per_gpu
        return Limits(tokens=rollout.log_prob_max_token_len_per_gpu * sp), Limits(tokens=backward * sp)
    rows = ours.backward_micro_batch_size_per_gpu or actor.ppo_micro_batch_size_per_gpu
    return Limits(rows=rollout.log_prob_micro_batch_size_per_gpu), Limits(rows=rows)


def row_plans(
    rows: StepRows, schedule: Schedule, weighting: WeightingPlan | None, alignment: AlignmentPlan | None, noisy: bool
) -> torch.Tensor:
    """(B, len(Column)) int64, in batch order."""
    plans = torch.tensor([EMPTY_PLAN] * len(rows), dtype=torch.int64)
    plans[:, Column.MICRO_BATCH] = torch.tensor(schedule.micro_batch)
    if weighting is not None:
        for row in torch.nonzero(weighting.outcome == RowOutcome.WEIGHTED).flatten().tolist():
            span = weighting.spans[row]
            assert span is not None
            plans[row, Column.ANSWER_START], plans[row, Column.ANSWER_END] = span.start, span.end
            if noisy:
                plans[row, Column.NOISE_KEY] = noise_key(rows.prompts[row] + rows.responses[row])
    for row, (start, end) in (alignment.spans if alignment else {}).items():
        plans[row, Column.VECTOR_START], plans[row, Column.VECTOR_END] = start, end
    return plans


class SignalRunner:
    """Runs passes on the actor workers.

    Args:
        worker_group: actor worker group whose workers have ``compute_signals``.
        n_ranks: its data-parallel size.
    """

    def __init__(self, worker_group: Any, n_ranks: int, config: DictConfig, settings: Settings):
        self._wg = worker_group
        self._n_ranks = n_ranks
        self._settings = settings
        self._forward, self._backward = pass_limits(config, settings)
        self._temperature = float(config.actor_rollout_ref.rollout.temperature)

    def run_rows(
        self,
        batch: KVBatchMeta,
        rows: StepRows,
        weighting: WeightingPlan | None,
        alignment: AlignmentPlan | None,
        step: int,
        log_probs: bool,
    ) -> None:
        """One pass over the step's rows; log_probs, entropy, saliency and gradient_vector go to TransferQueue.

        Args:
            log_probs: every row is run and gives log-probs; otherwise (bypass mode) only rows that need a signal are.
        """
        backward = [False] * len(rows) if weighting is None else (weighting.outcome == RowOutcome.WEIGHTED).tolist()
        with_vector = set(alignment.rows if alignment else ())
        run = [log_probs or backward[i] or i in with_vector for i in range(len(rows))]
        if not any(run):
            return
        schedule = plan_schedule(rows.lengths, backward, run, self._n_ranks, self._forward, self._backward)
        request = self._request(schedule, step, log_probs, vectors=bool(with_vector))
        noisy = isinstance(self._settings.weighting, OarGConfig)
        plans = row_plans(rows, schedule, weighting, alignment, noisy)
        tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict({"signal_plan": plans}, batch_size=len(rows)),
        )
        self._call([batch.keys[i] for i in schedule.order], batch.partition_id, request)

    def run_anchors(self, anchors: list[Anchor]) -> torch.Tensor:
        """Gradient-activation vectors (len(anchors), d) of expert solutions under the current policy."""
        if not anchors:
            return torch.zeros(0, 1)
        sequences = [(a.prompt, a.solution, a.span) for a in anchors]
        while len(sequences) % self._n_ranks:  # a short copy fills up the ranks; its result is dropped
            sequences.append((anchors[0].prompt[-1:], anchors[0].solution[:1], (0, 0)))
        n = len(sequences)
        lengths = [len(p) + len(s) for p, s, _ in sequences]
        schedule = plan_schedule(lengths, [False] * n, [True] * n, self._n_ranks, self._forward, self._forward)
        plans = torch.tensor([EMPTY_PLAN] * n, dtype=torch.int64)
        plans[:, Column.MICRO_BATCH] = torch.tensor(schedule.micro_batch)
        plans[:, Column.VECTOR_START : Column.VECTOR_END + 1] = torch.tensor([s[2] for s in sequences])
        keys = [f"anchor_{i}" for i in range(n)]
        tq.kv_batch_put(
            keys=keys,
            partition_id=ANCHOR_PARTITION,
            fields=_sequence_fields(sequences, plans),
            tags=[{"status": "success"}] * n,
        )
        try:
            request = self._request(schedule, step=0, log_probs=False, vectors=True)
            self._call([keys[i] for i in schedule.order], ANCHOR_PARTITION, request)
            return read_vectors(keys, ANCHOR_PARTITION)[: len(anchors)]
        finally:
            tq.kv_clear(keys=keys, partition_id=ANCHOR_PARTITION)

    def _request(self, schedule: Schedule, step: int, log_probs: bool, vectors: bool) -> PassRequest:
        section, gar = self._settings.weighting, self._settings.gar
        extra: dict[str, Any] = {}
        if isinstance(section, GrailConfig):
            extra = {"method": "grail", "leaf": section.leaf, "alignment": str(section.alignment)}
            extra["measure"] = section.measure
            extra["ig_steps"] = section.ig_steps if section.saliency == "integrated_gradients" else 0
        elif isinstance(section, OarGConfig):
            extra = {"method": "oar_g", "noise_std": section.noise_std, "seed": section.seed, "step": step}
        return PassRequest(
            n_forward=schedule.n_forward,
            n_backward=schedule.n_backward,
            log_probs=log_probs,
            vectors=vectors,
            raw_gradient=gar is not None and gar.signal == "raw_gradient",
            temperature=self._temperature,
            chunk=self._settings.signals.head_chunk_tokens,
            recompute=self._settings.signals.recompute,
            **extra,
        )

    def _call(self, keys: list[str], partition: str, request: PassRequest) -> None:
        meta = KVBatchMeta(
            keys=keys,
            tags=[{} for _ in keys],
            partition_id=partition,
            fields=list(PASS_FIELDS),
            extra_info={"signal_request": request.to_dict()},
        )
        try:
            output = self._wg.compute_signals(meta)
        except RayError as e:  # a worker that died, or raised: of several, the first that Ray heard of
            rows = "expert solutions" if partition == ANCHOR_PARTITION else "rollouts"
            raise RuntimeError(
                f"the signal pass over {len(keys)} {rows} failed on the actor workers ({type(e).__name__}, see above); "
                "the run cannot go on: mend the cause, and start it again with trainer.resume_mode=auto to continue "
                "from its last checkpoint"
            ) from e
        if len(output) != len(keys):
            raise RuntimeError(f"the signal pass returned {len(output)} of {len(keys)} rows")


def read_vectors(keys: list[str], partition: str) -> torch.Tensor:
    """Gradient-activation vectors (len(keys), d) of rows that have been through a pass."""
    data = tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=["gradient_vector"])
    return torch.stack(list(data["gradient_vector"].unbind()))


def _sequence_fields(sequences: list[tuple[list[int], list[int], tuple[int, int]]], plans: torch.Tensor) -> TensorDict:
    def jagged(rows: list[list[int]]) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(r, dtype=torch.int64) for r in rows], layout=torch.jagged)

    return TensorDict(
        {
            "input_ids": jagged([p + s for p, s, _ in sequences]),
            "position_ids": jagged([list(range(len(p) + len(s))) for p, s, _ in sequences]),
            "prompts": jagged([p for p, _, _ in sequences]),
            "responses": jagged([s for _, s, _ in sequences]),
            "response_mask": jagged([[1] * len(s) for _, s, _ in sequences]),
            "signal_plan": plans,
        },
        batch_size=len(sequences),
    )
