#!/usr/bin/env bash
# Set up the CPU environment and run the tests.
#
#   scripts/test.sh                 everything: unit, layout (forked FSDP ranks) and end-to-end (Ray, vLLM) tests
#   scripts/test.sh -m "not e2e"    without the end-to-end tier; all arguments go to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$(scripts/setup_env.sh)
export VERL_PLATFORM=cpu OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false VERL_GRAIL_TOKENIZERS=required
"$venv/bin/python" scripts/fetch_tokenizers.py
# The pages of verl-grail report are tested in a real browser. Where it cannot be had, those tests say so and skip.
has_chromium() { command -v chromium >/dev/null && command -v chromedriver >/dev/null; }
if ! has_chromium && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "[test] installing chromium and its driver, for the tests of pages" >&2
  install_chromium() { DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends chromium chromium-driver; }
  { install_chromium || { apt-get update -q && install_chromium; }; } >/dev/null 2>&1 || true
fi
if has_chromium; then
  export VERL_GRAIL_CHROMIUM=required
else
  echo "[test] no chromium: the tests of pages will skip (Debian: apt-get install chromium chromium-driver)" >&2
fi
if [ $# -eq 0 ]; then
  "$venv/bin/ruff" check . && "$venv/bin/ruff" format --check . && "$venv/bin/mypy"
fi
exec "$venv/bin/python" -m pytest "$@"
