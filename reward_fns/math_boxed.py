r"""Grade the final answer of a response by exact rules and math-verify, in bounded time.

    reward.custom_reward_function.path=reward_fns/math_boxed.py
    +reward.custom_reward_function.reward_kwargs.several=set

Only the extracted answer is graded: the last complete ``\boxed{}`` by default, whose tokens GRAIL looks at. What
exact rules do not decide goes to math-verify in a pool of worker processes: one that is over its deadline, or over its
memory, is killed and replaced, and costs its sample alone. Thread-safe; works in verl's reward workers and by itself.
Settings and policies: docs/rewards.md.
"""

from __future__ import annotations

from verl_grail.grading.options import make_grader


def compute_score(data_source: str, solution_str: str, ground_truth, extra_info=None, **options) -> dict:
    """verl's contract, with the same keys on every sample.

    Args:
        ground_truth: the gold answer, or a list of alternatives.
        options: settings of the grader (``reward.custom_reward_function.reward_kwargs``).

    Returns:
        ``score`` and ``acc``: 1.0 if right, else 0.0; ``outcome``: correct, wrong, no_answer, unparseable_pred,
        unparseable_gold, timeout or crashed; ``graded``: 0.0 for unparseable_gold, which the trainer drops; ``rule``:
        what decided; ``pred``: the answer that was graded.
    """
    return make_grader(options).grade(solution_str, ground_truth).as_reward()
