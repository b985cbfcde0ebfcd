"""Problems of a benchmark, from verl's parquet files (`scripts/data/prepare.py` makes them)."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_grail.data.build import INSTRUCTIONS, identity
from verl_grail.data.check import problem_of
from verl_grail.data.files import DataError, read_rows
from verl_grail.evaluation import EvaluationError
from verl_grail.evaluation.protocol import Protocol


@dataclass(frozen=True)
class Problem:
    """One problem as it is asked.

    Attributes:
        id: unique in its benchmark.
        messages: the chat.
        gold: ``reward_model.ground_truth``, whatever its type.
    """

    id: str
    messages: list[dict[str, str]]
    gold: Any


@dataclass(frozen=True)
class Benchmark:
    """A benchmark and its problems, in the order of the file; ``as_is`` of them keep the file's own instruction."""

    name: str
    problems: list[Problem]
    as_is: int = 0

    @property
    def digest(self) -> str:
        """Changes with any prompt, gold or id."""
        content = [[p.id, p.messages, p.gold] for p in self.problems]
        return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:16]


def suite_files(protocol: Protocol, data: Path, only: Sequence[str] = ()) -> dict[str, tuple[Path, int]]:
    """The files of a preset: benchmark -> file in the data folder, and how many of its problems.

    Raises:
        EvaluationError: a benchmark that the suite does not have, or files that are missing.
    """
    for name in only:
        if name not in protocol.benchmarks:
            raise EvaluationError(f"--benchmarks {name}: {protocol.name} has {', '.join(protocol.benchmarks)}")
    chosen = {n: limit for n, limit in protocol.benchmarks.items() if not only or n in only}
    files = {name: (data / f"{name}.parquet", limit) for name, limit in chosen.items()}
    missing = [name for name, (path, _) in files.items() if not path.is_file()]
    if missing:
        commands = "\n".join(f"    python scripts/data/prepare.py {name} --out {data}" for name in missing)
        raise EvaluationError(
            f"{data} has no file for {', '.join(missing)}: make it, leave it out by --benchmarks, or name another "
            f"folder with --data\n{commands}"
        )
    return files


def load_benchmark(name: str, path: Path, limit: int, instruction: str) -> Benchmark:
    """Read a file.

    Args:
        limit: problems at most, the first ones (0: all).
        instruction: see `Protocol`; a row without its bare question (``extra_info.problem``) keeps its prompt.

    Raises:
        EvaluationError: no such file, no problems, or rows without a prompt or a gold.
    """
    suffix = INSTRUCTIONS.get(instruction, instruction)
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    as_is = 0
    try:
        for number, row in enumerate(itertools.islice(read_rows(path), limit or None)):
            messages = _messages(row.get("prompt"))
            gold = (row.get("reward_model") or {}).get("ground_truth")
            if not messages or gold is None:
                what = "prompt" if not messages else "reward_model.ground_truth"
                raise EvaluationError(f"row {number} of {path} has no {what}: verl-grail data check {path}")
            noted = (row.get("extra_info") or {}).get("problem")
            if suffix and noted:
                messages = [*messages[:-1], {**messages[-1], "content": f"{noted} {suffix}".strip()}]
            as_is += bool(suffix and not noted and not messages[-1]["content"].rstrip().endswith(suffix))
            index = (row.get("extra_info") or {}).get("index")
            key = identity(problem_of(row)) if index is None or index == "" else str(index)
            seen[key] = seen.get(key, 0) + 1
            problems.append(Problem(key if seen[key] == 1 else f"{key}#{seen[key]}", messages, gold))
    except DataError as e:
        raise EvaluationError(str(e)) from e
    if not problems:
        raise EvaluationError(f"{path} has no rows")
    return Benchmark(name, problems, as_is)


def _messages(prompt: Any) -> list[dict[str, str]]:
    """The chat of a row; empty without a last message from the user."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}] if prompt.strip() else []
    if not isinstance(prompt, list) or not all(isinstance(m, dict) for m in prompt):
        return []
    messages = [{"role": str(m.get("role")), "content": str(m.get("content") or "")} for m in prompt]
    usable = messages and messages[-1]["role"] == "user" and messages[-1]["content"].strip()
    return messages if usable else []
