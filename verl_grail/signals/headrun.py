"""The output layer of one forward: results for every response token, and a surrogate whose gradient is the loss's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from verl_grail.core.head import WHOLE, HeadQuery, HeadResult, Vocabulary, answer_sums, kl_cotangent, run_head
from verl_grail.signals.positions import Positions
from verl_grail.signals.request import PassRequest


class Part(Protocol):
    """The share of a micro-batch's response tokens whose predicting states this rank holds."""

    mine: torch.Tensor
    """(N,) bool."""
    predicting: torch.Tensor
    """Index of each of those states in this rank's hidden states."""

    def gather(self, values: torch.Tensor, mine: torch.Tensor) -> torch.Tensor:
        """Values of this rank's entries -> values of all N entries, on every rank that shares the sequences."""

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sum over the ranks that share the sequences."""


@dataclass(frozen=True)
class OutputLayer:
    """``project``: hidden (n, d) -> logits (n, V); ``weight`` (V, d); ``vocabulary``: the part that V is."""

    project: Callable[[torch.Tensor], torch.Tensor]
    weight: torch.Tensor
    vocabulary: Vocabulary = WHOLE


class HeadRun:
    """What one forward asks of the output layer, and what came of it.

    Args:
        grail: form GRAIL's cotangents.
        mean_logits: keep OAR-G's mean answer logits (its clean forward).
        clean: those of the clean forward: form OAR-G's cotangents, and nothing else.
        alone: form GRAIL's cotangents and nothing else, at the answer's positions only.
    """

    def __init__(
        self,
        request: PassRequest,
        at: Positions,
        grail: bool = False,
        mean_logits: bool = False,
        clean: torch.Tensor | None = None,
        alone: bool = False,
    ):
        self.at, self._alone = at, alone
        self._request, self._grail, self._mean_logits, self._clean = request, grail, mean_logits, clean
        self.result: HeadResult
        self.mean: torch.Tensor

    def evaluate(self, states: torch.Tensor, part: Part, layer: OutputLayer) -> torch.Tensor:
        """Results of this rank's predicting states (n, d), without a graph.

        Returns:
            Cotangents dL/dh (n_answer, d) float32 of those in the answer loss, in their order.
        """
        if self._clean is not None:
            return self._oar_g_cotangent(states, part, layer, self._clean)
        return self._cotangent_alone(states, part, layer) if self._alone else self._results(states, part, layer)

    def _query(self, part: Part, answer: bool, vector: bool) -> HeadQuery:
        at, mine, request = self.at, part.mine, self._request
        return HeadQuery(
            labels=at.labels[mine],
            rows=at.rows[mine],
            answer=at.answer[mine] if answer else torch.zeros_like(at.answer[mine]),
            vector=at.vector[mine] if vector else torch.zeros_like(at.vector[mine]),
            n_rows=at.prompt_lengths.shape[0],
            temperature=request.temperature,
            raw_gradient=request.raw_gradient,
        )

    def _results(self, states: torch.Tensor, part: Part, layer: OutputLayer) -> torch.Tensor:
        query = self._query(part, self._grail, self._request.vectors)
        result = run_head(states, layer.project, layer.weight, query, self._request.chunk, layer.vocabulary)
        self.result = HeadResult(
            part.gather(result.log_probs, part.mine),
            part.gather(result.entropy, part.mine),
            result.cotangent,
            part.total(result.vector_sum) if self._request.vectors else result.vector_sum,
        )
        if self._mean_logits:
            self.mean = self._answer_logits(states, part, layer)[0]
        return result.cotangent

    def _cotangent_alone(self, states: torch.Tensor, part: Part, layer: OutputLayer) -> torch.Tensor:
        query = self._query(part, True, False)
        answer = query.answer
        query = replace(
            query, labels=query.labels[answer], rows=query.rows[answer], answer=answer[answer], vector=~answer[answer]
        )
        found = run_head(states[answer], layer.project, layer.weight, query, self._request.chunk, layer.vocabulary)
        return found.cotangent

    def _answer_logits(self, states: torch.Tensor, part: Part, layer: OutputLayer) -> tuple[torch.Tensor, torch.Tensor]:
        total, count = (part.total(x) for x in answer_sums(states, self._query(part, True, False)))
        return layer.project((total / count.clamp(min=1).unsqueeze(1)).to(states.dtype)).float(), count

    @torch.no_grad()
    def _oar_g_cotangent(
        self, states: torch.Tensor, part: Part, layer: OutputLayer, clean: torch.Tensor
    ) -> torch.Tensor:
        noisy, count = self._answer_logits(states, part, layer)
        rows = kl_cotangent(clean, noisy, layer.weight, count, layer.vocabulary)
        return rows[self.at.rows[part.mine][self.at.answer[part.mine]]]
