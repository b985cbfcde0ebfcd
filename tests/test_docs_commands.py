"""Every shell command of the documents is run, as far as it can be without a hub, GPUs or a cluster.

A command is matched with a line of `HOW`, which says what is done with it; one that matches none fails. What takes
long has a test of its own, named there: here its arguments go through the program's own parser.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.samples import DEEPMATH, NUMINA, PLAIN
from tests.evaluation.test_compare import A, B
from tests.evaluation.test_compare import write_run as write_evaluation
from tests.recipes.scripts import command_of
from tests.report.synthetic import write_run
from verl_grail.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "recipes" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def commands(page: Path) -> list[str]:
    """Commands of a page's bash blocks, without comments, with continued lines joined."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(), re.S)
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for b in blocks for line in b.replace("\\\n", " ").split("\n")]
    return [part.strip() for line in lines for part in line.split("&&") if part.strip()]


COMMANDS = [(page, command) for page in PAGES for command in commands(page)]


def code_blocks(page: Path) -> dict[str, str]:
    """Python files that a page shows: by the name that its commands use (``$PWD/name.py:function``)."""
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    names = re.findall(r"\$PWD/(\w+\.py):(\w+)", page.read_text())
    found = {}
    for name, function in names:
        (found[name],) = [b for b in blocks if any(getattr(n, "name", "") == function for n in ast.parse(b).body)]
    return found


# ------------------------------ what is done with a command ------------------------------


def run_trainer(page: Path, words: list[str], folder: Path) -> None:
    """Composed by Hydra and put through verl's checks and ours; what the example leaves out is filled in."""
    from hydra import compose, initialize_config_module
    from verl.utils.config import validate_config

    for name, text in code_blocks(page).items():
        (folder / name).write_text(text)
    given = [w.replace("$PWD", str(folder)) for w in words[3:]]
    sizes = ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"]
    sizes += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*sizes, *given])
    assert validate_config._verl_grail  # ours run first
    validate_config(config=config, use_reference_policy=False, use_critic=False)


def run_recipe(page: Path, words: list[str], folder: Path) -> None:
    """The recipe's own script; what it would start is composed by tests/recipes, and run by tests/e2e."""
    assert words[0] == "bash"
    if os.environ.get("CHECK"):
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "TRAIN_FILES": "data/deepmath.parquet", "VAL_FILES": "data/math500.parquet"}
        done = subprocess.run(["bash", str(ROOT / words[1])], env=env, capture_output=True)
        assert done.returncode == 0, done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:]
        return
    arguments = command_of(ROOT / words[1], folder, *words[2:])
    assert arguments[:2] == ["-m", "verl.trainer.main_ppo"]
    assert set(words[2:]) <= set(arguments)


