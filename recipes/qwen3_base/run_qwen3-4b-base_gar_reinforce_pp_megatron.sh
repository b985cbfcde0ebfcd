#!/usr/bin/env bash
# Qwen3-4B-Base: GAR on REINFORCE++, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe gar Qwen/Qwen3-4B-Base gar_reinforce_pp megatron "$@"
