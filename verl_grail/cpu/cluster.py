"""One Ray node for several CPU runs, which it saves starting one each.

For one after the other. verl 0.9.1 does not keep runs on one machine apart: those of one cluster share TransferQueue's
controller, and those of clusters of their own the socket of the weight sync, which is named after Ray's job
(verl/workers/rollout/vllm_rollout/vllm_rollout.py:140), and every cluster calls its first job the same.
"""

import contextlib
import os
from collections.abc import Iterator

from verl_grail.cpu.overrides import cpu_env


@contextlib.contextmanager
def ray_node(n_ranks: int, object_store_bytes: int = 200_000_000) -> Iterator[str]:
    """A cluster of one node in this process's name; yields the address for `cpu_overrides`.

    Args:
        n_ranks: trainer ranks and standalone rollout servers of the largest run.
        object_store_bytes: Ray's object store.
    """
    import ray

    before = {k: os.environ.get(k) for k in cpu_env()}
    try:
        os.environ.update(cpu_env())  # workers inherit the environment of the node, not of the command
        context = ray.init(
            address="local",
            num_cpus=24,  # slots: verl asks for one per process it starts
            num_gpus=n_ranks,
            include_dashboard=False,
            object_store_memory=object_store_bytes,
            log_to_driver=False,
        )
        yield context.address_info["gcs_address"]
    finally:
        ray.shutdown()
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value
