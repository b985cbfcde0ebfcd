# Sourced by every recipe, which then calls: recipe PAPER MODEL METHOD BACKEND "$@"
#
#   PAPER     whose published set-up: base/${PAPER}_paper.sh
#   METHOD    a config of the group `method`: grpo, grail, oar_g, gar_grpo, reinforce_pp, gar_reinforce_pp, ...
#   BACKEND   fsdp2 or megatron: what base/$BACKEND.sh sets
#   "$@"      overrides, which come last
#
# From the environment:
#   TRAIN_FILES, VAL_FILES   parquet files (scripts/data); needed
#   MODEL                    another path of the same architecture
#   NNODES, GPUS_PER_NODE    size of the cluster (1, 8)
#   ROLLOUT_TP               tensor parallelism of a vLLM server (1)
#   CHECKPOINTS              folder that every node sees
#   SEED                     of the data's order and of the rollouts (1)

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ACTOR=actor_rollout_ref.actor ROLLOUT=actor_rollout_ref.rollout

recipe() {
  local paper=$1
  MODEL=${MODEL:-$2} METHOD=$3 BACKEND=$4
  shift 4
  : "${TRAIN_FILES:?parquet file of training prompts}" "${VAL_FILES:?parquet file of validation prompts}"
  NNODES=${NNODES:-1} GPUS_PER_NODE=${GPUS_PER_NODE:-8}
  local name
  name=$(basename "$MODEL")_${METHOD}_$BACKEND

  source "$HERE/${paper}_paper.sh"
  source "$HERE/$BACKEND.sh"

  python3 -m verl.trainer.main_ppo "+method=$VERL_METHOD" \
    "data.train_files=$TRAIN_FILES" "data.val_files=$VAL_FILES" data.filter_overlong_prompts=True \
    "data.max_prompt_length=$PROMPT" "data.max_response_length=$RESPONSE" "data.seed=${SEED:-1}" \
    "actor_rollout_ref.model.path=$MODEL" \
    "$ROLLOUT.name=vllm" "$ROLLOUT.tensor_model_parallel_size=${ROLLOUT_TP:-1}" "$ROLLOUT.gpu_memory_utilization=0.6" \
    "$ROLLOUT.calculate_log_probs=True" \
    "trainer.nnodes=$NNODES" "trainer.n_gpus_per_node=$GPUS_PER_NODE" \
    trainer.project_name=verl-grail "trainer.experiment_name=$name" "trainer.logger=[console,file]" \
    "trainer.default_local_dir=${CHECKPOINTS:-checkpoints/$name}" "trainer.rollout_data_dir=${CHECKPOINTS:-checkpoints/$name}/rollouts" \
    trainer.save_freq=20 trainer.test_freq=20 trainer.val_before_train=False \
    "${PAPER[@]}" "${ENGINE[@]}" "$@"
}
