#!/usr/bin/env bash
# Qwen3-4B: OAR-G, GRAIL's published baseline, on FSDP2.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail Qwen/Qwen3-4B oar_g fsdp2 "$@"
