r"""GAR's cosine of solutions by the same and by another method: ``PYTHONPATH=. python scripts/claims/cosine.py``.

``solutions.json``: problems with two methods each and two differently worded solutions by each method, all right, all
ending alike. Every solution gets GAR's gradient-activation vector, teacher-forced, over its own tokens:

- ``chat``: as GAR has it, after the question in the model's chat template;
- ``plain``: after the question alone, without a template;
- ``none``: after the first token of a chat and nothing else;
- ``raw_gradient``: as ``chat``, without the product with the activation (the paper's ablation).

Cosines are of two solutions of one problem by the *same* method, of one problem by *other* methods, and of *other
problems*. Intervals: 95 %, by bootstrap over problems. Same and other method are compared problem by problem, by
Wilcoxon's signed-rank test and a paired t test.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import shared
import torch
from scipy.stats import spearmanr, ttest_rel, wilcoxon

from tests.signals.tiny import Row
from verl_grail.core.gar import normalise

FILE = Path(__file__).with_name("solutions.json")
SYSTEM = "Solve the problem step by step. Put the final number in \\boxed{}."
CONDITIONS = ("chat", "plain", "none", "raw_gradient")


@dataclass(frozen=True)
class Solution:
    """One solution: number of its problem, name of its method, its text and the question."""

    problem: int
    method: str
    text: str
    question: str


def read(file: Path = FILE) -> list[Solution]:
    """All solutions of the file, problem by problem."""
    return [
        Solution(i, method["name"], text, problem["question"])
        for i, problem in enumerate(json.loads(file.read_text()))
        for method in problem["methods"]
        for text in method["solutions"]
    ]


def prompt_of(solution: Solution, tokenizer: Any, condition: str) -> list[int]:
    """Token ids before the solution."""
    if condition == "none":
        return [tokenizer.bos_token_id]
    if condition == "plain":
        return tokenizer.encode(f"{solution.question}\n", add_special_tokens=False)
    chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": solution.question}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    return tokenizer.encode(text, add_special_tokens=False)


def rows_of(solutions: list[Solution], tokenizer: Any, condition: str) -> list[Row]:
    """Prompt and solution; the vector is over the solution."""
    rows = []
    for solution in solutions:
        ids = tokenizer.encode(solution.text, add_special_tokens=False)
        rows.append(Row(prompt_of(solution, tokenizer, condition), ids, vector=(0, len(ids))))
    return rows


def overlap(a: list[int], b: list[int]) -> float:
    """Jaccard index of the sets of tokens of two solutions."""
    return len(set(a) & set(b)) / len(set(a) | set(b))


def by_problem(matrix: np.ndarray, solutions: list[Solution]) -> dict[str, np.ndarray]:
    """Mean (problems,) of a symmetric (solutions, solutions) matrix over the pairs of each kind of every problem."""
    problems = np.array([s.problem for s in solutions])
    found: dict[str, list[float]] = {"same": [], "other": [], "other problem": []}
    for p in np.unique(problems):
        mine = np.flatnonzero(problems == p)
        pairs = list(combinations(mine, 2))
        same = [solutions[i].method == solutions[j].method for i, j in pairs]
        values = np.array([matrix[i, j] for i, j in pairs])
        found["same"].append(values[same].mean())
        found["other"].append(values[~np.array(same)].mean())
        found["other problem"].append(matrix[np.ix_(mine, np.flatnonzero(problems != p))].mean())
    return {name: np.array(values) for name, values in found.items()}


def beyond_words(matrix: np.ndarray, words: np.ndarray, solutions: list[Solution], seed: int) -> dict[str, Any]:
    """Cosine of a problem's pairs = a(problem) + b x overlap of tokens + c x same method, by least squares.

    Returns:
        ``same_method`` c with its interval, ``overlap`` b, and the Spearman correlation of cosine and overlap within
        the problems (both less their problem's mean).
    """
    y, x, problem = [], [], []
    for p in sorted({s.problem for s in solutions}):
        pairs = list(combinations([i for i, s in enumerate(solutions) if s.problem == p], 2))
        same = [float(solutions[i].method == solutions[j].method) for i, j in pairs]
        values = np.array([[matrix[i, j], words[i, j], m] for (i, j), m in zip(pairs, same, strict=True)])
        values -= values.mean(0)
        y.append(values[:, 0])
        x.append(values[:, 1:])
        problem.append(p)
    products = np.array([np.concatenate([a.T @ a, (a.T @ b)[:, None]], 1) for a, b in zip(x, y, strict=True)])
    draws = shared.resamples(len(problem), seed)
    sums = np.einsum("bp,pij->bij", draws, products)
    samples = np.linalg.solve(sums[:, :, :2], sums[:, :, 2:])[..., 0]
    whole = products.sum(0)
    b, c = np.linalg.solve(whole[:, :2], whole[:, 2])
    return {
        "same_method": shared.estimate(c, samples[:, 1]),
        "overlap": shared.estimate(b, samples[:, 0]),
        "spearman_with_overlap": round(
            float(spearmanr(np.concatenate(y), np.concatenate([a[:, 0] for a in x])).statistic), 4
        ),
    }


def compare(kinds: dict[str, np.ndarray], seed: int) -> dict[str, Any]:
    """Means with intervals, ratio and difference of same and other, and the paired tests over problems."""
    n = len(kinds["same"])
    draws = shared.resamples(n, seed) / n
    out = {name: shared.estimate(values.mean(), draws @ values) for name, values in kinds.items()}
    same, other = kinds["same"], kinds["other"]
    out["same - other"] = shared.estimate((same - other).mean(), draws @ (same - other))
    out["same / other"] = shared.estimate(same.mean() / other.mean(), (draws @ same) / (draws @ other))
    out["problems_with_same_above_other"] = int((same > other).sum())
    out["wilcoxon_p"] = float(f"{wilcoxon(same, other).pvalue:.3g}")
    out["paired_t_p"] = float(f"{ttest_rel(same, other).pvalue:.3g}")
    out["cohens_dz"] = round(float((same - other).mean() / (same - other).std(ddof=1)), 3)
    return out


def vectors(model: Any, rows: list[Row], raw: bool) -> torch.Tensor:
    """Normalised gradient-activation vectors (rows, d)."""
    found = shared.signals(model, rows, batch=8, vectors=True, raw_gradient=raw, log_probs=False)
    return normalise(torch.stack([result["gradient_vector"] for result in found]))


def draw(content: dict[str, Any]) -> None:
    """docs/images/claims_cosine.png."""
    drawing, (ax,) = shared.figure(1, (7.0, 3.4))
    kinds = ("same", "other", "other problem")
    names = [*content["conditions"]]
    for k, (kind, colour) in enumerate(zip(kinds, shared.COLOURS, strict=True)):
        found = [content["conditions"][name][kind] for name in names]
        mean = np.array([f["mean"] for f in found])
        error = np.abs(np.array([[f["low"], f["high"]] for f in found]).T - mean)
        label = "other problem" if kind == "other problem" else f"same problem, {kind} method"
        at = np.arange(len(names)) + (k - 1) * 0.25
        ax.bar(at, mean, 0.23, yerr=error, capsize=3, color=colour, label=label)
    ax.axhline(0, color="#888888", linewidth=0.8)
    ax.set_xticks(np.arange(len(names)), [n.replace("_", " ") for n in names])
    ax.set_ylabel("cosine of two solutions")
    ax.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    shared.save(drawing, "claims_cosine")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=shared.WORK)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, tokenizer = shared.load_model(args.work, args.threads)
    solutions = read()
    content: dict[str, Any] = shared.card(threads=args.threads, seed=args.seed)
    ids = [tokenizer.encode(s.text, add_special_tokens=False) for s in solutions]
    words = np.array([[overlap(a, b) for b in ids] for a in ids])
    content["solutions"] = {
        "problems": len({s.problem for s in solutions}),
        "solutions": len(solutions),
        "tokens": round(float(np.mean([len(i) for i in ids])), 1),
        "overlap": {k: round(float(v.mean()), 4) for k, v in by_problem(words, solutions).items()},
    }
    content["conditions"] = {}
    for condition in CONDITIONS:
        raw = condition == "raw_gradient"
        v = vectors(model, rows_of(solutions, tokenizer, "chat" if raw else condition), raw).double()
        matrix = (v @ v.T).numpy()
        result = compare(by_problem(matrix, solutions), args.seed)
        result["beyond_words"] = beyond_words(matrix, words, solutions, args.seed)
        content["conditions"][condition] = result
    shared.write("cosine", content)
    draw(content)


if __name__ == "__main__":
    main()
