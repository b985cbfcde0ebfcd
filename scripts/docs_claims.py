"""Write the tables of docs/results.md that scripts/claims measured: ``python scripts/docs_claims.py [--check]``.

Only what stands between a block's markers, ``<!-- claims: profile -->`` (``cosine``, ``ntk``, ``ig``) and
``<!-- end of claims -->``, is rewritten, from ``scripts/claims/results``; with ``--check`` nothing is, and the exit
status is 1 if the page is stale.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, RESULTS = ROOT / "docs" / "results.md", ROOT / "scripts" / "claims" / "results"
END = "<!-- end of claims -->"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


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


BLOCKS: dict[str, Callable[[dict[str, Any]], str]] = {"profile": profile, "cosine": cosine, "ntk": ntk, "ig": ig}


def rendered(page: str) -> str:
    """The page with every block up to date.

    Raises:
        ValueError: a block's markers are missing, or there are several.
    """
    for name, block in BLOCKS.items():
        begin = f"<!-- claims: {name} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(END), re.DOTALL)
        if len(pattern.findall(page)) != 1:
            raise ValueError(f"{PAGE.name} must hold exactly one {begin} with {END} after it")
        new = f"{begin}\n\n{block(json.loads((RESULTS / f'{name}.json').read_text()))}\n\n{END}"
        page = pattern.sub(lambda _, new=new: new, page)
    return page


def main(argv: list[str] | None = None) -> int:
    """Entry point; exit status 1 if ``--check`` finds the page stale."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing, only say whether the page is up to date")
    args = parser.parse_args(argv)
    old = PAGE.read_text(encoding="utf-8")
    new = rendered(old)
    if new == old:
        return 0
    if args.check:
        print(f"{PAGE.name} is stale: run python scripts/docs_claims.py", file=sys.stderr)
        return 1
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
