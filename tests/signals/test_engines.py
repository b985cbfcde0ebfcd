"""Our engines in verl's registry."""

from __future__ import annotations

import inspect

import pytest
from verl.workers.engine import BaseEngine, EngineRegistry
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

import verl_grail.cpu.engine  # noqa: F401  (registers the CPU engines)
from verl_grail.plugin.workers import SignalActorRolloutRefWorker, SignalDetachActorWorker, SignalTrainingWorker
from verl_grail.signals.engines import (
    MODEL_TYPE,
    VERLS_TYPE,
    FSDPSignals,
    MegatronSignals,
    SignalEngine,
    register_engine,
    with_signals,
)


@pytest.mark.parametrize("backend", ["fsdp", "fsdp2"])
def test_an_engine_is_the_one_that_verl_would_build(backend):
    register_engine(backend)
    register_engine(backend)  # verl refuses a second registration
    ours = EngineRegistry.get_engine_cls(MODEL_TYPE, backend)
    assert ours.__mro__[1:3] == (FSDPSignals, SignalEngine)
    assert issubclass(ours, EngineRegistry.get_engine_cls(VERLS_TYPE, backend))


def test_a_vendors_engine_is_subclassed_too(monkeypatch):
    monkeypatch.setenv("VERL_ENGINE_DEVICE", "made_up")
    monkeypatch.setattr(EngineRegistry, "_engines", {})

    class Vendors(BaseEngine):
        pass

    EngineRegistry.register(VERLS_TYPE, "megatron", "made_up")(Vendors)
    register_engine("megatron")
    ours = EngineRegistry.get_engine_cls(MODEL_TYPE, "megatron")
    assert ours.__name__ == "SignalVendors" and issubclass(ours, Vendors) and issubclass(ours, MegatronSignals)


def test_the_model_type_is_verls_again_when_its_engine_is_built():
    class Engine:
        def __init__(self, model_config, engine_config):
            self.seen = model_config.model_type, engine_config

    config = type("Config", (), {"model_type": MODEL_TYPE})()
    engine = with_signals(Engine, "fsdp2")(model_config=config, engine_config=3)
    assert engine.seen == (VERLS_TYPE, 3) == (config.model_type, 3)


def test_workers_build_it():
    assert ActorRolloutRefWorker.actor_worker_cls is TrainingWorker
    for worker in (SignalActorRolloutRefWorker, SignalDetachActorWorker):
        assert worker.actor_worker_cls is SignalTrainingWorker
        assert worker.ref_worker_cls is TrainingWorker
    # the seam: the engine is asked for by the model type of the worker's configuration
    assert "model_type=self.config.model_type" in inspect.getsource(TrainingWorker.__init__)
