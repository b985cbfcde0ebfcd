"""Loaded in verl's trainer ranks through ``actor_rollout_ref.model.external_lib``; does what the environment asks for.

HOOK_WHERE=FOLDER   leave a file FOLDER/RANK.json: the address of the rank's node, and the prompts of its first pass
HOOK_KILL=N         rank 1 is killed in the middle of its Nth signal pass
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path


def _leave_traces(folder: str) -> None:
    import ray

    from verl_grail.signals.fsdp import SignalPass

    path, run = Path(folder) / f"{os.environ['RANK']}.json", SignalPass.run

    def traced(self, data):
        if not path.exists():
            prompts = [p.tolist() for p in data["prompts"].unbind()]
            path.write_text(json.dumps({"ip": ray.util.get_node_ip_address(), "prompts": prompts}))
        return run(self, data)

    SignalPass.run = traced


def _kill_in_pass(number: int) -> None:
    from verl_grail.signals.fsdp import SignalPass

    run, micro_batch, passes = SignalPass.run, SignalPass._micro_batch, []

    def counted(self, data):
        passes.append(self)
        return run(self, data)

    def killed(self, *args, **kwargs):
        done = micro_batch(self, *args, **kwargs)
        if len(passes) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    SignalPass.run, SignalPass._micro_batch = counted, killed


if "RANK" in os.environ:
    if "HOOK_WHERE" in os.environ:
        _leave_traces(os.environ["HOOK_WHERE"])
    if "HOOK_KILL" in os.environ and os.environ["RANK"] == "1":
        _kill_in_pass(int(os.environ["HOOK_KILL"]))
