"""Write the tables of docs/configuration.md from the config dataclasses: ``python scripts/docs_config.py [--check]``.

Names, order and meanings are read off the source of verl_grail/config (the docstring under each field), defaults
off the dataclasses themselves, once for each reading of the papers. Only what stands between a section's markers,
``<!-- settings: algorithm.grail -->`` and ``<!-- end of settings -->``, is rewritten; with ``--check`` nothing is,
and the exit status is 1 if the file is stale.
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))  # for a caller that imports this file from elsewhere

from docs_page import filled, write_or_check

from verl_grail import config

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
SECTIONS = (config.GrailConfig, config.OarGConfig, config.GarConfig, config.AnswersConfig, config.SignalsConfig)
END = "<!-- end of settings -->"


def meanings(section: type) -> dict[str, str]:
    """Field -> the docstring under it, in the order of the source.

    Raises:
        ValueError: a field has no docstring.
    """
    (node,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
        if not isinstance(text, str):
            raise ValueError(f"{section.__name__}.{field.target.id} has no docstring")
        found[field.target.id] = " ".join(text.split()).replace("``", "`").replace("|", "\\|")
    return found


def spelled(value: Any) -> str:
    """A value as it is written in YAML and on the command line."""
    named = {None: "null", True: "true", False: "false"}
    return f"`{named[value] if value is None or isinstance(value, bool) else value}`"


def default(section: type, name: str) -> str:
    """The default, or the defaults of both readings where they differ."""
    if "reading" not in meanings(section):
        return spelled(getattr(section(), name))
    paper, code = (getattr(section(reading=reading), name) for reading in config.READINGS)
    if paper == code or name == "reading":
        return spelled(paper)
    return f"{spelled(paper)}; authors' code: {spelled(code)}"


def table(section: type) -> str:
    """The Markdown table of one section."""
    rows = [f"| `{name}` | {default(section, name)} | {text} |" for name, text in meanings(section).items()]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def rendered(page: str) -> str:
    """The page with every table up to date; raises as `docs_page.filled`."""
    return filled(page, {f"<!-- settings: {section.key} -->": table(section) for section in SECTIONS}, END)


def main(argv: list[str] | None = None) -> int:
    """Entry point; exit status 1 if ``--check`` finds the page stale."""
    return write_or_check(argv, PAGE, rendered, "docs_config.py")


if __name__ == "__main__":
    sys.exit(main())
