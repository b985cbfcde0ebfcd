"""Write everything the demo run needs: ``python scripts/demo/prepare.py --out DIR [--fast] [--seed 0]``.

``DIR/model`` (Hugging Face folder with tokenizer), ``DIR/train.parquet``, ``DIR/val.parquet`` and ``DIR/task.json``
(arguments, length limits, warm-start accuracy). ``task.json`` is written last: a folder that has one is complete, and
a second run with the same arguments and the same sources returns at once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import task
import tokenizer as demo_tokenizer
import warm_start
from transformers import PreTrainedTokenizerFast

TOKENIZER_PROBLEMS = 2000
"""Problems whose text the tokenizer is trained on; many more than it needs to find every merge."""


def fingerprint() -> str:
    """A digest of the demo's sources, so that a folder made by other sources is made again."""
    folder = Path(__file__).parent
    names = ("task.py", "tokenizer.py", "warm_start.py", "prepare.py")
    return hashlib.sha256(b"".join((folder / name).read_bytes() for name in names)).hexdigest()[:16]


def make_tokenizer(ranges: task.Ranges, seed: int) -> PreTrainedTokenizerFast:
    """A tokenizer trained on the train split's prompts, as the chat template renders them, and solutions."""
    problems = task.unique(seed, ranges, "train", TOKENIZER_PROBLEMS)
    texts = [f"user\n{problem.text}\nassistant\n" for problem in problems]
    texts += [task.solution(problem, method) for problem in problems for method in task.METHODS]
    return demo_tokenizer.train_tokenizer(texts)


def lengths(tokenizer: PreTrainedTokenizerFast, problems: Iterable[task.Problem]) -> dict[str, int]:
    """Longest prompt and solution (with EOS) of `problems` by either method, and limits that leave room above them.

    Solutions get a quarter on top, because wrong intermediate results may have more digits than right ones.
    """
    problems = list(problems)
    prompts = tokenizer([demo_tokenizer.prompt_text(tokenizer, problem.text) for problem in problems])["input_ids"]
    solutions = tokenizer([task.solution(p, method) for p in problems for method in task.METHODS])["input_ids"]
    longest_prompt, longest_solution = max(map(len, prompts)), max(map(len, solutions)) + 1
    return {
        "longest_prompt": longest_prompt,
        "longest_solution": longest_solution,
        "max_prompt_length": _round_up(longest_prompt + 1),
        "max_response_length": _round_up(longest_solution + longest_solution // 4),
    }


def _round_up(count: int, multiple: int = 8) -> int:
    return -(-count // multiple) * multiple


def write_parquet(problems: list[task.Problem], split: str, path: Path) -> None:
    """One file in verl's schema."""
    rows = [task.row(problem, index, split) for index, problem in enumerate(problems)]
    pd.DataFrame(rows).to_parquet(path, index=False)


def prepare(out: Path, fast: bool, seed: int, train_size: int, val_size: int) -> dict:
    """Make the folder `out` unless it is complete already, and return the content of its ``task.json``."""
    card = out / "task.json"
    wanted = {"fast": fast, "seed": seed, "train_size": train_size, "val_size": val_size, "source": fingerprint()}
    if card.exists():
        found = json.loads(card.read_text())
        if found.get("arguments") == wanted:
            return found
        card.unlink()  # from here on the folder is incomplete
    out.mkdir(parents=True, exist_ok=True)

    start = time.perf_counter()
    ranges, settings = (task.FAST, warm_start.FAST) if fast else (task.NORMAL, warm_start.NORMAL)
    train = task.unique(seed, ranges, "train", train_size)
    val = task.unique(seed, ranges, "val", val_size)
    tokenizer = make_tokenizer(ranges, seed)
    limits = lengths(tokenizer, [*train, *val])
    write_parquet(train, "train", out / "train.parquet")
    write_parquet(val, "val", out / "val.parquet")
    model, stop = warm_start.warm_start(tokenizer, ranges, settings, limits["max_response_length"], seed)
    val_accuracy = warm_start.accuracy(model, tokenizer, val, limits["max_response_length"], seed)
    tokenizer.save_pretrained(out / "model")
    model.save_pretrained(out / "model")

    content = {
        "arguments": wanted,
        "ranges": asdict(ranges),
        "settings": asdict(settings),
        **limits,
        "vocab_size": len(tokenizer),
        "parameters": model.num_parameters(),
        "warm_start": {**stop, "val_accuracy": val_accuracy, "val_size": len(val)},
        "seconds": round(time.perf_counter() - start, 1),
    }
    scratch = card.with_suffix(".json.tmp")
    scratch.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(scratch, card)
    return json.loads(card.read_text())  # the same types whether the folder was just made or found


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--fast", action="store_true", help="smaller numbers and a smaller model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train-size", type=int, help="default: 4096, with --fast 512")
    parser.add_argument("--val-size", type=int, help="default: 256, with --fast 128")
    args = parser.parse_args(argv)
    train_size = args.train_size or (512 if args.fast else 4096)
    val_size = args.val_size or (128 if args.fast else 256)
    content = prepare(args.out, args.fast, args.seed, train_size, val_size)
    warm = content["warm_start"]
    print(
        f"{args.out}: accuracy {warm['val_accuracy']:.1%} of {warm['val_size']} validation problems after "
        f"{warm['steps']} steps, {content['seconds']:.0f} s; prompts <= {content['max_prompt_length']}, "
        f"responses <= {content['max_response_length']} tokens"
    )
    if not 0.3 <= warm["val_accuracy"] <= 0.6:
        print("warning: the accuracy is outside 30..60 %; another --seed may leave more to learn")


if __name__ == "__main__":
    main()
