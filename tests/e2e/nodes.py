"""Ray nodes of their own on this machine: 127.0.0.2, 127.0.0.3, ... are all its own (127.0.0.1 Ray replaces)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import venv
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from tests.e2e.conftest import ROOT
from verl_grail.cpu.overrides import cpu_env

OPEN = {"RAY_AUTH_MODE": "disabled"}
"""Environment of nodes and of what connects to them: by itself Ray wants a token wherever one was ever made."""
RESOURCES = ["--num-cpus=12", "--num-gpus=1", "--object-store-memory=100000000"]


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def end(process: subprocess.Popen) -> None:
    """End a process and all that it started."""
    family = [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
    for child in family:
        if child.is_running():
            child.kill()


@contextmanager
def ray_node(address: str | None, ip: str, python: str = sys.executable):
    """One node: the head where ``address`` is None. Yields the cluster's address."""
    port = free_port()
    where = ["--head", f"--port={port}", "--include-dashboard=false"] if address is None else [f"--address={address}"]
    command = [python, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    command += [*where, f"--node-ip-address={ip}", *RESOURCES]
    if address is None:
        command.append(f"--ray-client-server-port={free_port()}")
    with tempfile.NamedTemporaryFile("w") as log:
        env = {**os.environ, **cpu_env(), **OPEN}
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_for("Ray runtime started", Path(log.name), process)
            yield address or f"{ip}:{port}"
        finally:
            end(process)
            # sends whoever names no address to the last cluster, even a dead one
            left = Path("/tmp/ray/ray_current_cluster")
            if address is None and left.is_file() and left.read_text().strip() == f"{ip}:{port}":
                left.unlink()


def _wait_for(text: str, log: Path, process: subprocess.Popen, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if text in log.read_text():
            return
        time.sleep(0.2)
    raise AssertionError(f"no {text!r} in:\n{log.read_text()[-3000:]}")


@contextmanager
def ray_cluster(*ips: str):
    """Nodes at these addresses, the first of them the head. Yields the cluster's address."""
    with ExitStack() as stack:
        address = None
        for ip in ips:
            address = stack.enter_context(ray_node(address, ip))
        yield address


def site_without_plugin(folder: Path, version: str | None = None) -> str:
    """A Python with everything that this one has but the plugin, or with another version of it; returns its path."""
    venv.create(folder, with_pip=False, symlinks=True)
    (to,) = folder.glob("lib/python*/site-packages")
    (here,) = [Path(p) for p in sys.path if p.endswith("site-packages")][:1]
    for entry in here.iterdir():
        if "verl_grail" not in entry.name and not (to / entry.name).exists():
            (to / entry.name).symlink_to(entry)
    if version:
        (to / "verl_grail").symlink_to(ROOT / "verl_grail")
        (info,) = here.glob("verl_grail-*.dist-info")
        shutil.copytree(info, to / f"verl_grail-{version}.dist-info")
        metadata = to / f"verl_grail-{version}.dist-info" / "METADATA"
        lines = metadata.read_text().splitlines()
        metadata.write_text("\n".join(f"Version: {version}" if x.startswith("Version: ") else x for x in lines))
    return str(folder / "bin/python")
