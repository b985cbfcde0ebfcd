#!/usr/bin/env bash
# OctoThinker-8B-Short: OAR-G, GRAIL's published baseline, on FSDP2.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail OctoThinker/OctoThinker-8B-Short-Base oar_g fsdp2 "$@"
