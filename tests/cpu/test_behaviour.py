"""What the CPU platform builds on the seams of test_contracts.py.

Nothing happens without ``VERL_PLATFORM=cpu``, patches come off again, and the weight transfer delivers the bytes it was
given.
"""

import asyncio
import os
import subprocess
import sys
import textwrap
import types

import pytest
import torch

from verl_grail.cpu import patches
from verl_grail.cpu.overrides import cpu_env

PATCHED = {
    "verl.utils.distributed": "initialize_global_process_group_ray",
    "verl.utils.model": "load_valuehead_model",
    "verl.utils.fsdp_utils": "fsdp2_sharded_save_to_cpu",
}


@pytest.mark.parametrize("platform", [None, "nvidia"])
def test_nothing_is_patched_or_registered_elsewhere(platform):
    script = f"""
        import importlib, importlib.metadata
        ask = importlib.metadata.version
        from verl_grail import cpu
        from verl_grail.cpu import patches, vllm_plugin
        assert cpu.install() is False
        vllm_plugin.register()
        import verl_grail.cpu.checkpoint_engine, verl_grail.cpu.engine, verl_grail.cpu.platform
        from verl.checkpoint_engine import CheckpointEngineRegistry
        from verl.plugin.platform import PlatformRegistry
        from verl.workers.engine import EngineRegistry
        for module, name in {PATCHED!r}.items():
            assert not patches.is_patched(importlib.import_module(module), name), name
        assert importlib.metadata.version is ask
        assert PlatformRegistry.get("cpu") is None
        assert "zmq_cpu" not in CheckpointEngineRegistry._registry
        assert "cpu" not in {{key for t in EngineRegistry._engines.values() for b in t.values() for key in b}}
        assert not patches._undo
    """
    env = {k: v for k, v in os.environ.items() if k != "VERL_PLATFORM"}
    env |= {"VERL_PLATFORM": platform} if platform else {}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_importing_our_engines_before_verl():
    script = "import verl_grail.cpu.engine as e; from verl.workers.engine import EngineRegistry as r; "
    script += "assert r.get_engine_cls('language_model', 'fsdp2') is e.CPUFSDPEngineWithLMHead"
    env = {**os.environ, **cpu_env()}
    done = subprocess.run([sys.executable, "-c", "import verl_grail.cpu as c; c.install(); " + script], env=env)
    assert done.returncode == 0


def test_patches_come_off_and_name_what_is_missing(monkeypatch):
    monkeypatch.setattr(patches, "_undo", [])
    module = types.SimpleNamespace(__name__="some.module", initialize_global_process_group_ray=lambda **kw: kw)
    original = module.initialize_global_process_group_ray
    patches.gloo_backend_string(module)
    once = module.initialize_global_process_group_ray
    patches.gloo_backend_string(module)
    assert module.initialize_global_process_group_ray is once
    assert once() == {"timeout_second": None, "backend": "cpu:gloo"}
    patches.undo_all()
    assert module.initialize_global_process_group_ray is original
    with pytest.raises(AttributeError, match=r"some\.module\.load_valuehead_model"):
        patches.value_head_attention(module)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("n_receivers", [1, 3])
def test_weight_transfer_is_exact(n_receivers, monkeypatch):
    from verl_grail.cpu import checkpoint_engine

    monkeypatch.setattr(checkpoint_engine.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    weights = {
        "odd": torch.randn(7, dtype=torch.bfloat16),  # an odd number of bytes before an fp32 neighbour
        "wide": torch.randn(300, 5),  # larger than a bucket: travels in chunks
        "scalar": torch.tensor(1.5),
        **{f"layer{i}": torch.randn(16, 9) for i in range(9)},
    }
    make = checkpoint_engine.ZmqCpuCheckpointEngine
    actors = [make(1024, is_master=i == 0, timeout_s=30) for i in range(2)]
    rollouts = [make(1024, timeout_s=30) for _ in range(n_receivers)]

    async def receive(engine):
        return {name: weight.clone() async for name, weight in engine.receive_weights()}

    async def transfer():
        workers = actors + rollouts
        topology = make.build_topology(len(actors), n_receivers, [w.prepare() for w in workers])
        for group, kwargs in zip((actors, rollouts), topology, strict=True):
            for i, worker in enumerate(group):
                worker.init_process_group(**{key: values[i] for key, values in kwargs.items()})
        return (
            await asyncio.gather(*(a.send_weights(iter(weights.items())) for a in actors), *map(receive, rollouts))
        )[len(actors) :]

    for _ in range(2):  # verl prepares and finalizes around every sync
        for received in asyncio.run(transfer()):
            assert list(received) == list(weights)
            assert all(torch.equal(received[k], v) and received[k].dtype == v.dtype for k, v in weights.items())
        for worker in actors + rollouts:
            worker.finalize()
