"""Actor workers that can run a signal pass (verl/workers/engine_workers.py, ActorRolloutRefWorker)."""

from __future__ import annotations

from tensordict import TensorDict
from verl.experimental.separation.engine_workers import DetachActorWorker
from verl.single_controller.base.decorator import Dispatch, make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker

from verl_grail import __version__
from verl_grail.signals.engines import check_built_engine, make_pass
from verl_grail.signals.measure import measure_of
from verl_grail.signals.request import PassRequest


class _SignalWorker:
    """The two calls that the trainer makes on top of verl's."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def check_signals(self, leaf: str, measure: str | None = None) -> str:
        """Refuse a built model that the pass cannot work with, and a measure that this node does not have.

        Returns:
            The version installed on this node.
        """
        check_built_engine(self.actor.engine, leaf)
        measure_of(PassRequest(0, 0, measure=measure))
        return __version__

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_signals(self, data: TensorDict) -> TensorDict:
        """One signal pass over this rank's rows; ``data`` holds the fields of `request.PASS_FIELDS` and the request."""
        request = PassRequest(**tu.get_non_tensor_data(data, "signal_request", None))
        engine = self.actor.engine
        with engine.eval_mode():
            output = make_pass(engine, request).run(data)
        return tu.get_tensordict(output).cpu() if engine.is_mp_src_rank_with_outputs() else None


class SignalActorRolloutRefWorker(_SignalWorker, ActorRolloutRefWorker):
    """verl's hybrid worker with the signal pass."""


class SignalDetachActorWorker(_SignalWorker, DetachActorWorker):
    """verl's worker for ``separate_async`` with the signal pass."""
