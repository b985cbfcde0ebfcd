#!/usr/bin/env bash
# Qwen3-4B: the GRPO baseline of GRAIL's experiments, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail Qwen/Qwen3-4B grpo megatron "$@"
