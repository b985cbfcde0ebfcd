"""math_boxed with GAR's strict format: thinking tags, penalties for a broken format and for short thinking.

    reward.custom_reward_function.path=reward_fns/strict_format.py
    +reward.custom_reward_function.reward_kwargs.reading=authors_code

For runs without the ``gar`` reward manager, which does the same on the generated token ids: GRPO with the same verifier
and format is GAR's baseline. Settings: those of math_boxed, and of reward.gar ``reading``, ``base_reward``,
``think_open``, ``think_close``, ``open_in_prompt``, ``format_penalty``, ``length_penalty``, ``length_ratio``,
``length_min``, ``length_max``, ``solution_key``. The length penalty counts tokens, so it takes ``tokenizer`` (a model's
folder or name), and the expert solution in ``extra_info[solution_key]``.
"""

from __future__ import annotations

from verl_grail.grading.strict import strict_score


def compute_score(data_source: str, solution_str: str, ground_truth, extra_info=None, **options) -> dict:
    """verl's contract: math_boxed's keys, and ``format_valid``, ``format_penalty``, ``length_penalty``.

    ``score`` is the base reward of an answer that is right in a response that keeps the format, less the penalties;
    ``acc`` is the verdict alone.
    """
    return strict_score(solution_str, ground_truth, extra_info or {}, options)
