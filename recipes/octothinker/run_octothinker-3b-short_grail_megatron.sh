#!/usr/bin/env bash
# OctoThinker-3B-Short: GRAIL, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail OctoThinker/OctoThinker-3B-Short-Base grail megatron "$@"
