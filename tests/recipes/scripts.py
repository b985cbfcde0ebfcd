"""What a recipe would start, without starting it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(p for p in (ROOT / "recipes").glob("*/run_*.sh"))


def stub(folder: Path, name: str, body: str) -> None:
    """A command of this name in ``folder``, to be put first on PATH."""
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def command_of(recipe: Path, folder: Path, *overrides: str, **env: str) -> list[str]:
    """Arguments of the one ``python3`` that the recipe starts."""
    stub(folder, "python3", f'printf "%s\\0" "$@" > {folder}/arguments')
    files = {"TRAIN_FILES": "train.parquet", "VAL_FILES": "val.parquet"}
    env = {**os.environ, **files, **env, "PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["bash", str(recipe), *overrides], env=env, check=True, cwd=folder)
    return (folder / "arguments").read_text().split("\0")[:-1]
