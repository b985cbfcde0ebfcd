#!/usr/bin/env bash
# Qwen3-4B-Base: the REINFORCE++ baseline of GAR's experiments, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe gar Qwen/Qwen3-4B-Base reinforce_pp megatron "$@"
