# GAR's published set-up (arXiv 2609.03342), for gar_grpo, gar_reinforce_pp and their baselines; trained there with slime.
# Lengths, learning rate, clipping and evaluation during training are not published: these are ours.
PROMPT=${PROMPT:-1024} RESPONSE=${RESPONSE:-8192}
VERL_METHOD=$METHOD

PAPER=(
  trainer.total_training_steps=400
  # slime counts trajectories: 2,048 a step are 128 prompts x 16 rollouts
  data.train_batch_size=128 "$ROLLOUT.n=16" "$ACTOR.ppo_mini_batch_size=128"
  "$ROLLOUT.temperature=1.0" "$ROLLOUT.top_p=1.0"
  "$ACTOR.optim.lr=1e-6" "$ACTOR.optim.clip_grad=1.0"
)
# the gar manager checks the tags itself; without it the same grader does
FUNCTIONS=$(dirname "$(dirname "$HERE")")/reward_fns
case $METHOD in
  gar_*) PAPER+=("reward.custom_reward_function.path=$(literal "$FUNCTIONS/math_boxed.py")") ;;
  *) PAPER+=("reward.custom_reward_function.path=$(literal "$FUNCTIONS/strict_format.py")") ;;
esac
