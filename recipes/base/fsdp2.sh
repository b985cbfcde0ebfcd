# verl's FSDP2 actor. SP: Ulysses sequence parallelism (1); OFFLOAD: parameters and optimizer in host memory (False)
ENGINE=(
  "$ACTOR.strategy=fsdp2" actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.model.enable_gradient_checkpointing=True
  "$ACTOR.fsdp_config.ulysses_sequence_parallel_size=${SP:-1}"
  "$ACTOR.fsdp_config.param_offload=${OFFLOAD:-False}" "$ACTOR.fsdp_config.optimizer_offload=${OFFLOAD:-False}"
  "$ACTOR.use_dynamic_bsz=True" "$ACTOR.ppo_max_token_len_per_gpu=$((2 * (PROMPT + RESPONSE) / ${SP:-1}))"
  "$ROLLOUT.log_prob_use_dynamic_bsz=True"
  "$ROLLOUT.log_prob_max_token_len_per_gpu=$((4 * (PROMPT + RESPONSE) / ${SP:-1}))"
)
