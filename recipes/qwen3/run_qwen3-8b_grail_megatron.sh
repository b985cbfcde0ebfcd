#!/usr/bin/env bash
# Qwen3-8B: GRAIL, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail Qwen/Qwen3-8B grail megatron "$@"
