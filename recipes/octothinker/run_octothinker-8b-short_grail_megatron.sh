#!/usr/bin/env bash
# OctoThinker-8B-Short: GRAIL, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail OctoThinker/OctoThinker-8B-Short-Base grail megatron "$@"
