#!/usr/bin/env bash
# OctoThinker-3B-Short: the GRPO baseline of GRAIL's experiments, on FSDP2.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail OctoThinker/OctoThinker-3B-Short-Base grpo fsdp2 "$@"
