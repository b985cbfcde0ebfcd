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
if [ $# -eq 0 ]; then
  "$venv/bin/ruff" check . && "$venv/bin/ruff" format --check . && "$venv/bin/mypy"
fi
exec "$venv/bin/python" -m pytest "$@"
