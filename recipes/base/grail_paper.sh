# GRAIL's published set-up (arXiv 2606.04889), for grail, oar_g and their GRPO baseline; trained there with TRL.
PROMPT=1024 RESPONSE=4096
# its "GRPO" is Dr. GRPO: no division by the group's deviation, the loss divided by batch x longest response
VERL_METHOD=$METHOD
[ "$METHOD" = grpo ] && VERL_METHOD=dr_grpo

PAPER=(
  trainer.total_training_steps=200
  # 32 prompts x 8 rollouts a step. TRL's num_iterations=4, four updates on the whole batch, are four epochs here
  data.train_batch_size=32 "$ROLLOUT.n=8" "$ACTOR.ppo_mini_batch_size=32" "$ACTOR.ppo_epochs=4"
  # verl: log-probs of a rollout are those after top_k, those of the policy are not; training/rollout_probs_diff shows it
  "$ROLLOUT.temperature=1.0" "$ROLLOUT.top_p=1.0" "$ROLLOUT.top_k=50"
  "$ACTOR.optim.lr=1e-6" "$ACTOR.optim.lr_warmup_steps=20" "$ACTOR.optim.clip_grad=1.0"
  # thinking mode off (read by the chat templates that know it)
  +data.apply_chat_template_kwargs.enable_thinking=False
  reward.custom_reward_function.path="$HERE/../../reward_fns/math_boxed.py"
)
# TRL's mask_truncated_completions: they count in their group's mean, and not in the loss. verl has no such knob of its
# own, so the baseline trains on them
case $METHOD in grail | oar_g) PAPER+=("algorithm.$METHOD.mask_truncated=True") ;; esac
