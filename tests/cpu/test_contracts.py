"""One test per seam of verl and vLLM that the CPU platform leans on: an upgrade fails by the name of the seam.

What is built on the seams is tested in test_behaviour.py.
"""

import dataclasses
import importlib.metadata
import inspect
import types

import pytest
import torch

from verl_grail import cpu
from verl_grail.cpu import patches
from verl_grail.cpu.overrides import TRAINER_MODES, cpu_overrides, critic_overrides


@pytest.fixture(scope="module", autouse=True)
def _installed():
    assert cpu.install()


def parameters(function) -> list[str]:
    """Parameter names; of the original where ``function`` is one of our replacements (functools.wraps)."""
    return list(inspect.signature(function).parameters)


# --- verl: platform and engines -----------------------------------------------------------------------------------


def test_platform_base_abstract_methods():
    from verl.plugin.platform import PlatformBase

    from verl_grail.cpu.platform import PlatformCPU

    assert PlatformBase.__abstractmethods__, "verl's platform interface is no longer abstract"
    assert PlatformCPU().device_name == "cpu"  # raises TypeError, naming the method, when verl adds one


def test_platform_registry_and_selection():
    from verl.plugin.platform import PlatformRegistry, get_platform, platform_manager

    from verl_grail.cpu.platform import PlatformCPU

    assert parameters(PlatformRegistry.register) == ["platform"]
    assert PlatformRegistry.get("cpu") is PlatformCPU
    assert platform_manager._detect_platform_name() == "cpu"
    assert isinstance(get_platform(), PlatformCPU)


def test_engine_registry_register():
    from verl.workers.engine import EngineRegistry

    from verl_grail.cpu import engine

    assert parameters(EngineRegistry.register) == ["model_type", "backend", "device", "vendor"]
    assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is engine.CPUFSDPEngineWithLMHead
    assert EngineRegistry.get_engine_cls("value_model", "fsdp2") is engine.CPUFSDPEngineWithValueHead
    with pytest.raises(ValueError, match=r"actor_rollout_ref\.actor\.strategy=fsdp2"):
        EngineRegistry.new(model_type="language_model", backend="fsdp")


def test_engine_build_fsdp_module():
    from verl.workers.config import FSDPEngineConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    assert parameters(FSDPEngine._build_fsdp_module) == ["self", "module"]
    source = inspect.getsource(FSDPEngine._build_fsdp_module)
    assert "self.engine_config.offload_policy or self.engine_config.forward_only" in source
    config = FSDPEngineConfig(strategy="fsdp2", forward_only=True, offload_policy=True)
    lent = dataclasses.replace(config, forward_only=False, offload_policy=False)
    assert not (lent.forward_only or lent.offload_policy)


# --- verl: patched functions --------------------------------------------------------------------------------------


def test_initialize_global_process_group_ray():
    import verl.checkpoint_engine.base
    import verl.utils.distributed
    import verl.workers.engine_workers

    name = "initialize_global_process_group_ray"
    assert parameters(getattr(verl.utils.distributed, name)) == ["timeout_second", "backend"]
    for module in (verl.utils.distributed, verl.workers.engine_workers, verl.checkpoint_engine.base):
        assert patches.is_patched(module, name), f"{module.__name__} bound {name} before the plugin was loaded"


def test_load_valuehead_model():
    from verl.utils import model

    assert patches.is_patched(model, "load_valuehead_model")
    assert parameters(model.load_valuehead_model) == [
        "local_path",
        "torch_dtype",
        "model_config",
        "trust_remote_code",
    ]
    assert 'attn_implementation="flash_attention_2"' in inspect.getsource(model.load_valuehead_model.__wrapped__)


def test_fsdp2_sharded_save_to_cpu():
    from verl.experimental.separation.engine_workers import DetachActorWorker
    from verl.utils import fsdp_utils

    assert patches.is_patched(fsdp_utils, "fsdp2_sharded_save_to_cpu")
    assert parameters(fsdp_utils.fsdp2_sharded_save_to_cpu) == ["model"]
    # A copy made in verl one day makes ours superfluous.
    assert ".detach().cpu()" in inspect.getsource(fsdp_utils.fsdp2_sharded_save_to_cpu.__wrapped__)
    assert "from verl.utils.fsdp_utils import" in inspect.getsource(DetachActorWorker._get_strategy_handlers)

    weight = torch.zeros(3)
    module = types.SimpleNamespace(fsdp2_sharded_save_to_cpu=lambda model: ({"w": (weight.cpu(), None)}, "spec"))
    patches.sharded_save_copies(module)
    state, _ = module.fsdp2_sharded_save_to_cpu(None)
    weight.add_(1)
    assert state["w"][0].sum() == 0


def test_distribution_name_of_vllm():
    from verl.third_party import vllm as asks_at_import

    assert "cpu" in importlib.metadata.version("vllm")
    assert asks_at_import.package_name == "vllm" and "cpu" in asks_at_import.package_version
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("verl-grail-no-such-distribution")


