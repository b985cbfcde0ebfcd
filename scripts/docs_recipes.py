"""Write the memory table of recipes/README.md: ``python scripts/docs_recipes.py [--check]``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))  # for a caller that imports this file from elsewhere

from docs_page import filled, write_or_check

from verl_grail.config import SignalsConfig
from verl_grail.cost.memory import Parallel, memory
from verl_grail.cost.shapes import KNOWN

PAGE = Path(__file__).resolve().parents[1] / "recipes" / "README.md"
GPUS = 8
# prompt and response of the two published set-ups, as base/*_paper.sh has them; a micro-batch holds two such rows
TOKENS = {"grail": 2 * (1024 + 4096), "gar": 2 * (1024 + 8192)}
ENGINES = {"FSDP2": Parallel(GPUS), "Megatron, TP 2": Parallel(GPUS, tensor=2, fsdp=False)}


def table() -> str:
    """The Markdown table."""
    rows = ["| model | engine | state | training | signal pass |", "|---|---|---|---|---|"]
    for model, shape in KNOWN.items():
        tokens = TOKENS["gar" if model in ("Qwen/Qwen3-4B-Base", "Qwen/Qwen3-8B-Base") else "grail"]
        for engine, parallel in ENGINES.items():
            used = memory(shape, parallel, tokens, SignalsConfig().head_chunk_tokens)
            cells = [f"{x / (1 << 30):.0f}" for x in (used.state, used.training, used.signal_pass)]
            rows.append(f"| {model.split('/')[1]} | {engine} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    """Entry point; exit status 1 if ``--check`` finds the page stale."""
    blocks = {"<!-- memory -->": table()}
    return write_or_check(argv, PAGE, lambda page: filled(page, blocks, "<!-- end of memory -->"), "docs_recipes.py")


if __name__ == "__main__":
    sys.exit(main())
