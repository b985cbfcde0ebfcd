#!/usr/bin/env bash
# Set up everything and train a small model with GRPO, GRAIL, GAR and both, in verl's own trainer, on the CPU.
#
#   scripts/demo.sh          multi-step arithmetic, a small Qwen3 that starts at about half of the answers right
#   scripts/demo.sh --fast   the same, smaller
#   scripts/demo.sh --real   a few steps of GRAIL + GAR on SmolLM2-135M-Instruct and grade-school problems
#
# Prints a table; plots and a page with coloured rollouts are in runs/demo*/report. Re-running trains again but installs
# and prepares nothing twice. RUNS=... puts the results elsewhere; further arguments go to scripts/demo/train.py
# (key=value is a Hydra override).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
size=normal
case "${1:-}" in
  --fast) size=fast; shift ;;
  --real) size=real; shift ;;
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
venv=$(scripts/setup_env.sh)
runs=${RUNS:-runs}
export VERL_PLATFORM=cpu OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
if [ "$size" = real ]; then
  "$venv/bin/python" scripts/demo/real.py --out "$runs/real-task"
  exec "$venv/bin/python" scripts/demo/train.py --task "$runs/real-task" --out "$runs/demo-real" --size real \
    --methods grail_gar --title "GRAIL and GAR on SmolLM2-135M-Instruct and grade-school problems" \
    +reward.gar.strict_format=False data.shuffle=False "$@"
fi
fast=(); if [ "$size" = fast ]; then fast=(--fast); fi
"$venv/bin/python" scripts/demo/prepare.py --out "$runs/task-$size" "${fast[@]}"
exec "$venv/bin/python" scripts/demo/train.py --task "$runs/task-$size" --out "$runs/demo-$size" --size "$size" "$@"
