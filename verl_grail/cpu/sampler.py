"""Replay buffers that look for finished prompts every 0.05 s instead of every 2 s.

For ``trainer.v1.sampler.custom_sampler.{path,name}`` with ``path=pkg://verl_grail.cpu.sampler``. verl polls with
``time.sleep(2.0)`` (verl/trainer/ppo/v1/replay_buffer.py:409) and offers no option for it; a step of a tiny model takes
less than that.

verl does not hand a custom sampler its filtering and refill options (verl/trainer/ppo/v1/trainer_base.py:165), so under
these ``algorithm.filter_groups`` and ``sync_refill_failed_groups`` would be ignored. Whatever stands in
``trainer.v1.sampler.sampler_kwargs`` is therefore passed on to verl's constructor: ``poll_interval``,
``filter_groups_metric``, ``train_batch_size``, ``gen_batch_size``, ... by verl's own names.
"""

from collections.abc import Mapping
from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

POLL_INTERVAL = 0.05
"""Seconds between two looks at the transfer queue."""


def _options(sampler_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The constructor options that verl leaves to a custom sampler; an unknown one fails in verl's constructor."""
    return {"poll_interval": POLL_INTERVAL, **(sampler_kwargs or {})}


class FastPollReplayBuffer(ReplayBuffer):
    """For ``trainer.v1.trainer_mode=sync``."""

    def __init__(self, *args: Any, sampler_kwargs: Mapping[str, Any] | None = None, **kwargs: Any):
        super().__init__(*args, sampler_kwargs=sampler_kwargs, **kwargs, **_options(sampler_kwargs))


class FastPollReplayBufferAsync(ReplayBufferAsync):
    """For ``colocate_async`` and ``separate_async``."""

    def __init__(self, *args: Any, sampler_kwargs: Mapping[str, Any] | None = None, **kwargs: Any):
        super().__init__(*args, sampler_kwargs=sampler_kwargs, **kwargs, **_options(sampler_kwargs))
