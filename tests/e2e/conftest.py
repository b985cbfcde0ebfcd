"""One Ray cluster and one warm-started tiny model for all end-to-end tests; each run is verl's own command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from verl_grail.cpu.cluster import ray_node
from verl_grail.cpu.overrides import cpu_env, cpu_overrides
from verl_grail.cpu.preloaded import serving

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.e2e)


@dataclass
class Run:
    """A finished ``python -m verl.trainer.main_ppo``."""

    folder: Path
    log: str

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """Logged metrics by step."""
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return {r["step"]: r["data"] for r in map(json.loads, lines)}

    def rollouts(self, step: int) -> list[dict]:
        """Dumped rollouts of a step."""
        return [json.loads(line) for line in (self.folder / "rollouts" / f"{step}.jsonl").read_text().splitlines()]


@pytest.fixture(scope="session")
def task() -> Path:
    """The demo's task and warm-started model, in its fast size; made once, kept between test runs."""
    out = ROOT / ".cache" / "task-fast"
    command = [sys.executable, str(ROOT / "scripts/demo/prepare.py"), "--out", str(out), "--fast"]
    subprocess.run(command, check=True, env={**os.environ, "VERL_PLATFORM": "cpu"})
    return out


@pytest.fixture(scope="session")
def cluster():
    """Address of one Ray node with three slots (two trainer ranks and a standalone rollout server at most)."""
    with ray_node(n_ranks=3, object_store_bytes=200_000_000) as address:
        yield address


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory):
    """A ``python`` with the libraries imported, for runs on `cluster`. Others start every process from nothing."""
    with serving(tmp_path_factory.mktemp("preload") / "log.txt") as python:
        yield python


def task_overrides(task: Path, n_ranks: int, mode: str, **sizes) -> list[str]:
    """Overrides of a small run on the demo's task."""
    card = json.loads((task / "task.json").read_text())
    sizes = {"train_batch_size": 8, "group_size": 4, "micro_batch_size": 8, "lr": 1e-4, **sizes}
    stock = mode.removeprefix("grail_")
    overrides = cpu_overrides(
        str(task / "model"),
        n_ranks,
        trainer_mode=stock,
        prompt_length=card["max_prompt_length"],
        response_length=card["max_response_length"],
        **sizes,
    )
    overrides = [o for o in overrides if "ray_init" not in o]
    return [
        *overrides,
        f"trainer.v1.trainer_mode={mode}",
        f"data.train_files={task / 'train.parquet'}",
        f"data.val_files={task / 'val.parquet'}",
        "data.shuffle=False",
        f"reward.custom_reward_function.path={ROOT / 'reward_fns/boxed_number.py'}",
        "trainer.total_epochs=1",
        "trainer.val_before_train=False",
        "trainer.test_freq=-1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
    ]


def run_overrides(folder: Path, address: str | None, steps: int) -> list[str]:
    """Where a run finds its cluster (None: in RAY_ADDRESS), and where it leaves what it writes."""
    env = "+ray_kwargs.ray_init.runtime_env.env_vars"
    return [
        *([f"+ray_kwargs.ray_init.address={address}"] if address else []),
        # the trainer runs in a worker of the cluster, which does not see this command's environment
        f"{env}.VERL_FILE_LOGGER_PATH={folder}/metrics.jsonl",
        f"{env}.TENSORBOARD_DIR={folder}/board",
        f"{env}.WANDB_DIR={folder}",
        f"{env}.WANDB_MODE=offline",
        "ray_kwargs.ray_init.num_cpus=null",
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"trainer.rollout_data_dir={folder}/rollouts",
        "trainer.logger=[console,file]",
        f"hydra.run.dir={folder}/hydra",
    ]


def launch(command: list[str], folder: Path, ok: bool | None = True, **env: str) -> Run:
    """Run a command to its end. ``ok``: whether it has to succeed (None: see for yourself)."""
    env = {**os.environ, **cpu_env(), **env}
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600)
    log = done.stdout + done.stderr
    (folder / "log.txt").write_text(log)
    if ok is not None:
        assert (done.returncode == 0) == ok, log[-6000:]
    return Run(folder, log)


@pytest.fixture(scope="session")
def verl(task, cluster, preloaded, tmp_path_factory):
    """Run verl's trainer: ``verl(name, overrides, mode=..., n_ranks=..., steps=..., folder=...)``.

    ``without``: texts; overrides of the small run that hold one of them are left out. ``address``: another cluster;
    ``env``: environment of the command.
    """

    def run(
        name,
        overrides=(),
        mode="grail_sync",
        n_ranks=1,
        steps=2,
        folder=None,
        ok=True,
        data=None,
        without=(),
        address=cluster,
        env=None,
        **sizes,
    ) -> Run:
        folder = folder or tmp_path_factory.mktemp(name)
        args = [o for o in task_overrides(data or task, n_ranks, mode, **sizes) if not any(w in o for w in without)]
        args += [*run_overrides(folder, address, steps), *overrides]
        python = [sys.executable]
        if address == cluster:
            python = preloaded.command
            args += preloaded.overrides
        return launch([*python, "-m", "verl.trainer.main_ppo", *args], folder, ok, **(env or {}))

    return run
