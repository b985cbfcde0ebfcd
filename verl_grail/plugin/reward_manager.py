"""The reward manager ``gar``: the half of GAR that needs no model.

It runs one sample at a time in verl's CPU reward workers (verl/experimental/reward_loop), before the actor sees the
batch: verify, check the format, find the span of the gradient-activation vector, pay base reward and penalties. The
trainer adds the alignment bonus after the signal pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from verl.experimental.reward_loop.reward_manager import register
from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
from verl.utils.reward_score import default_compute_score

from verl_grail.core.gar import as_solutions, length_penalty
from verl_grail.core.thinking import ThinkTags, locate_thinking, solution_span
from verl_grail.core.tokens import TokenBytes, end_ids
from verl_grail.plugin.startup import check_run

logger = logging.getLogger(__name__)

_AT_ONCE = max(2, os.cpu_count() or 2)
"""Verifications that run at a time in one reward worker."""


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
        with contextlib.suppress(RuntimeError):  # the worker shut its loop down meanwhile
            loop.call_soon_threadsafe(settle, method, result)

    threading.Thread(target=work, name="verify", daemon=True).start()
    return await future


def _verdict(result: Any) -> dict[str, Any]:
    """A verifier's result as ``score`` and ``acc`` (finite floats), its other keys kept.

    Raises:
        TypeError, ValueError: it is no number and no mapping with a numeric ``score``.
    """
    values = dict(result) if isinstance(result, dict) else {"score": result}
    score = float(values["score"])
    acc = float(values["acc"]) if values.get("acc") is not None else float(score > 0)
    if not math.isfinite(score) or not math.isfinite(acc):
        raise ValueError(f"the verifier's score or acc is not finite: {result!r}")
    named = str(values.get("outcome") or "")
    done = {"timeout": "verify_timeout", "crashed": "verify_error", "unparseable_gold": "ungraded"}.get(
        named, "verified"
    )
    graded = float(done != "ungraded")
    return values | {"score": score, "acc": float(acc > 0), "outcome": named, "graded": graded, "gar_verified": done}


def _finite(value: Any) -> float:
    """A number for the metrics; 0 for anything that is none."""
    return float(value) if isinstance(value, int | float | np.number | np.bool_) and math.isfinite(value) else 0.0


def guarded(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The verifier as a coroutine function that always returns a verdict, after ``seconds`` at the latest.

    A verifier is the user's code: whatever it raises, and however long it takes, costs one sample and is counted. The
    time runs from the start of the work: samples wait for one of `_AT_ONCE` places first, or a full batch would time
    out good samples.
    """
    places = asyncio.Semaphore(_AT_ONCE)

    async def verify(**kwargs: Any) -> dict[str, Any]:
        try:
            async with places:
                call = (
                    function(**kwargs) if inspect.iscoroutinefunction(function) else _in_daemon_thread(function, kwargs)
                )
                return _verdict(await asyncio.wait_for(call, seconds))
        except asyncio.TimeoutError:
            logger.warning("verification took longer than reward.gar.verify_timeout_s=%s", seconds)
            outcome = "verify_timeout"
        except Exception:
            logger.warning("the verifier raised, or returned no score", exc_info=True)
            outcome = "verify_error"
        named = "timeout" if outcome == "verify_timeout" else ""
        return {"score": 0.0, "acc": 0.0, "outcome": named, "graded": 1.0, "gar_verified": outcome}

    return verify


@register("gar")
class GarRewardManager(NaiveRewardManager):
    """Verdict, format, span and penalties of one rollout.

    ``reward_extra_info`` holds the same flat keys on every sample:

        acc                  1.0 if the verifier accepts the answer (its ``acc``, else score > 0), else 0.0
        verifier_score       the verifier's score, 0.0 where it failed
        outcome              the verifier's own name for its result, or empty
        graded               0.0 if the gold cannot be read, so that there is no verdict; else 1.0
        gar_outcome          pass, wrong, format_broken, verify_timeout, verify_error or ungraded
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
        verifier = guarded(compute_score or default_compute_score, self.gar.verify_timeout_s)
        super().__init__(config, tokenizer, verifier, reward_router_address, reward_model_tokenizer)
        self._token_bytes = TokenBytes.from_tokenizer(tokenizer)
        self._tags = ThinkTags(self.gar.think_open, self.gar.think_close, self.gar.open_in_prompt)
        self._special_ids = end_ids(tokenizer)

    async def run_single(self, data) -> dict:
        """Score one session's final output (verl's contract: reward_score and reward_extra_info)."""
        verdict = (await super().run_single(data))["reward_extra_info"]
        score, correct, outcome = verdict["score"], verdict["acc"] > 0, verdict["gar_verified"]
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
            "outcome": verdict["outcome"],
            "graded": verdict["graded"],
            "gar_outcome": outcome,
            "gar_pass": float(passed),
            "gar_format_valid": float(format_valid),
            "gar_format_penalty": format_penalty,
            "gar_length_penalty": shortness,
            "gar_span_start": int(span[0]),
            "gar_span_end": int(span[1]),
        }
        info.update({key: _finite(verdict.get(key)) for key in self.gar.extra_keys})
        return {"reward_score": base + format_penalty + shortness, "reward_extra_info": info}

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
        expert_ids = self.tokenizer.encode(solutions[0], add_special_tokens=False)
        start, end = solution_span(expert_ids, self._token_bytes, self._tags, self._special_ids)
        tokens = response_tokens if thinking is None else thinking[1] - thinking[0]
        return length_penalty(tokens, end - start, gar.length_penalty, gar.length_ratio, gar.length_min, gar.length_max)
