# GRAIL's published set-up (arXiv 2606.04889), for grail, oar_g and their GRPO baseline; trained there with TRL.
PROMPT=${PROMPT:-1024} RESPONSE=${RESPONSE:-4096}
# its "GRPO" is Dr. GRPO: no division by the group's deviation, the loss divided by batch x longest response
VERL_METHOD=$METHOD
[ "$METHOD" != grpo ] || VERL_METHOD=dr_grpo

PAPER=(
  # verl counts batches, and warms up by batches. If the published 200 and 20 are TRL's updates, four to a batch, they are
  # 50 and 5 of these: trainer.total_training_steps=50 actor_rollout_ref.actor.optim.lr_warmup_steps=5
  trainer.total_training_steps=200 "$ACTOR.optim.lr_warmup_steps=20"
  # 32 prompts x 8 rollouts a step. TRL's num_iterations=4, four updates on the whole batch, are four epochs here
  data.train_batch_size=32 "$ROLLOUT.n=8" "$ACTOR.ppo_mini_batch_size=32" "$ACTOR.ppo_epochs=4"
  # verl: log-probs of a rollout are those after top_k, those of the policy are not; training/rollout_probs_diff shows it
  "$ROLLOUT.temperature=1.0" "$ROLLOUT.top_p=1.0" "$ROLLOUT.top_k=50"
  # TRL's AdamW has no weight decay by default, verl's 0.01
  "$ACTOR.optim.lr=1e-6" "$ACTOR.optim.clip_grad=1.0" "$ACTOR.optim.weight_decay=0.0"
  # the published evaluation, but for its length of 8,192: verl validates with the training's
  "$ROLLOUT.val_kwargs.do_sample=True" "$ROLLOUT.val_kwargs.n=3" "$ROLLOUT.val_kwargs.temperature=0.6"
  "$ROLLOUT.val_kwargs.top_p=0.95" "$ROLLOUT.val_kwargs.top_k=20"
  # thinking mode off (read by the chat templates that know it)
  +data.apply_chat_template_kwargs.enable_thinking=False
  "reward.custom_reward_function.path=$(literal "$(dirname "$(dirname "$HERE")")/reward_fns/math_boxed.py")"
)
# TRL's mask_truncated_completions: they count in their group's mean, and not in the loss. verl's own GRPO has no such
# setting, so the baseline trains on them. With it, at the price of the signal pass, it is the grail recipe with
# algorithm.grail.w_mean=1 algorithm.grail.w_min=1 algorithm.grail.w_max=1
case $METHOD in grail | oar_g) PAPER+=("algorithm.$METHOD.mask_truncated=True") ;; esac

# OctoThinker's base models come without a chat template; this one is ours
case $MODEL in
  *OctoThinker*)
    PAPER+=("actor_rollout_ref.model.custom_chat_template=\"{% for m in messages %}{{ m['role'] | capitalize }}: {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}\"")
    ;;
esac
