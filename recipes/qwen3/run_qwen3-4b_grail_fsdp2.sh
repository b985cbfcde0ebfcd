#!/usr/bin/env bash
# Qwen3-4B: GRAIL, on FSDP2.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail Qwen/Qwen3-4B grail fsdp2 "$@"
