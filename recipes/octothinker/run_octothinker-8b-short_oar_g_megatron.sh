#!/usr/bin/env bash
# OctoThinker-8B-Short: OAR-G, GRAIL's published baseline, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail OctoThinker/OctoThinker-8B-Short-Base oar_g megatron "$@"
