"""verl's whole trainer, with a real vLLM, on a machine without an accelerator.

verl 0.9.1 lets a plugin register a platform; "cpu" is not among its own. `install` adds it, together with the FSDP2
engines, a weight-transfer backend for ``separate_async`` and the few monkeypatches of `verl_grail.cpu.patches`. It
does so only where the environment says ``VERL_PLATFORM=cpu``: under any other value nothing is registered or patched.

Every piece hangs on a post-import hook of the verl module it adapts, because `install` runs at ``import verl`` in each
of the dozen processes of a run, and most of them never load the engines, the models or the checkpoint code.

Left out: FSDP1 (see `verl_grail.cpu.engine`), Megatron, tensor-parallel vLLM, sleep mode (vLLM has none on CPU).
"""

import os

import wrapt

PLATFORM = "cpu"
"""The value of ``VERL_PLATFORM`` that switches this package on, and verl's device name under it."""

HOOKS: tuple[tuple[str, str], ...] = (
    ("verl.plugin.platform", "verl_grail.cpu.platform:register"),
    ("verl.utils.distributed", "verl_grail.cpu.patches:gloo_backend_string"),
    ("verl.utils.model", "verl_grail.cpu.patches:value_head_attention"),
    ("verl.utils.fsdp_utils", "verl_grail.cpu.patches:sharded_save_copies"),
    ("verl.workers.engine.fsdp.transformer_impl", "verl_grail.cpu.engine:register"),
    ("verl.checkpoint_engine", "verl_grail.cpu.checkpoint_engine:register"),
)
"""(verl module, what to call with it once it is imported). wrapt imports the right-hand side only then."""

_installed = False


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
        for module, hook in HOOKS:
            wrapt.register_post_import_hook(hook, module)
    return True
