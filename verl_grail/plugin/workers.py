"""Actor workers that can run a signal pass (verl/workers/engine_workers.py, ActorRolloutRefWorker)."""

from __future__ import annotations

from dataclasses import replace

from tensordict import TensorDict
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from verl_grail import __version__
from verl_grail.signals.engines import MODEL_TYPE, register_engine
from verl_grail.signals.measure import measure_of
from verl_grail.signals.request import PassRequest


class SignalTrainingWorker(TrainingWorker):
    """verl's, which builds our subclass of the engine that it would build."""

    def __init__(self, config):
        register_engine(config.engine_config.strategy)
        super().__init__(replace(config, model_type=MODEL_TYPE))


class _SignalWorker:
    """The two calls that the trainer makes on top of verl's."""

    actor_worker_cls = SignalTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def check_signals(self, leaf: str, measure: str | None = None) -> str:
        """Refuse a built model that the pass cannot work with, and a measure that this node does not have.

        Returns:
            The version installed on this node.
        """
        self.actor.engine.check_signals(leaf)
        measure_of(PassRequest(0, 0, measure=measure))
        return __version__

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_signals(self, data: TensorDict) -> TensorDict:
        """One signal pass over this rank's rows; ``data`` holds the fields of `request.PASS_FIELDS` and the request."""
        request = PassRequest(**tu.get_non_tensor_data(data, "signal_request", None))
        engine = self.actor.engine
        output = engine.compute_signals(data, request)
        return tu.get_tensordict(output).cpu() if engine.is_mp_src_rank_with_outputs() else None


class SignalActorRolloutRefWorker(_SignalWorker, ActorRolloutRefWorker):
    """verl's hybrid worker with the signal pass."""


class SignalDetachActorWorker(_SignalWorker, DetachActorWorker):
    """verl's worker for ``separate_async`` with the signal pass."""
