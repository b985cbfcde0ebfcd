#!/usr/bin/env bash
# Qwen3-8B-Base: the GRPO baseline of GAR's experiments, on FSDP2.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe gar Qwen/Qwen3-8B-Base grpo fsdp2 "$@"
