"""Runs the probe in every role on every node of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_grail.doctor import probe

NODE_ROLES = ("actor", "reward")
"""Roles that may be played on any node; the driver is looked at where the doctor runs, and on the head node."""


@dataclass(frozen=True)
class Node:
    """A living node of the cluster."""

    id: str
    ip: str
    gpus: float
    head: bool


def nodes() -> list[Node]:
    """Living nodes of the cluster that this process is connected to, the head first."""
    import ray

    found = [
        Node(
            n["NodeID"],
            n["NodeManagerAddress"],
            n["Resources"].get("GPU", 0),
            "node:__internal_head__" in n["Resources"],
        )
        for n in ray.nodes()
        if n["Alive"]
    ]
    return sorted(found, key=lambda n: (not n.head, n.ip))


def probe_cluster(address: str, seconds: float) -> list[dict[str, Any]]:
    """Reports of all roles on all nodes, in the order of `nodes`; a node that does not answer gives one with an error.

    Tasks take no CPU slot. An actor's takes a GPU where the node has one, as verl's workers do: without it Ray would
    hide the devices.

    Args:
        address: of the cluster, or "auto".
        seconds: how long to wait for an answer.

    Raises:
        ConnectionError: there is no such cluster, its Ray or Python is not this process's, or it wants a token.
    """
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", ignore_reinit_error=True)
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as e:  # none, another version, no token
        raise ConnectionError(f"{address}: {e}") from e
    # the node's own copy, if it has one, would be looked up by name and may be another version
    ray.cloudpickle.register_pickle_by_value(probe)
    try:
        return _gather(nodes(), seconds)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(probe)
        ray.shutdown()


def _gather(cluster: list[Node], seconds: float) -> list[dict[str, Any]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = []
    for node in cluster:
        for role in ("driver", *NODE_ROLES) if node.head else NODE_ROLES:
            task = ray.remote(probe.probe).options(
                num_cpus=0,
                num_gpus=1 if role == "actor" and node.gpus >= 1 else 0,
                max_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            asked.append((node, role, task.remote(role)))
    done, _ = ray.wait([a[2] for a in asked], num_returns=len(asked), timeout=seconds)
    reports = []
    for node, role, reference in asked:
        if reference not in done:
            ray.cancel(reference, force=True)
            why = "no answer" + (": are its GPUs taken?" if role == "actor" and node.gpus >= 1 else "")
            reports.append(_silent(node, role, f"{why} ({seconds:.0f} s)"))
            continue
        try:
            reports.append({**ray.get(reference), "ip": node.ip, "gpus": node.gpus})
        except ray.exceptions.RayError as e:
            reports.append(_silent(node, role, str(e).strip().splitlines()[-1]))
    return reports


def _silent(node: Node, role: str, why: str) -> dict[str, Any]:
    return {"host": "?", "ip": node.ip, "pid": None, "role": role, "errors": [("probe", why)]}
