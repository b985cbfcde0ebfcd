#!/usr/bin/env bash
# Qwen3-8B: the GRPO baseline of GRAIL's experiments, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail Qwen/Qwen3-8B grpo megatron "$@"