# --- verl: sampler, weight transfer, configuration ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["FastPollReplayBuffer", "FastPollReplayBufferAsync"])
def test_custom_sampler_constructor(name):
    from verl.trainer.ppo.v1 import trainer_base
    from verl.utils.import_utils import load_extern_object

    build = inspect.getsource(trainer_base.PPOTrainer._build_replay_buffer)
    assert "sampler_kwargs=sampler_config.sampler_kwargs" in build and "if not has_custom_sampler:" in build
    sampler = load_extern_object("pkg://verl_grail.cpu.sampler", name)
    as_verl_calls = {
        "trainer_mode": "sync",
        "trainer_config": {},
        "max_off_policy_threshold": 8,
        "max_off_policy_strategy": "drop",
        "refill_fn": print,
    }
    assert sampler(sampler_kwargs={}, **as_verl_calls).poll_interval == 0.05
    told = sampler(sampler_kwargs={"poll_interval": 1.0, "filter_groups_metric": "acc"}, **as_verl_calls)
    assert (told.poll_interval, told.filter_groups_metric) == (1.0, "acc")


def test_checkpoint_engine_contract():
    from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, TensorMeta, base
    from verl.workers.config import CheckpointEngineConfig
    from verl.workers.engine_workers import ActorRolloutRefWorker

    from verl_grail.cpu.checkpoint_engine import BACKEND, ZmqCpuCheckpointEngine

    assert CheckpointEngineRegistry.get(BACKEND) is ZmqCpuCheckpointEngine
    ZmqCpuCheckpointEngine(bucket_size=1 << 20)  # raises TypeError, naming the method, when verl adds one
    assert "is_master=(torch.distributed.get_rank() == 0), bucket_size=bucket_size" in inspect.getsource(
        ActorRolloutRefWorker
    )
    manager = inspect.getsource(CheckpointEngineManager)
    assert all(f'"{method}"' in manager for method in ("prepare", "init_process_group", "finalize"))
    assert [f.name for f in dataclasses.fields(TensorMeta)] == [
        "name",
        "shape",
        "dtype",
        "chunk_offset",
        "chunk_size",
        "offset",
    ]
    assert parameters(base.split_weight_chunks)[:2] == ["weights", "bucket_size"]
    assert parameters(base.merge_weight_chunks) == ["chunks", "bucket_size"]
    assert {"backend", "update_weights_bucket_megabytes", "engine_kwargs"} <= {
        f.name for f in dataclasses.fields(CheckpointEngineConfig)
    }


@pytest.mark.parametrize("mode", TRAINER_MODES)
def test_overrides_name_existing_keys(mode):
    from hydra import compose, initialize_config_module

    from verl_grail.cpu.checkpoint_engine import BACKEND

    with initialize_config_module("verl.trainer.config", version_base=None):
        overrides = cpu_overrides("some/model", 2, trainer_mode=mode) + critic_overrides("some/model")
        config = compose("ppo_trainer", overrides=overrides)
    rollout = config.actor_rollout_ref.rollout
    separate = mode == "separate_async"
    assert config.ray_kwargs.ray_init.num_gpus == 2 + separate
    assert rollout.checkpoint_engine.backend == (BACKEND if separate else "naive")
    updates = config.trainer.v1.separate_async.parameter_sync_step if separate else 1
    assert config.data.train_batch_size == updates * config.actor_rollout_ref.actor.ppo_mini_batch_size


# --- vLLM ---------------------------------------------------------------------------------------------------------


def test_dispatch_cpu_unquantized_gemm():
    pytest.importorskip("vllm")
    from verl_grail.cpu import vllm_plugin

    vllm_plugin.register()
    from vllm.model_executor.layers import linear, utils

    assert patches.is_patched(utils, "dispatch_cpu_unquantized_gemm")
    assert parameters(utils.dispatch_cpu_unquantized_gemm) == ["layer", "remove_weight"]
    # Looked up at the call, so that replacing the attribute is enough.
    assert "from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm" in inspect.getsource(
        linear.UnquantizedLinearMethod.process_weights_after_loading
    )
    assert "layer.cpu_linear(x, weight, bias)" in inspect.getsource(utils.cpu_unquantized_gemm)
    layer = torch.nn.Linear(32, 16)
    utils.dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
    assert layer.weight.shape == (16, 32) and layer.cpu_linear is torch.nn.functional.linear


def test_requests_that_evaluation_hands_to_llm():
    """`verl_grail.evaluation.engines.Vllm`: requests are queued, and the engine is stepped until they are done."""
    vllm = pytest.importorskip("vllm")
    from vllm.v1.engine.llm_engine import LLMEngine

    assert {"prompts", "sampling_params", "use_tqdm"} <= set(parameters(vllm.LLM.enqueue))
    assert parameters(LLMEngine.step) == ["self"]
    assert {"temperature", "top_p", "top_k", "max_tokens", "seed"} <= set(parameters(vllm.SamplingParams))
