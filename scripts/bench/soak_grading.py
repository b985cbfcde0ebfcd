"""Grade random responses and look for anything lost, late, leaking or wrong: ``python scripts/bench/soak_grading.py``.

Responses are made of LaTeX fragments, broken and whole, with boxes, thinking tags, other scripts, control characters
and answers that math-verify does not finish. Checked of each: a named outcome and the constant keys; of some: the gold
itself is right, and a gold with alternatives beside it is not. Prints a report and writes it as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import psutil
from rich.progress import track

from verl_grail.grading.compare import Outcome
from verl_grail.grading.grade import Grader
from verl_grail.grading.pool import default_workers, shared_pool

OUT = Path(__file__).parent / "results" / "soak_grading.json"
FRAGMENTS = (
    *(
        "\\frac{",
        "\\frac12",
        "\\sqrt{",
        "\\left(",
        "\\right)",
        "\\{",
        "\\}",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "$",
        "^",
        "_",
    ),
    *(
        "x",
        "y",
        "n",
        "E",
        "i",
        "e",
        "\\pi",
        "\\infty",
        "\\pm",
        "\\cdot",
        "\\times",
        "+",
        "-",
        "=",
        "<",
        "\\le ",
        "!",
        "%",
    ),
    *(
        "1",
        "2",
        "7",
        "12",
        "0.5",
        "1{,}000",
        "10^{9}",
        "2^{2^{5}}",
        "\\text{ cm}",
        "\\text{ and }",
        ", ",
        "; ",
        " ",
        ":",
    ),
    *(
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\\\",
        "&",
        "\\cup ",
        "\\in ",
        "\\mathbb{R}",
        "\\log",
        "\\sin",
        "\\int",
        "\\sum",
    ),
    *("\\boxed", "\\overline{3}", "^\\circ", "\\%", "(A)", "\\textbf{(E)}", "_2", "\\binom{5}{2}", "\\mid ", "\\$"),
    *(
        "é",
        "日本",
        "😀",
        "\x00",
        "\x1b",
        "\u200b",
        "\ud800",
        "½",
        "−",
        "٣",
        "\\unknown",
        "#",
        "~",
        "`",
        "or",
        "percent",
    ),
)
WRAPPERS = (
    "{}",
    "so \\boxed{{{}}}",
    "\\boxed{{{}}}.",
    "<think>{}</think> \\boxed{{7}}",
    "\\boxed{{{}",
    "\\boxed {}",
    "$${}$$",
)
GOLDS = (
    "7",
    "x+1",
    "\\frac{1}{2}",
    "(0, 1]",
    "\\{1, 2\\}",
    "1, 2",
    "E",
    "28\\%",
    "\\pi/4",
    "2x+3y=6",
    "\\sqrt{2}",
    "even",
)
HANGING = ("7 + 5^{5^{5^{5^{5}}}}", "10^{10^{10}}+x", "(10^9)!!", "\\sum_{n=1}^{10^{12}} \\sin(n)^{n}")
_PORTION = 500


@dataclass(frozen=True)
class Case:
    """A response, its gold, and the outcome that is certain (None: any)."""

    response: str
    gold: str
    certain: bool | None = None


def random_text(rng: random.Random, most: int = 12) -> str:
    """Fragments in a row."""
    return "".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(1, most)))


def random_case(rng: random.Random, hanging: float = 0.001) -> Case:
    """One response and its gold."""
    kind = rng.random()
    if kind < hanging:
        return Case(f"\\boxed{{{rng.choice(HANGING)}}}", "7")
    if kind < 0.15:
        gold = rng.choice(GOLDS)
        return Case(f"{random_text(rng)} \\boxed{{{gold}}}" if rng.random() < 0.5 else f"\\boxed{{{gold}}}", gold, True)
    if kind < 0.25:
        gold, other = rng.randint(2, 9999), rng.randint(10000, 99999)
        between = rng.choice((", ", " \\text{ or } ", " or ", "; ", " \\lor ", " = ", " \\pm "))
        return Case(f"\\boxed{{{gold}{between}{other}}}", str(gold), False)
    response = "".join(
        rng.choice(WRAPPERS).replace("{}", random_text(rng)).replace("{{", "{").replace("}}", "}")
        for _ in range(rng.randint(1, 3))
    )
    return Case(
        response * (rng.random() < 0.999 or 2000), rng.choice(GOLDS) if rng.random() < 0.7 else random_text(rng)
    )


def violation(case: Case, grader: Grader) -> tuple[str, float, str | None]:
    """Outcome, seconds, and what is wrong with the result (None: nothing)."""
    start = time.perf_counter()
    verdict = grader.grade(case.response, case.gold)
    seconds = time.perf_counter() - start
    reward = verdict.as_reward()
    if not all(isinstance(v, (float, str)) for v in reward.values()):
        return verdict.outcome.value, seconds, f"keys {reward}"
    right = verdict.outcome is Outcome.CORRECT
    if case.certain is not None and right is not case.certain and verdict.outcome is not Outcome.TIMEOUT:
        return verdict.outcome.value, seconds, f"{case} gave {verdict}"
    return verdict.outcome.value, seconds, None


def soak(n: int, seed: int, threads: int, seconds: float) -> dict:
    """Grade ``n`` random responses."""
    grader = Grader(seconds=seconds)
    counts: Counter[str] = Counter()
    waits, wrong = np.zeros(n), []
    this = psutil.Process(os.getpid())
    grader.grade("\\boxed{x+1}", "1+x")
    before = this.memory_info().rss

    def one(i: int) -> None:
        outcome, waits[i], trouble = violation(random_case(random.Random(seed * 1_000_003 + i)), grader)
        counts[outcome] += 1
        if trouble:
            wrong.append((i, trouble))

    start = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:  # in portions: n futures at once would count as growth
        for portion in track(range(0, n, _PORTION), "grading"):
            list(pool.map(one, range(portion, min(portion + _PORTION, n))))
    total = time.perf_counter() - start
    after = this.memory_info().rss
    server = shared_pool(default_workers(), seconds, grader.memory_mb)._server
    p50, p99, p999 = map(float, np.percentile(waits, [50, 99, 99.9]))
    return {
        "responses": n,
        "graded": sum(counts.values()),
        "outcomes": dict(counts.most_common()),
        "violations": wrong[:20],
        "p50_s": p50,
        "p99_s": p99,
        "p999_s": p999,
        "max_s": float(waits.max()),
        "per_s": n / total,
        "caller_grew_mb": (after - before) / 2**20,
        "server_mb": psutil.Process(server.pid).memory_info().rss / 2**20 if server else None,
    }


def main() -> None:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0, help="deadline of one answer (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    report = {
        "command": f"python scripts/bench/soak_grading.py --n {args.n} --seed {args.seed} --seconds {args.seconds}",
        "machine": {"cpus": psutil.cpu_count(), "machine": platform.machine(), "python": platform.python_version()},
        "versions": {p: metadata.version(p) for p in ("math-verify", "sympy", "pebble")},
        **soak(args.n, args.seed, args.threads, args.seconds),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=True) + "\n")
    print(json.dumps(report, indent=1, ensure_ascii=True))
    raise SystemExit(1 if report["violations"] or report["graded"] != args.n else 0)


if __name__ == "__main__":
    main()
