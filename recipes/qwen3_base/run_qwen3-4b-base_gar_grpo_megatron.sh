#!/usr/bin/env bash
# Qwen3-4B-Base: GAR on GRPO, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe gar Qwen/Qwen3-4B-Base gar_grpo megatron "$@"
