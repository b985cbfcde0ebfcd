#!/usr/bin/env bash
# Qwen3-8B: OAR-G, GRAIL's published baseline, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail Qwen/Qwen3-8B oar_g megatron "$@"
