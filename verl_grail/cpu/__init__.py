"""verl's whole trainer, with a real vLLM, on a machine without an accelerator.

verl 0.9.1 lets a plugin register a platform; "cpu" is not among its own. `install` adds it, together with the FSDP2
engines, a weight-transfer backend for ``separate_async`` and the few monkeypatches of `verl_grail.cpu.patches`. It
does so only where the environment says ``VERL_PLATFORM=cpu``: under any other value nothing is registered or patched.

Every piece hangs on a post-import hook of the verl module it adapts, because `install` runs at ``import verl`` in each
of the dozen processes of a run, and most of them never load the engines, the models or the checkpoint code.

Left out: FSDP1 (see `verl_grail.cpu.engine`), Megatron, tensor-parallel vLLM, sleep mode (vLLM has none on CPU).
"""

import functools
import importlib
import os
from types import ModuleType

import wrapt

PLATFORM = "cpu"
"""The value of ``VERL_PLATFORM`` that switches this package on, and verl's device name under it."""

REGISTRATIONS: tuple[tuple[str, str], ...] = (
    ("verl.plugin.platform", "verl_grail.cpu.platform"),
    ("verl.workers.engine.fsdp.transformer_impl", "verl_grail.cpu.engine"),
    ("verl.checkpoint_engine", "verl_grail.cpu.checkpoint_engine"),
)
"""(verl module, our module to import after it). Ours register themselves in their last line."""

PATCHES: tuple[tuple[str, str], ...] = (
    ("verl.utils.distributed", "verl_grail.cpu.patches:gloo_backend_string"),
    ("verl.utils.model", "verl_grail.cpu.patches:value_head_attention"),
    ("verl.utils.fsdp_utils", "verl_grail.cpu.patches:sharded_save_copies"),
)
"""(verl module, what to call with it once it is imported). wrapt imports the right-hand side only then."""

_installed = False


def _import(name: str, _verl_module: ModuleType) -> None:
    # An import and not a call: when someone imports our module first, it is half-way through importing verl's when
    # this hook fires, and has nothing to call yet. It registers itself when it gets to its end.
    importlib.import_module(name)


def enabled() -> bool:
    """Whether this process belongs to a CPU run. Read as verl/plugin/platform/platform_manager.py reads it."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == PLATFORM


def install() -> bool:
    """Arm the hooks if ``VERL_PLATFORM=cpu``; called once per process by `verl_grail.plugin`, harmless when repeated.

    Returns:
        Whether the CPU platform is active in this process.
    """
    global _installed
    if not enabled():
        return False
    if not _installed:
        _installed = True
        from verl_grail.cpu import patches

        patches.vllm_distribution_name()
        for module, ours in REGISTRATIONS:
            wrapt.register_post_import_hook(functools.partial(_import, ours), module)
        for module, patch in PATCHES:
            wrapt.register_post_import_hook(patch, module)
    return True
