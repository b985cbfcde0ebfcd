# Sourced by every recipe, which then calls: recipe PAPER MODEL METHOD BACKEND "$@"
#
#   PAPER     whose published set-up: base/${PAPER}_paper.sh
#   METHOD    a config of the group `method`: grpo, grail, oar_g, gar_grpo, reinforce_pp, gar_reinforce_pp, ...
#   BACKEND   fsdp2 or megatron: what base/$BACKEND.sh sets
#   "$@"      overrides, which come last
#
# From the environment:
#   TRAIN_FILES, VAL_FILES   parquet files (scripts/data/prepare.py); needed
#   MODEL                    another path of the same architecture
#   PROMPT, RESPONSE         longest prompt and response, in tokens; token budgets follow them
#   NNODES, GPUS_PER_NODE    size of the cluster (1, 8)
#   ROLLOUT_TP               tensor parallelism of a vLLM server (1)
#   SEED                     of the data's order, the mini-batches and the rollouts (1)
#   RUN                      a name for this variant, so that an ablation has a folder of its own
#   CHECKPOINTS              folder of all runs (checkpoints); every node has to see it
#   RESUME                   auto: go on from this run's last checkpoint (disable)
#   CHECK=1                  compose and check the run by `verl-grail check`, and start nothing

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ACTOR=actor_rollout_ref.actor ROLLOUT=actor_rollout_ref.rollout

# A value as Hydra reads it literally, whatever is in it; a list is left as it is.
literal() {
  case $1 in
    \[*) printf %s "$1" ;;
    *) printf "'%s'" "${1//\'/\\\'}" ;;
  esac
}

recipe() {
  local paper=$1
  MODEL=${MODEL:-$2} METHOD=$3 BACKEND=$4
  shift 4
  : "${TRAIN_FILES:?parquet file of training prompts}" "${VAL_FILES:?parquet file of validation prompts}"
  NNODES=${NNODES:-1} GPUS_PER_NODE=${GPUS_PER_NODE:-8} SEED=${SEED:-1}
  local name folder
  name=$(basename "$MODEL")_${METHOD}_${BACKEND}_seed$SEED${RUN:+_$RUN}
  folder=${CHECKPOINTS:-checkpoints}/$name

  source "$HERE/${paper}_paper.sh"
  source "$HERE/$BACKEND.sh"

  local args=(
    "+method=$VERL_METHOD"
    "data.train_files=$(literal "$TRAIN_FILES")" "data.val_files=$(literal "$VAL_FILES")" data.filter_overlong_prompts=True
    "data.max_prompt_length=$PROMPT" "data.max_response_length=$RESPONSE"
    "data.seed=$SEED" "$ACTOR.data_loader_seed=$SEED" "$ROLLOUT.seed=$SEED"
    "actor_rollout_ref.model.path=$(literal "$MODEL")"
    "$ROLLOUT.name=vllm" "$ROLLOUT.tensor_model_parallel_size=${ROLLOUT_TP:-1}" "$ROLLOUT.gpu_memory_utilization=0.6"
    "$ROLLOUT.calculate_log_probs=True"
    "trainer.nnodes=$NNODES" "trainer.n_gpus_per_node=$GPUS_PER_NODE"
    trainer.project_name=verl-grail "trainer.experiment_name=$(literal "$name")" "trainer.logger=[console,file]"
    "trainer.default_local_dir=$(literal "$folder")" "trainer.rollout_data_dir=$(literal "$folder/rollouts")"
    # without it, verl goes on from whatever checkpoint the folder holds
    "trainer.resume_mode=${RESUME:-disable}"
    trainer.save_freq=20 trainer.max_actor_ckpt_to_keep=2 trainer.test_freq=20 trainer.val_before_train=False
    "${PAPER[@]}" "${ENGINE[@]}" "$@"
  )
  if [ -n "${CHECK:-}" ]; then
    verl-grail check "${args[@]}"
  else
    python3 -m verl.trainer.main_ppo "${args[@]}"
  fi
}
