"""Which versions and which machine a results file comes from; no names of hosts or folders."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import torch


def versions_and_machine(packages: Sequence[str]) -> dict[str, Any]:
    """``versions`` of installed packages, and the ``machine``: processors, architecture, Python, threads of torch."""
    return {
        "versions": {name: metadata.version(name) for name in packages},
        "machine": {
            "cpus": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        },
    }
