"""Rollouts graded per second: reward_fns/math_boxed.py, verl's math_verify scorer, and plain sequential math-verify.

    python scripts/bench/grading.py                 a few minutes; writes scripts/bench/results/grading.json

The same responses for all three on the same machine, with 0 %, 1 % and 10 % of them holding an answer that math-verify
does not finish. Ours and verl's are called from threads, as verl's reward workers call them; the third is one process
and no pool. Ratios are what to look at: the times are this machine's, and depend on its load.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(__file__).parent / "results" / "grading.json"
SENTENCES = (
    "Let us look at the equation and simplify both sides. ",
    "Since $a + b = 7$ and $ab = 12$, the numbers are roots of $t^2 - 7t + 12$. ",
    "We check the case $n = 3$ by hand and find \\( 3^2 + 1 = 10 \\). ",
    "Therefore the sum is $\\frac{n(n+1)}{2}$, which gives the bound. ",
)


def make_inputs(n: int, share: float, seed: int) -> list[tuple[str, str, bool | None]]:
    """Responses, golds and right verdicts (None: the answer hangs); a mix of what maths problems answer with."""
    rng = random.Random(seed)
    hung = set(rng.sample(range(n), round(share * n)))
    rows = []
    for i in range(n):
        a, b, c = rng.randint(2, 99), rng.randint(2, 99), rng.randint(2, 9)
        gold, same = rng.choice(
            [
                (f"{a * b}", f"{a * b}"),
                (f"{a}", f"{a}"),
                (f"\\frac{{{a}}}{{{c}}}", f"\\dfrac{{{2 * a}}}{{{2 * c}}}"),
                (f"{a}.5", f"{2 * a + 1}/2"),
                (f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b}}}"),
                (f"(x+{a})^2", f"x^2+{2 * a}x+{a * a}"),
                (f"({a}, {a + b}]", f"{a} < x \\le {a + b}"),
                (f"\\frac{{{a}\\pi}}{{{c}}}", f"\\pi \\cdot \\frac{{{a}}}{{{c}}}"),
            ]
        )
        right = rng.random() < 0.5
        answer = same if right else f"{a + b + 1}"
        if i in hung:
            # a tower of powers, and one power that does not fit into memory
            answer = f"{a} + 5^{{5^{{5^{{5^{{5}}}}}}}}" if len(rows) % 2 else f"{a} + 7^{{10^{{10}}}}"
        text = "".join(rng.choice(SENTENCES) for _ in range(rng.randint(5, 25)))
        rows.append((f"{text}So the answer is \\boxed{{{answer}}}.", gold, None if i in hung else answer == same))
    return rows


def ours(seconds: float) -> Callable[[str, str], float]:
    """reward_fns/math_boxed.py as verl loads it."""
    spec = importlib.util.spec_from_file_location("math_boxed", ROOT / "reward_fns" / "math_boxed.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return lambda text, gold: module.compute_score("bench", text, gold, {}, seconds=seconds)["score"]


def verls(_seconds: float) -> Callable[[str, str], float]:
    """verl/utils/reward_score/math_verify.py: four spawned workers, math-verify's own timeouts."""
    from verl.utils.reward_score.math_verify import compute_score

    return compute_score


def plain(seconds: float) -> Callable[[str, str], float]:
    """math-verify by itself, whole response, its own timeouts."""
    from math_verify import parse, verify

    def grade(text: str, gold: str) -> float:
        limit = int(seconds)
        g = parse(f"\\boxed{{{gold}}}", parsing_timeout=limit)
        return float(verify(g, parse(text, parsing_timeout=limit), timeout_seconds=limit))

    return grade


GRADERS = {"math_boxed": (ours, True), "verl math_verify": (verls, True), "math-verify, sequential": (plain, False)}


def run(grade: Callable[[str, str], float], threads: int, rows: list) -> dict[str, float]:
    """Throughput, latency and agreement on one set of responses; the grader is warm."""
    waits = np.zeros(len(rows))
    scores = np.full(len(rows), np.nan)

    def one(i: int) -> None:
        start = time.perf_counter()
        scores[i] = grade(rows[i][0], rows[i][1])
        waits[i] = time.perf_counter() - start

    start = time.perf_counter()
    if threads == 1:
        for i in range(len(rows)):
            one(i)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(one, range(len(rows))))
    total = time.perf_counter() - start
    good = [i for i, row in enumerate(rows) if row[2] is not None]
    as_expected = sum(scores[i] == float(rows[i][2]) for i in good)
    p50, p95, p99 = map(float, np.percentile(waits[good], [50, 95, 99]))
    return {
        "rollouts_per_s": len(rows) / total,
        "p50_s": p50,
        "p95_s": p95,
        "p99_s": p99,
        "max_s": float(waits.max()),
        "good": len(good),
        "good_as_expected": int(as_expected),
        "lost": int(np.isnan(scores).sum()),
    }


def main() -> None:
    """Run all graders on all shares, in turn, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200, help="responses (default: %(default)s)")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.01, 0.1])
    parser.add_argument("--seconds", type=float, default=5.0, help="deadline of one answer (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=8, help="calls at a time (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    graders = {name: (make(args.seconds), pooled) for name, (make, pooled) in GRADERS.items()}
    for grade, pooled in graders.values():  # start the pools
        with ThreadPoolExecutor(args.threads if pooled else 1) as pool:
            texts = [f"\\boxed{{x+{i}}}" for i in range(16)]
            if pooled:
                list(pool.map(grade, texts, ["y"] * 16))
            else:
                grade(texts[0], "y")
    results = []
    for share in args.shares:
        rows = make_inputs(args.n, share, seed=0)
        for name, (grade, pooled) in graders.items():
            result = {"share_hanging": share, "grader": name, **run(grade, args.threads if pooled else 1, rows)}
            results.append(result)
            print({k: round(v, 3) if isinstance(v, float) else v for k, v in result.items()}, flush=True)
    machine = {"cpus": psutil.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
    versions = {p: metadata.version(p) for p in ("math-verify", "sympy", "verl", "pebble")}
    command = f"python scripts/bench/grading.py --n {args.n} --seconds {args.seconds} --threads {args.threads}"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    report = {"command": command, "machine": machine, "versions": versions, "results": results}
    args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
