"""vLLM's side of the CPU platform: the entry point ``vllm.general_plugins``, called in every vLLM process."""

import wrapt

from verl_grail.cpu import enabled


def register() -> None:
    """Keep vLLM's weights writable for the trainer's sync (`patches.keep_linear_weights`); nothing on other platforms.

    vLLM asks plugins to bear repeated calls (vllm/plugins/__init__.py:load_general_plugins); the patch marks itself.
    """
    if enabled():
        wrapt.register_post_import_hook(
            "verl_grail.cpu.patches:keep_linear_weights", "vllm.model_executor.layers.utils"
        )
