"""Train the demo's methods with verl's own command line, then report.

``python scripts/demo/train.py --task DIR --out DIR``: each method is one ``python -m verl.trainer.main_ppo`` (Ray,
FSDP2 actor, vLLM rollout) on the same data, model and seed. Most of a short run would be the imports of its dozen
processes: they start with the libraries imported (`verl_grail.cpu.preload`), on one Ray node. Runs go one after the
other: at the same time they would meet in TransferQueue, or in verl's weight sync if each had a cluster. Progress is
read from the metrics file that verl writes. ``DIR/<method>/`` keeps metrics, rollout dumps and the log; the report goes
to ``DIR/report``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from verl_grail.cpu.cluster import ray_node
from verl_grail.cpu.overrides import cpu_env, cpu_overrides
from verl_grail.cpu.preloaded import Python, serving
from verl_grail.report import write_report

ROOT = Path(__file__).resolve().parents[2]
GRAIL = ["algorithm.adv_estimator=grail"]
# the same base advantage as GRAIL's: Dr. GRPO, without division by the group's standard deviation
GRPO = ["algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=False"]
GAR = ["reward.reward_manager.name=gar"]
METHODS = {"grpo": GRPO, "grail": GRAIL, "gar": GRPO + GAR, "grail_gar": GRAIL + GAR}
OTHERS = {
    "grail_all": [*GRAIL, "+algorithm.grail.rollouts=all"],
    "grail_correct": [*GRAIL, "+algorithm.grail.rollouts=correct"],
    "oar_g": ["algorithm.adv_estimator=oar_g"],
}
"""On request (``--methods``)."""
console = Console()


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    steps: int
    prompts: int
    group: int
    micro_batch: int
    lr: float
    val_every: int
    updates: int = 1
    bucket_megabytes: int = 16
    kv_cache_bytes: int = 64 << 20
    ranks: int = 1
    val_samples: int = 1
    """Of each validation problem."""


SIZES = {
    "normal": Size(steps=30, prompts=16, group=8, micro_batch=32, lr=1e-4, val_every=10),
    "fast": Size(steps=8, prompts=8, group=8, micro_batch=32, lr=1e-4, val_every=8),
    "real": Size(
        steps=3, prompts=2, group=8, micro_batch=4, lr=1e-5, val_every=3,
        bucket_megabytes=256, kv_cache_bytes=512 << 20,
    ),
}  # fmt: skip


def run_overrides(
    address: str, task: Path, folder: Path, method: str, size: Size, seed: int, extra: list[str]
) -> list[str]:
    """Hydra overrides of one run on the cluster at ``address``."""
    card = json.loads((task / "task.json").read_text())
    length = card["max_response_length"]
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    return [
        *cpu_overrides(
            str(task / "model"),
            size.ranks,
            prompt_length=card["max_prompt_length"],
            response_length=length,
            train_batch_size=size.prompts,
            micro_batch_size=size.micro_batch,
            group_size=size.group,
            lr=size.lr,
            bucket_megabytes=size.bucket_megabytes,
            kv_cache_bytes=size.kv_cache_bytes,
            address=address,
        ),
        # the trainer runs in a worker of the cluster, which does not see the command's environment
        f"+ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH={folder}/metrics.jsonl",
        "trainer.v1.trainer_mode=grail_sync",
        *(METHODS | OTHERS)[method],
        f"data.train_files={task}/train.parquet",
        f"data.val_files={task}/val.parquet",
        f"data.seed={seed}",
        f"{rollout}.seed={seed}",
        f"reward.custom_reward_function.path={ROOT}/reward_fns/boxed_number.py",
        f"{actor}.ppo_mini_batch_size={size.prompts // size.updates}",
        # Dr. GRPO's loss: a sum over tokens, divided by batch size and longest response
        f"{actor}.loss_agg_mode=seq-mean-token-sum-norm",
        f"{actor}.loss_scale_factor={length}",
        f"{actor}.clip_ratio_low=0.2",
        f"{actor}.clip_ratio_high=0.28",
        # validation samples as training does: greedy accuracy would mostly show how far sampling has sharpened
        f"{rollout}.val_kwargs.do_sample=True",
        f"{rollout}.val_kwargs.temperature=1.0",
        f"{rollout}.val_kwargs.n={size.val_samples}",
        f"trainer.total_training_steps={size.steps}",
        "trainer.total_epochs=1000",
        "trainer.val_before_train=True",
        f"trainer.test_freq={size.val_every}",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"trainer.rollout_data_dir={folder}/rollouts",
        "trainer.logger=[console,file]",
        "trainer.project_name=verl-grail-demo",
        f"trainer.experiment_name={method}",
        f"hydra.run.dir={folder}/hydra",
        *extra,
    ]


def start(
    python: Python, address: str, task: Path, folder: Path, method: str, size: Size, seed: int, extra: list[str]
) -> subprocess.Popen:
    """Start one run in the background; its output goes to ``folder/log.txt``."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in [folder / "metrics.jsonl", *folder.glob("rollouts/*.jsonl")]:
        old.unlink(missing_ok=True)
    validation = {"problems": _rows(task / "val.parquet"), "samples": size.val_samples}
    (folder / "val_n.json").write_text(json.dumps(validation))
    env = {**os.environ, **cpu_env()}
    command = [*python.command, "-m", "verl.trainer.main_ppo"]
    command += [*run_overrides(address, task, folder, method, size, seed, extra), *python.overrides]
    with (folder / "log.txt").open("w") as log:
        return subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=subprocess.STDOUT)


def _rows(path: Path) -> int:
    import pyarrow.parquet

    return pyarrow.parquet.read_metadata(path).num_rows


def last_metrics(folder: Path) -> tuple[int, dict]:
    """Latest logged step and its metrics; (-1, {}) before the first."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:  # verl is writing it
            continue
        return record["step"], record["data"]
    return -1, {}


def _status(folder: Path) -> str:
    step, m = last_metrics(folder)
    if step < 0:
        return "starting Ray, the actor and vLLM"
    acc = next((v for k, v in m.items() if k.startswith("val-core/") and "/acc/mean@" in k), None)
    parts = [f"accuracy {acc:.0%}" if acc is not None else f"reward {m.get('critic/rewards/mean', 0):.2f}"]
    if "grail/weight_std" in m:
        parts.append(f"weights ±{m['grail/weight_std']:.2f}")
    if "gar/cosine_mean" in m:
        parts.append(f"cosine {m['gar/cosine_mean']:.2f}")
    return ", ".join(parts)


def train(task: Path, out: Path, methods: list[str], size: Size, seed: int, extra: list[str]) -> list[str]:
    """Run the methods one after the other; returns those that failed."""
    failed = []
    columns = (TextColumn("{task.description:10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("{task.fields[status]}"))  # fmt: skip
    with (
        serving(out / "preload.log") as python,
        ray_node(n_ranks=size.ranks) as address,
        Progress(*columns, console=console, refresh_per_second=2) as progress,
    ):
        bars = {m: progress.add_task(m, total=size.steps, status="waiting", start=False) for m in methods}
        for method in methods:
            progress.start_task(bars[method])
            process = start(python, address, task, out / method, method, size, seed, extra)
            while process.poll() is None:
                time.sleep(0.5)
                step, _ = last_metrics(out / method)
                progress.update(bars[method], completed=max(step, 0), status=_status(out / method))
            step, _ = last_metrics(out / method)
            progress.update(bars[method], completed=max(step, 0), status=_status(out / method))
            progress.stop_task(bars[method])
            if process.returncode:
                failed.append(method)
                progress.update(bars[method], status=f"FAILED, see {out / method / 'log.txt'}")
    return failed


def main(argv: list[str] | None = None) -> int:
    """Entry point; arguments of the form ``key=value`` go to every run as Hydra overrides."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--task", type=Path, required=True, help="folder that prepare.py or real.py made")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs and the report")
    parser.add_argument("--size", choices=SIZES, default="normal")
    known = METHODS | OTHERS
    parser.add_argument("--methods", default=",".join(METHODS), help=f"comma-separated, of {', '.join(known)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--title", default="GRPO, GRAIL and GAR on multi-step arithmetic")
    args, overrides = parser.parse_known_args(argv)
    if unknown := [o for o in overrides if "=" not in o or o.startswith("-")]:
        parser.error(f"unknown arguments: {' '.join(unknown)}")
    methods = args.methods.split(",")
    if unknown := [m for m in methods if m not in known]:
        parser.error(f"unknown methods: {' '.join(unknown)}")
    task, out = args.task.resolve(), args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    console.print("importing the libraries once, for all processes of all runs")
    began = time.monotonic()
    failed = train(task, out, methods, SIZES[args.size], args.seed, overrides)
    for method in failed:
        console.print(f"[bold red]{method} failed[/]; the end of its log:")
        console.print("\n".join((out / method / "log.txt").read_text().splitlines()[-15:]), markup=False)
    done = [m for m in methods if m not in failed]
    if not done:
        return 1
    page = write_report(out, out / "report", args.title, done)
    console.print(f"plots and page: {page.parent}  (trained in {(time.monotonic() - began) / 60:.1f} min)")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