def run_cluster_script(page: Path, words: list[str], folder: Path) -> None:
    """Run by tests/e2e/test_megatron.py and tests/recipes; here: bash reads each script named."""
    scripts = [w for w in words if w.endswith((".sh", ".sbatch"))]
    assert scripts
    for script in scripts:
        subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def run_prepare(page: Path, words: list[str], folder: Path) -> None:
    """Run, on a small file with the data set's columns in place of the hub."""
    spec = importlib.util.spec_from_file_location("prepare", ROOT / "scripts/data/prepare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = {"deepmath": DEEPMATH, "numina": NUMINA}.get(words[2]) or [PLAIN[words[2]]]
    (folder / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    assert module.main([*words[2:], "--file", "rows.jsonl"]) == 0
    assert list(Path("data").glob("*.parquet"))


def run_data_check(page: Path, words: list[str], folder: Path) -> None:
    """Run, on the file that the command before it on the page makes."""
    for name in ("deepmath", "math500"):
        run_prepare(page, f"python scripts/data/prepare.py {name} --out data".split(), folder)
    assert main(words[1:]) == 0


def run_report(page: Path, words: list[str], folder: Path) -> None:
    """Run, on a made-up run."""
    run = Path(words[2])
    write_run(run, steps=2, prompts=2, samples=4, tokens=12)
    assert main(words[1:]) == 0


def run_compare(page: Path, words: list[str], folder: Path) -> None:
    """Run, on made-up evaluations."""
    runs = [w for w in words[2:] if "eval/" in w and not w.endswith((".png", ".tex"))]
    for i, word in enumerate(runs):
        label, _, path = word.rpartition("=")
        method, _, base = label.partition("@")
        write_evaluation(Path(path), method or Path(path).name, (A, B)[i % 2], base)
    assert main(words[1:]) == 0


def parse_only(page: Path, words: list[str], folder: Path) -> None:
    """Its arguments are parsed; run by tests/evaluation (eval) and tests/cli (doctor)."""
    parse = argparse.ArgumentParser.parse_args
    with pytest.MonkeyPatch.context() as patch:
        seen = []

        def parse_args(self, *args, **kwargs):
            seen.append(parse(self, *args, **kwargs))
            seen[-1].run = lambda _: 0
            return seen[-1]

        patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        assert main(words[1:]) == 0 and seen


def run_merger(page: Path, words: list[str], folder: Path) -> None:
    """verl's own program: its parser takes the arguments."""
    from verl.model_merger.base_model_merger import parse_args

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words[2:])
        assert parse_args().backend == "fsdp"


def run_elsewhere(page: Path, words: list[str], folder: Path) -> None:
    """Programs that exist: the set-up itself, or what runs this test."""
    for word in words:
        if word.startswith(("scripts/", "tests/")):
            assert (ROOT / word).exists(), word
        if word.startswith("scripts/") and word.endswith(".sh"):
            subprocess.run(["bash", "-n", str(ROOT / word)], check=True)


HOW = (
    (r"python -m verl\.trainer\.main_ppo ", run_trainer),
    (r"(\w+=\S+ )*bash recipes/cluster/", run_cluster_script),
    (r"sbatch ", run_cluster_script),
    (r"(\w+=\S+ )*bash recipes/", run_recipe),
    (r"python scripts/data/prepare\.py ", run_prepare),
    (r"verl-grail data check ", run_data_check),
    (r"verl-grail report ", run_report),
    (r"verl-grail compare ", run_compare),
    (r"verl-grail (eval|doctor)\b", parse_only),
    (r"python scripts/bench/report_page\.py", run_elsewhere),
    (r"scripts/(demo|test)\.sh", run_elsewhere),
    (r"\.venv/bin/(ruff|mypy|python -m pytest)", run_elsewhere),
    (r"pip install ('verl-grail\[eval\]'|'?\.(\[eval\])?'?)$", run_elsewhere),  # tests/e2e/test_install.py
    (r"python -m verl\.model_merger ", run_merger),
    (r"export \w+=\S+( \w+=\S+)*$", run_elsewhere),
    (r"\+?reward\.custom_reward_function\.", run_elsewhere),  # overrides: tests/test_docs.py
)


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{p.name}-{i}" for i, (p, _) in enumerate(COMMANDS)])
def test_a_command_of_the_documents(page, command, tmp_path, monkeypatch):
    how = [handler for pattern, handler in HOW if re.match(pattern, command)]
    assert how, f"{page.name}: no way to test {command!r}"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward_fns").symlink_to(ROOT / "reward_fns")
    words = shlex.split(command)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]) and len(words) > 1:
        name, _, value = words.pop(0).partition("=")
        monkeypatch.setenv(name, value)
    how[0](page, words, tmp_path)


def test_there_are_commands():
    assert len(COMMANDS) > 20 and {p.name for p, _ in COMMANDS} >= {"README.md", "extending.md", "evaluation.md"}
    assert os.access(ROOT / "scripts/demo.sh", os.X_OK) and os.access(ROOT / "scripts/test.sh", os.X_OK)
