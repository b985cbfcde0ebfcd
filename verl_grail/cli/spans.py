"""``verl-grail spans``: a response with its tokens marked, to debug a tokenizer or a locator.

FILE (or - for stdin) holds

    a response as text, which --tokenizer cuts into tokens (a sampler may have cut it otherwise), or
    a JSON list of generated token ids, whose bytes --tokenizer knows, or
    dumped rollouts (trainer.rollout_data_dir, *.jsonl), one of which --row selects; no tokenizer is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from verl_grail.core.answers import LOCATORS, AnswerPolicy
from verl_grail.core.spans import AnswerSpan, locate_answer
from verl_grail.core.tokens import TokenBytes

_STYLES = {"reasoning": "", "delimiter": "black on yellow", "content": "bold white on green", "post": "dim"}
_CONTROLS = {c: repr(chr(c))[1:-1] for c in (*range(32), 127)}
_AROUND = 6
"""Tokens before and after the answer that the table shows."""


class InputError(ValueError):
    """The input is not what it should be; the message says what is wrong."""


@dataclass(frozen=True)
class Response:
    """Token ids and the bytes of each; without ``known_ids`` they are positions, since a dump holds texts only."""

    ids: list[int]
    table: TokenBytes
    known_ids: bool = True


def regions(span: AnswerSpan | None, length: int) -> list[str]:
    """Region of each token: reasoning, delimiter, content or post; all reasoning without an answer."""
    if span is None:
        return ["reasoning"] * length
    content = {i for a, b in span.contents for i in range(a, b)}
    return [
        "reasoning" if i < span.start else "post" if i >= span.end else "content" if i in content else "delimiter"
        for i in range(length)
    ]


def read_response(source: str, tokenizer: str | None, row: int) -> Response:
    """The response that the arguments name.

    Raises:
        InputError: no such file, row or tokenizer.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as e:
        raise InputError(f"{source} cannot be read: {e.strerror}") from e
    rollout = _rollout(text, row) if source.endswith(".jsonl") or text.lstrip().startswith('{"') else None
    if rollout is not None:
        pieces = [str(t).encode("utf-8", "surrogatepass") for t in rollout]
        return Response(list(range(len(pieces))), TokenBytes(pieces), known_ids=False)
    if tokenizer is None:
        raise InputError("a text or a list of ids needs --tokenizer (a folder with a tokenizer.json, or a name)")
    loaded = load_tokenizer(tokenizer)
    table = TokenBytes.from_tokenizer(loaded)
    stripped = text.strip()
    if stripped.startswith("[") and stripped.endswith("]"):
        try:
            ids = json.loads(stripped)
        except ValueError:
            ids = None
        if isinstance(ids, list) and ids and all(isinstance(i, int) for i in ids):
            return Response(ids, table)
    return Response(loaded.encode(text.removesuffix("\n"), add_special_tokens=False), table)


def _rollout(text: str, row: int) -> list[Any]:
    lines = [line for line in text.splitlines() if line.strip()]
    if not 0 <= row < len(lines):
        raise InputError(f"--row {row}: there are {len(lines)} rollouts")
    try:
        tokens = json.loads(lines[row])["tokens"]
    except (ValueError, KeyError, TypeError) as e:
        raise InputError(f"row {row} is no rollout with its tokens: {e!r}") from e
    return list(tokens)


def load_tokenizer(name: str) -> Any:
    """A fast tokenizer from a tokenizer.json, a folder that holds one, or what AutoTokenizer takes.

    Raises:
        InputError: it cannot be loaded.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = Path(name)
    try:
        if path.is_file():
            return PreTrainedTokenizerFast(tokenizer_file=name)
        return AutoTokenizer.from_pretrained(name)
    except Exception as e:  # transformers raises what it likes
        raise InputError(f"--tokenizer {name} cannot be loaded: {str(e).splitlines()[0]}") from e


def show(response: Response, policy: AnswerPolicy) -> None:
    """Print the marked response, the table around the answer and the counts."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    span = locate_answer(response.ids, response.table, policy)
    names = regions(span, len(response.ids))
    pieces = response.table.pieces(response.ids)
    marked, i = Text(), 0
    while i < len(pieces):  # tokens of one region at a time: a character may be split over them
        j = i
        while j < len(pieces) and names[j] == names[i]:
            j += 1
        marked.append(b"".join(pieces[i:j]).decode("utf-8", "replace"), _STYLES[names[i]])
        i = j
    console.print(marked)
    counts = Counter(names)
    if span is None:
        console.print(f"\nno answer in {len(pieces)} tokens")
        return
    table = Table("token", "id", "bytes", "region", box=None)
    for k in range(max(0, span.start - _AROUND), min(len(pieces), span.end + _AROUND)):
        shown = pieces[k].decode("utf-8", "backslashreplace")
        number = str(response.ids[k]) if response.known_ids else ""
        table.add_row(str(k), number, Text(shown.translate(_CONTROLS), _STYLES[names[k]]), names[k])
    console.print()
    console.print(table)
    contents = [b"".join(pieces[a:b]).decode("utf-8", "replace") for a, b in span.contents]
    total = ", ".join(f"{counts[n]} {n}" for n in _STYLES)
    console.print(f"\nanswer tokens [{span.start}, {span.end}), content {contents}; {total}", markup=False)


def run(args: argparse.Namespace) -> int:
    """Print; 1 without an answer, 2 if the arguments are wrong."""
    try:
        policy = AnswerPolicy(**{f.name: getattr(args, f.name) for f in fields(AnswerPolicy)})
        response = read_response(args.file, args.tokenizer, args.row)
    except ValueError as e:
        print(f"verl-grail spans: {e}", file=sys.stderr)
        return 2
    show(response, policy)
    return 0 if locate_answer(response.ids, response.table, policy) else 1


def add(commands) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "spans",
        help="print a response with its answer tokens marked",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="a text, a JSON list of ids, or dumped rollouts; - for stdin")
    parser.add_argument("--tokenizer", help="folder, tokenizer.json or name of the model's tokenizer")
    parser.add_argument("--row", type=int, default=0, help="which of the dumped rollouts (default: %(default)s)")
    default = AnswerPolicy()
    parser.add_argument(
        "--locator", default=default.locator, help=f"{', '.join(LOCATORS)}, module:name or file.py:name"
    )
    parser.add_argument("--pattern", help="regular expression of --locator regex")
    parser.add_argument("--which", choices=("last", "first"), default=default.which)
    parser.add_argument("--several", choices=("one", "set"), default=default.several)
    parser.add_argument("--frames", action="store_true", help="\\fbox and \\framebox count as boxes")
    parser.add_argument("--thinking", choices=("after", "never", "anywhere"), default=default.thinking)
    parser.add_argument("--think-open", default=default.think_open)
    parser.add_argument("--think-close", default=default.think_close)
    parser.set_defaults(run=run)
