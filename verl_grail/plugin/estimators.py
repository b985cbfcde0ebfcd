"""The advantage estimators ``grail`` and ``oar_g`` of verl's registry (verl/trainer/ppo/core_algos.py).

verl calls a registered estimator with rewards, mask, groups and config only. The weights come from the trainer, which
computed them from the signal pass of the same batch and hands them over around its call (`hand_over`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo import core_algos

from verl_grail.config import ConfigError, GrailConfig, OarGConfig


@dataclass(frozen=True)
class Sessions:
    """Which rows are the final output of their agent session, as verl treats them for "grpo"
    (verl/trainer/ppo/v1/utils.py, compute_advantage_for_multi_trajectories): only those enter a group's statistics,
    and their advantage is broadcast to the session's other rows."""

    final_rows: list[int]
    final_of_row: list[int]
    """For each row, the position in ``final_rows`` of its session."""

    @classmethod
    def from_keys(cls, keys: Sequence[str]) -> Sessions:
        """From TransferQueue keys ``{uid}_{session}_{output}``; sessions in order of appearance, as verl's."""
        final: dict[str, tuple[int, int]] = {}
        sessions = []
        for row, key in enumerate(keys):
            session, _, output = key.rpartition("_")
            sessions.append(session)
            if session not in final or final[session][0] < int(output):
                final[session] = (int(output), row)
        place = {session: i for i, session in enumerate(final)}
        return cls([row for _, row in final.values()], [place[s] for s in sessions])

    def without(self, dropped: torch.Tensor) -> tuple[list[int], Sessions]:
        """Kept rows and their sessions, where ``dropped`` (B,) marks rows of whole sessions."""
        kept = [row for row, gone in enumerate(dropped.tolist()) if not gone]
        new = {row: i for i, row in enumerate(kept)}
        finals = [row for row in self.final_rows if row in new]
        place = {row: i for i, row in enumerate(finals)}
        return kept, Sessions([new[r] for r in finals], [place[self.final_rows[self.final_of_row[r]]] for r in kept])

    @property
    def single(self) -> bool:
        """Every session has one output, so rows and sessions are the same."""
        return len(self.final_rows) == len(self.final_of_row)


@dataclass
class Handover:
    """What the trainer hands to the estimator, and what it learns back for its metrics."""

    weights: torch.Tensor
    """(B, T) float32, row order of the batch."""
    sessions: Sessions
    section: GrailConfig | OarGConfig
    padding: torch.Tensor
    """(B,) bool."""
    base: torch.Tensor | None = field(default=None)
    """(B, T) unweighted advantages, set by the estimator."""


_handover: ContextVar[Handover | None] = ContextVar("verl_grail_handover", default=None)


@contextmanager
def hand_over(handover: Handover) -> Iterator[None]:
    """Make the weights available to the estimator for the length of one call."""
    token = _handover.set(handover)
    try:
        yield
    finally:
        _handover.reset(token)


def base_advantage(
    section: GrailConfig | OarGConfig,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: np.ndarray,
    config: Any,
    sessions: Sessions,
    padding: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantage and return (B, T) of the base estimator on final outputs, broadcast to their sessions' other rows.

    Padding rows, (B,) bool, get zeros and are kept from the base: one alone in its group, or a group of empty masks,
    is an error or a division by zero for some of them.
    """
    if padding.any():
        kept, sessions = sessions.without(padding)
        parts = base_advantage(
            section,
            token_level_rewards[kept],
            response_mask[kept],
            index[kept],
            config,
            sessions,
            torch.zeros(len(kept), dtype=torch.bool),
        )
        whole = [torch.zeros_like(token_level_rewards) for _ in parts]
        for out, part in zip(whole, parts, strict=True):
            out[kept] = part
        return whole[0], whole[1]
    function = core_algos.get_adv_estimator_fn(section.base_estimator)
    kwargs: dict[str, Any] = {}
    if "norm_adv_by_std_in_grpo" in inspect.signature(function).parameters:
        # verl passes this in its own grpo branch only, and its default is True
        kwargs["norm_adv_by_std_in_grpo"] = section.norm_adv_by_std
        if isinstance(config, DictConfig):
            config = copy.copy(config)
            with open_dict(config):
                config.norm_adv_by_std_in_grpo = section.norm_adv_by_std
    if sessions.single:
        return function(
            token_level_rewards=token_level_rewards, response_mask=response_mask, index=index, config=config, **kwargs
        )
    rows = sessions.final_rows
    advantages, _ = function(
        token_level_rewards=token_level_rewards[rows],
        response_mask=response_mask[rows],
        index=index[rows],
        config=config,
        **kwargs,
    )
    first = response_mask[rows].argmax(dim=1)
    scalar = advantages[torch.arange(len(rows)), first][sessions.final_of_row]
    spread = scalar.unsqueeze(-1) * response_mask
    return spread, spread


def _weighted_advantage(
    name: str,
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    config: Any = None,
    index: np.ndarray | None = None,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    handover = _handover.get()
    if handover is None:
        raise ConfigError(
            f"algorithm.adv_estimator={name} was called without the weights of a signal pass: set "
            "trainer.v1.trainer_mode to grail_sync, grail_colocate_async or grail_separate_async (and "
            "trainer.use_v1=True)"
        )
    if handover.weights.shape != response_mask.shape:
        raise RuntimeError(
            f"weights of shape {tuple(handover.weights.shape)} for a batch of shape {tuple(response_mask.shape)}"
        )
    base, returns = base_advantage(
        handover.section, token_level_rewards, response_mask, index, config, handover.sessions, handover.padding
    )
    handover.base = base
    return base * handover.weights, returns


def grail(token_level_rewards, response_mask, config=None, index=None, **kwargs):
    """GRAIL: ``A_t = w_t * A`` (arXiv 2606.04889); (B, T) advantages and the base's returns."""
    return _weighted_advantage("grail", token_level_rewards, response_mask, config, index, **kwargs)


def oar_g(token_level_rewards, response_mask, config=None, index=None, **kwargs):
    """OAR-G: ``A_t = w_t * A`` (arXiv 2601.07408); (B, T) advantages and the base's returns."""
    return _weighted_advantage("oar_g", token_level_rewards, response_mask, config, index, **kwargs)


core_algos.register_adv_est("grail")(grail)
core_algos.register_adv_est("oar_g")(oar_g)
