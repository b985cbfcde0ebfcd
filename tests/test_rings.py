"""Imports point inwards only: core knows no verl, signals know no plugin."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "verl_grail"
OUTER = (
    "verl_grail.grading",
    "verl_grail.signals",
    "verl_grail.plugin",
    "verl_grail.cpu",
    "verl_grail.report",
    "verl_grail.config",
)
FORBIDDEN = {
    "core": ("verl", "ray", "transfer_queue", "tensordict", "omegaconf", *OUTER),
    "grading": ("verl", "ray", "transfer_queue", "verl_grail.signals", "verl_grail.plugin", "verl_grail.cpu"),
    "signals": ("ray", "transfer_queue", "verl_grail.plugin", "verl_grail.cpu", "verl_grail.report"),
    "plugin": ("verl_grail.report",),
    "data": ("verl", "ray", "torch", "omegaconf", "verl_grail.signals", "verl_grail.plugin", "verl_grail.config"),
    "cost": ("verl", "ray", "torch", "omegaconf", *OUTER),
    "doctor": ("torch", *OUTER),
    "evaluation": (
        "verl",
        "ray",
        "torch",
        "omegaconf",
        *(o for o in OUTER if o not in ("verl_grail.grading", "verl_grail.report")),
    ),
    "report": ("verl", "ray", "torch", "verl_grail.plugin", "verl_grail.signals"),
}


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("ring", FORBIDDEN)
def test_imports_point_inwards(ring):
    files = sorted((PACKAGE / ring).rglob("*.py"))
    assert len(files) > 3
    for path in files:
        for name in imports(path):
            for bad in FORBIDDEN[ring]:
                assert name != bad and not name.startswith(f"{bad}."), f"{path.name} imports {name}"
