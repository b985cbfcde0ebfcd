"""The reward manager ``gar``: the half of GAR that needs no model.

It runs one sample at a time in verl's CPU reward workers (verl/experimental/reward_loop), before the actor sees the
batch: verify, check the format, find the span of the gradient-activation vector, pay base reward and penalties. The
trainer adds the alignment bonus after the signal pass.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Any

from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.utils.reward_score import default_compute_score

from verl_grail.core.gar import as_solutions, length_penalty
from verl_grail.core.spans import ThinkTags, locate_thinking
from verl_grail.core.tokens import TokenBytes
from verl_grail.plugin.startup import check_run

logger = logging.getLogger(__name__)


async def _in_daemon_thread(function: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
    """Result of a blocking call; a thread that never returns holds up neither the event loop nor the shutdown."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(method: str, value: Any) -> None:
        if not future.done():
            getattr(future, method)(value)

    def work() -> None:
        try:
            result, method = function(**kwargs), "set_result"
        except Exception as e:
            result, method = e, "set_exception"
        loop.call_soon_threadsafe(settle, method, result)

    threading.Thread(target=work, name="verify", daemon=True).start()
    return await future


def with_deadline(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The verifier as a coroutine function that raises TimeoutError after ``seconds``."""

    async def verify(**kwargs: Any) -> Any:
        call = function(**kwargs) if inspect.iscoroutinefunction(function) else _in_daemon_thread(function, kwargs)
        return await asyncio.wait_for(call, seconds)

    return verify


class GarRewardManager(NaiveRewardManager):
    """Verdict, format, span and penalties of one rollout.

    ``reward_extra_info`` holds the same flat keys on every sample:

        acc                  1.0 if the verifier accepts the answer (its ``acc``, else score > 0), else 0.0
        verifier_score       the verifier's score, 0.0 where it failed
        gar_outcome          pass, wrong, format_broken, verify_timeout or verify_error
        gar_pass             1.0 if the rollout passes the gate (answer and format)
        gar_format_valid     1.0 if the strict format is kept, or none is asked for
        gar_format_penalty   <= 0
        gar_length_penalty   <= 0
        gar_span_start, gar_span_end   response tokens of the vector
    """

    def __init__(self, config, tokenizer, compute_score, reward_router_address=None, reward_model_tokenizer=None):
        settings = check_run(config)
        assert settings.gar is not None, "GarRewardManager is built by reward.reward_manager.name=gar only"
        self.gar = settings.gar
        verifier = with_deadline(compute_score or default_compute_score, self.gar.verify_timeout_s)
        super().__init__(config, tokenizer, verifier, reward_router_address, reward_model_tokenizer)
        self._token_bytes = TokenBytes.from_tokenizer(tokenizer)
        self._tags = ThinkTags(self.gar.think_open, self.gar.think_close, self.gar.open_in_prompt)
        self._special_ids = frozenset(i for i in (tokenizer.eos_token_id, tokenizer.pad_token_id) if i is not None)

    async def run_single(self, data) -> dict:
        """Score one session's final output (verl's contract: reward_score and reward_extra_info)."""
        outcome, verdict = await self._verify(data)
        score = float(verdict.get("score", 0.0))
        correct = float(verdict["acc"]) > 0 if "acc" in verdict else score > 0
        item = data[-1:][0]
        ids, thinking = self._span(item)
        format_valid = thinking is not None or not self.gar.strict_format
        passed = correct and format_valid
        if outcome == "verified":
            outcome = "pass" if passed else "wrong" if not correct else "format_broken"
        format_penalty = 0.0 if format_valid else -float(self.gar.format_penalty)
        shortness = self._length_penalty(item, thinking, len(ids)) if format_valid else 0.0
        span = thinking if thinking is not None and self.gar.span == "think" else (0, len(ids))
        base = self.gar.base_reward if passed and self.gar.outcome_reward else 0.0
        info = {
            "acc": float(correct),
            "verifier_score": score,
            "gar_outcome": outcome,
            "gar_pass": float(passed),
            "gar_format_valid": float(format_valid),
            "gar_format_penalty": format_penalty,
            "gar_length_penalty": shortness,
            "gar_span_start": int(span[0]),
            "gar_span_end": int(span[1]),
        }
        info.update({key: float(verdict.get(key) or 0.0) for key in self.gar.extra_keys})
        return {"reward_score": base + format_penalty + shortness, "reward_extra_info": info}

    async def _verify(self, data) -> tuple[str, dict]:
        try:
            result = await super().run_single(data)
        except asyncio.TimeoutError:
            logger.warning("verification took longer than reward.gar.verify_timeout_s=%s", self.gar.verify_timeout_s)
            return "verify_timeout", {}
        except Exception:
            # the verifier is the user's code: whatever it raises costs one sample, not the run, and is counted
            logger.warning("the verifier raised", exc_info=True)
            return "verify_error", {}
        return "verified", {"score": result["reward_score"], **result["reward_extra_info"]}

    def _span(self, item) -> tuple[list[int], tuple[int, int] | None]:
        """The response's ids and its thinking span (None: format broken)."""
        width = item.batch["responses"].shape[-1]
        length = int(item.batch["attention_mask"][-width:].sum())
        ids = item.batch["responses"][:length].tolist()
        return ids, locate_thinking(ids, self._token_bytes, self._tags, self._special_ids)

    def _length_penalty(self, item, thinking: tuple[int, int] | None, response_tokens: int) -> float:
        gar = self.gar
        if not gar.length_penalty:
            return 0.0
        solutions = as_solutions(item.non_tensor_batch.get(gar.solution_key), gar.max_solutions)
        if not solutions:
            return 0.0
        expert = len(self.tokenizer.encode(solutions[0], add_special_tokens=False))
        tokens = response_tokens if thinking is None else thinking[1] - thinking[0]
        return length_penalty(tokens, expert, gar.length_penalty, gar.length_ratio, gar.length_min, gar.length_max)


def register(reward_manager) -> None:
    """Put the manager into verl's registry."""
    reward_manager.register("gar")(GarRewardManager)
