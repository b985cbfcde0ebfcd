#!/usr/bin/env bash
# Qwen3-8B-Base: GAR on REINFORCE++, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe gar Qwen/Qwen3-8B-Base gar_reinforce_pp megatron "$@"
