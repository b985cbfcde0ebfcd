#!/usr/bin/env bash
# Qwen3-8B, GRAIL in its published set-up, on verl's Megatron engine. One node: run it. Many: recipes/cluster.
#
#   TRAIN_FILES=deepmath.parquet VAL_FILES=math500.parquet bash recipes/qwen3/run_qwen3-8b_grail_megatron.sh [overrides]
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen3-8B} METHOD=grail TP=${TP:-4}
source "$(dirname "${BASH_SOURCE[0]}")/../base/megatron.sh"

train "${GRAIL_PAPER[@]}" \
  +data.apply_chat_template_kwargs.enable_thinking=False \
  +algorithm.grail.mask_truncated=True \
  "$@"
