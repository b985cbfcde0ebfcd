# verl's Megatron actor. TP, PP, CP, EP: parallel sizes (2, 1, 1, 1); the rest is data parallelism
TRANSFORMER=+$ACTOR.megatron.override_transformer_config
ENGINE=(
  model_engine=megatron
  "$ACTOR.megatron.tensor_model_parallel_size=${TP:-2}" "$ACTOR.megatron.pipeline_model_parallel_size=${PP:-1}"
  "$ACTOR.megatron.context_parallel_size=${CP:-1}" "$ACTOR.megatron.expert_model_parallel_size=${EP:-1}"
  "$ACTOR.megatron.vanilla_mbridge=True" "$ACTOR.megatron.use_distributed_optimizer=True"
  # activations are recomputed, in the signal pass too
  "$TRANSFORMER.recompute_granularity=full" "$TRANSFORMER.recompute_method=uniform" "$TRANSFORMER.recompute_num_layers=1"
  "$ACTOR.use_dynamic_bsz=True" "$ACTOR.ppo_max_token_len_per_gpu=$((2 * (PROMPT + RESPONSE) / ${CP:-1}))"
  "$ROLLOUT.log_prob_use_dynamic_bsz=True"
  "$ROLLOUT.log_prob_max_token_len_per_gpu=$((4 * (PROMPT + RESPONSE) / ${CP:-1}))"
)
