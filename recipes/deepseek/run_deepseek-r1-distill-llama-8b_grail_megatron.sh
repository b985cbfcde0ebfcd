#!/usr/bin/env bash
# DeepSeek-R1-Distill-Llama-8B: GRAIL, on Megatron.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../base/recipe.sh"
recipe grail deepseek-ai/DeepSeek-R1-Distill-Llama-8B grail megatron "$@"
