"""Write the tables of docs/results.md: ``python scripts/docs_results.py [--check]``.

Only what stands between a block's markers, ``<!-- results: profile -->`` (any name of `BLOCKS`) and
``<!-- end of results -->``, is rewritten, from the results of ``scripts/claims`` and ``scripts/bench``; with
``--check`` nothing is, and the exit status is 1 if the page is stale.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))  # for a caller that imports this file from elsewhere

import docs_cost
from docs_cost import table
from docs_page import filled, write_or_check

SCRIPTS = Path(__file__).resolve().parent
PAGE, RESULTS = SCRIPTS.parent / "docs" / "results.md", SCRIPTS / "claims" / "results"
COST = SCRIPTS / "bench" / "results" / "side_by_side.json"
END = "<!-- end of results -->"


def cell(found: dict[str, Any], index: int | None = None, digits: int = 2) -> str:
    """An estimate with its interval; ``index``: of which entry, where there are several."""
    mean, low, high = (found[k] if index is None else found[k][index] for k in ("mean", "low", "high"))
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def profile(content: dict[str, Any]) -> str:
    """Rollouts, and weights by position under both readings."""
    sampled, used = content["sampled"], content["rollouts"]
    outcomes = ", ".join(f"{n} {name}" for name, n in sorted(sampled["outcomes"].items(), key=lambda i: -i[1]))
    text = (
        f"{sampled['rollouts']} rollouts of {sampled['problems']} problems were sampled ({outcomes}). Used: "
        f"{used['right']} right and {used['wrong']} wrong ones with an answer, of the {used['problems']} problems that "
        f"have both; {used['reasoning_tokens']:.0f} reasoning tokens on average; {used['with_several_boxes']} with "
        "more than one box."
    )
    verdicts = ("right", "wrong", "right - wrong")
    rows = []
    for reading, result in content["readings"].items():
        weights = result["weights"]
        shown = [(f"weight, tenth {k + 1} of 10", "profile", k) for k in (0, 2, 4, 6, 8, 9)]
        shown += [("rank correlation of position and weight", "trend", 0), ("digits less other tokens", "digits", 0)]
        rows += [[f"`{reading}`", name, *(cell(result[key][v], k) for v in verdicts)] for name, key, k in shown]
        spread = f"{weights['mean']:.2f} ± {weights['deviation']:.2f}"
        rows.append([f"`{reading}`", "all weights, mean ± deviation", spread, "", ""])
    differences = ", ".join(f"`{reading}`: {_largest(result)}" for reading, result in content["readings"].items())
    return (
        f"{text}\n\n{table(['reading', '', *verdicts], rows)}\n\n"
        f"Largest difference of right and wrong in a tenth, and tenths whose interval excludes zero: {differences}."
    )


def _largest(result: dict[str, Any]) -> str:
    found = result["profile"]["right - wrong"]
    clear = sum(low > 0 or high < 0 for low, high in zip(found["low"], found["high"], strict=True))
    return f"{max(map(abs, found['mean'])):.2f}, {clear} of {len(found['mean'])}"


def cosine(content: dict[str, Any]) -> str:
    """Cosines by kind of pair, for every condition."""
    what = content["solutions"]
    words = what["overlap"]
    text = (
        f"{what['problems']} problems, {what['solutions']} solutions of {what['tokens']:.0f} tokens on average. "
        f"Overlap of the sets of tokens (Jaccard): same method {words['same']:.2f}, other method {words['other']:.2f}, "
        f"other problem {words['other problem']:.2f}."
    )
    header = ["", "same method", "other method", "other problem", "same - other", "same / other"]
    header += ["problems with same > other", "p: Wilcoxon, t", "Cohen's dz", "same method at equal overlap"]
    rows = []
    for name, found in content["conditions"].items():
        cells = [cell(found[k]) for k in ("same", "other", "other problem", "same - other", "same / other")]
        tests = f"{found['wilcoxon_p']:.2g}, {found['paired_t_p']:.2g}"
        wins = f"{found['problems_with_same_above_other']} of {what['problems']}"
        beyond = cell(found["beyond_words"]["same_method"])
        rows.append([f"`{name}`", *cells, wins, tests, f"{found['cohens_dz']:.2f}", beyond])
    return f"{text}\n\n{table(header, rows)}"


def ntk(content: dict[str, Any]) -> str:
    """Error of the decomposition, and whole solutions."""
    rows = [
        [name, str(found["tokens"]), str(found["pairs"]), f"{found['max_relative_error']:.0e}"]
        for name, found in content["pairs_of_tokens"].items()
    ]
    whole = content["solutions"]
    n = whole["ntk"]
    text = (
        f"Whole solutions: NTK similarity {cell(n['same'])} for the same method and {cell(n['other'])} for the other "
        f"(ratio {cell(n['same / other'])}; Wilcoxon p {n['wilcoxon_p']:.2g}). Its rank correlation with GAR's cosine "
        f"over the {whole['pairs']} pairs of solutions of one problem is {cell(whole['spearman'])}. Of the "
        f"squared length of a solution's vector, the 10 largest of {whole['width']} dimensions hold "
        f"{100 * whole['peak']['gradient x activation']:.0f} % with the activation and "
        f"{100 * whole['peak']['gradient']:.0f} % without."
    )
    return f"{table(['model', 'tokens', 'pairs', 'largest relative error'], rows)}\n\n{text}"


def ig(content: dict[str, Any]) -> str:
    """Agreement and cost by number of steps."""
    used, cost = content["rollouts"], content["cost"]
    most = list(content["agreement"])[-1]
    header = ["steps", "rank correlation with gradient x activation", f"with {most} steps", "top fifth in common"]
    header += [f"with {most} steps", "mean difference of weights", "completeness gap (median)", "FLOPs of the pass"]
    rows = []
    for steps, found in content["agreement"].items():
        keys = ("spearman", "spearman_with_most_steps", "top_fifth", "top_fifth_with_most_steps", "weight_difference")
        name = "gradient x activation" if steps == "0" else steps
        flops = cost["to_gradient_activation"]["gradient_activation" if steps == "0" else steps]
        rows.append(
            [name, *(cell(found[k]) for k in keys), f"{100 * found['completeness_gap_median']:.0f} %", f"{flops:.2f}"]
        )
    text = (
        f"{used['right']} right and {used['wrong']} wrong rollouts. FLOPs are counted on one of {cost['tokens']} "
        "tokens, against the pass with gradient x activation, which is itself "
        f"{cost['to_forward_only']['gradient_activation']:.2f} times the pass without a backward."
    )
    return f"{text}\n\n{table(header, rows)}"


def seeds(content: dict[str, Any]) -> str:
    """Runs, final numbers by method, and every method against GRPO."""
    size, task, methods = content["settings"]["size"], content["task"], content["methods"]
    problems = task["arguments"]["val_size"]
    counts = sorted({len(found["seeds"]) for found in methods.values()})
    failures = sum(map(len, content["failures"].values()))
    text = (
        f"{content['runs_finished']} of {content['runs_wanted']} runs finished; tries that failed: {failures}"
        f"{_named(content)}. Seeds for each method: {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))}. "
        f"{size['steps']} steps of {size['prompts']} prompts x {size['group']} rollouts, Adam at {size['lr']:g}, "
        f"{task['parameters'] / 1000:.0f} thousand parameters, validation on {problems} problems, "
        f"{size['val_samples']} sample{'s' if size['val_samples'] > 1 else ''} each, at temperature 1."
    )
    header = ["", "validation before", f"after {size['steps']} steps", "gain", "training, last quarter", "response"]
    header += ["gradient norm", "cosine", "weight deviation"]
    names = ("val_accuracy", "val_gain", "train_accuracy", "response_length", "gradient_norm", "cosine")
    names += ("weight_deviation",)
    rows = []
    for method, found in methods.items():
        final = found["final"]
        cells = [cell(final[n], digits=1 if n == "response_length" else 3) if n in final else "" for n in names]
        rows.append([f"`{method}`", cell(found["val_curve"], 0, 3), *cells])
    compared = content["compared_with_grpo"]["val_accuracy"]
    against = ["", "difference to GRPO", "seeds above", "p: t, Wilcoxon", "by Holm", "found with 80 % power"]
    lines = [[f"`{method}`", *_compared(found)] for method, found in compared.items()]
    others = content["compared_with_grpo"]
    smallest = ", ".join(
        f"{name.replace('_', ' ')} {_smallest(found)}" for name, found in others.items() if name != "val_accuracy"
    )
    start = content["before"]
    noise = (
        f"Before the first step all {start['runs']} runs have the same model: mean {start['mean']:.3f}, deviation "
        f"{start['deviation']:.3f}, which is the error of one validation by sampling; a difference of two means over "
        f"{start['seeds']} seeds has a standard error of {start['of_difference']:.3f} from that alone."
    )
    return (
        f"{text}\n\n{table(header, rows)}\n\n{noise}\n\nValidation accuracy after the last step, paired by seed:\n\n"
        f"{table(against, lines)}\n\nSmallest p by t and by Holm of the other outcomes: {smallest}."
    )


def _named(content: dict[str, Any]) -> str:
    named = [f"{name} ({'; '.join(tries)})" for name, tries in content["failures"].items()]
    return f": {', '.join(named)}" if named else ""


def _compared(found: dict[str, Any]) -> list[str]:
    values = found["differences"]
    holm = f"{_p(found['t_p_holm'])}, {_p(found['wilcoxon_p_holm'])}"
    tests = f"{_p(found['t_p'])}, {_p(found['wilcoxon_p'])}"
    above = f"{sum(v > 0 for v in values)} of {len(values)}"
    return [cell(found["difference"], digits=3), above, tests, holm, f"{found['found_with_80_percent_power']:.3f}"]


def _p(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2g}"


def _smallest(rows: dict[str, Any]) -> str:
    method, found = min(rows.items(), key=lambda i: 1.0 if i[1]["t_p"] is None else i[1]["t_p"])
    return f"{_p(found['t_p'])} and {_p(found['t_p_holm'])} (`{method}`, {cell(found['difference'], digits=3)})"


def end_to_end(content: dict[str, Any]) -> str:
    """Shares of a step, and the run on several ranks."""
    parts = ("log_prob", "signals", "anchors", "generation", "update")
    names = ["log-prob pass in all", "of it plan, signals and anchors", "of it anchors", "generation", "update"]
    rows = []
    for method, found in content["cost"].items():
        shares = [_percent(found[part]) if found[part] else "" for part in parts]
        ratios = [_range(found[key]) if key in found else "1" for key in ("pass_to_grpo", "step_to_grpo")]
        rows.append([f"`{method}`", *shares, *ratios])
    header = ["", *names, "pass / GRPO's", "step / GRPO's"]
    text = table(header, rows)
    if not content["ranks"]:
        return text
    lines = [
        [
            str(run["ranks"]),
            *(_percent(run["shares"][part]) for part in parts),
            f"{run['val_accuracy'][0]:.3f}",
            f"{run['val_accuracy'][-1]:.3f}",
        ]
        for run in content["ranks"]
    ]
    one, ranks = content["ranks"][0], ["ranks", *names, "before", "after"]
    return (
        f"{text}\n\n`{one['method']}`, seed {one['seed']}, by ranks, with validation accuracy:\n\n{table(ranks, lines)}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _range(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


BLOCKS: dict[str, tuple[Path, Callable[[dict[str, Any]], str]]] = {
    "profile": (RESULTS / "profile.json", profile),
    "cosine": (RESULTS / "cosine.json", cosine),
    "ntk": (RESULTS / "ntk.json", ntk),
    "ig": (RESULTS / "ig.json", ig),
    "seeds": (RESULTS / "seeds.json", seeds),
    "end_to_end": (RESULTS / "seeds.json", end_to_end),
    **{name: (COST, block) for name, block in docs_cost.BLOCKS.items()},
}
"""Name on the page -> results file, and what writes the block from it."""


def rendered(page: str) -> str:
    """The page with every block up to date; raises as `docs_page.filled`."""
    blocks = {f"<!-- results: {n} -->": block(json.loads(file.read_text())) for n, (file, block) in BLOCKS.items()}
    return filled(page, blocks, END)


def main(argv: list[str] | None = None) -> int:
    """Entry point; exit status 1 if ``--check`` finds the page stale."""
    return write_or_check(argv, PAGE, rendered, "docs_results.py")


if __name__ == "__main__":
    sys.exit(main())
