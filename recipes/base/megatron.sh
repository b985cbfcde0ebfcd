# Sourced by recipes: verl's Megatron actor and vLLM rollout. A recipe sets MODEL and METHOD and calls `train "$@"`.
#
# From the environment:
#   TRAIN_FILES, VAL_FILES   parquet files (prompt, gold, expert solution)
#   NNODES, GPUS_PER_NODE    size of the cluster
#   TP, PP, CP, EP           parallel sizes of the actor; the rest is data parallelism
#   ROLLOUT_TP               tensor parallelism of a vLLM server
#   CHECKPOINTS              folder that every node sees

: "${TRAIN_FILES:?parquet file of training prompts}" "${VAL_FILES:?parquet file of validation prompts}"
NNODES=${NNODES:-1} GPUS_PER_NODE=${GPUS_PER_NODE:-8}
TP=${TP:-1} PP=${PP:-1} CP=${CP:-1} EP=${EP:-1} ROLLOUT_TP=${ROLLOUT_TP:-1}
CHECKPOINTS=${CHECKPOINTS:-checkpoints/$(basename "$MODEL")_$METHOD}
PROMPT=${PROMPT:-1024} RESPONSE=${RESPONSE:-4096}

ACTOR=actor_rollout_ref.actor ROLLOUT=actor_rollout_ref.rollout

BASE=(
  model_engine=megatron
  "trainer.nnodes=$NNODES" "trainer.n_gpus_per_node=$GPUS_PER_NODE"
  "trainer.default_local_dir=$CHECKPOINTS" "trainer.project_name=verl-grail"
  "trainer.experiment_name=$(basename "$MODEL")_${METHOD}_megatron" "trainer.logger=[console,file]"
  trainer.save_freq=20 trainer.test_freq=20 trainer.val_before_train=False

  "data.train_files=$TRAIN_FILES" "data.val_files=$VAL_FILES"
  "data.max_prompt_length=$PROMPT" "data.max_response_length=$RESPONSE"
  data.filter_overlong_prompts=True

  "actor_rollout_ref.model.path=$MODEL"
  "$ACTOR.megatron.tensor_model_parallel_size=$TP" "$ACTOR.megatron.pipeline_model_parallel_size=$PP"
  "$ACTOR.megatron.context_parallel_size=$CP" "$ACTOR.megatron.expert_model_parallel_size=$EP"
  "$ACTOR.megatron.vanilla_mbridge=True" "$ACTOR.megatron.use_distributed_optimizer=True"
  # activations are recomputed; the signal pass does so too
  "+$ACTOR.megatron.override_transformer_config.recompute_granularity=full"
  "+$ACTOR.megatron.override_transformer_config.recompute_method=uniform"
  "+$ACTOR.megatron.override_transformer_config.recompute_num_layers=1"
  "$ACTOR.use_dynamic_bsz=True" "$ACTOR.ppo_max_token_len_per_gpu=$((2 * (PROMPT + RESPONSE)))"

  "$ROLLOUT.name=vllm" "$ROLLOUT.tensor_model_parallel_size=$ROLLOUT_TP" "$ROLLOUT.gpu_memory_utilization=0.6"
  "$ROLLOUT.log_prob_use_dynamic_bsz=True" "$ROLLOUT.log_prob_max_token_len_per_gpu=$((4 * (PROMPT + RESPONSE)))"
)

# GRAIL's published set-up (arXiv 2606.04889). Dr. GRPO's divisor is verl's seq-mean-token-sum-norm with the longest
# response; TRL's 4 iterations over a batch are 4 epochs over one mini-batch.
GRAIL_PAPER=(
  trainer.v1.trainer_mode=grail_sync algorithm.adv_estimator=grail
  algorithm.norm_adv_by_std_in_grpo=False algorithm.use_kl_in_reward=False
  trainer.total_training_steps=200 data.train_batch_size=32
  "$ROLLOUT.n=8" "$ROLLOUT.temperature=1.0" "$ROLLOUT.top_p=1.0" "$ROLLOUT.top_k=50"
  "$ACTOR.ppo_mini_batch_size=32" "$ACTOR.ppo_epochs=4"
  "$ACTOR.optim.lr=1e-6" "$ACTOR.optim.lr_warmup_steps=20" "$ACTOR.optim.clip_grad=1.0"
  "$ACTOR.loss_agg_mode=seq-mean-token-sum-norm" "$ACTOR.loss_scale_factor=$RESPONSE"
  "$ACTOR.use_kl_loss=False" "$ACTOR.clip_ratio_low=0.2" "$ACTOR.clip_ratio_high=0.28"
)

train() {
  python3 -m verl.trainer.main_ppo "${BASE[@]}" "$@"
}
