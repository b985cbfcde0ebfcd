"""A step's training side, three ways on one live engine: verl's GRPO, the plugin's, and the authors' way.

The authors' way is written from their papers and the description of their code, as a baseline; it is not their code.

GRAIL: in every inner epoch, a forward of its own over the selected rollouts with all logits of the responses, and a
    backward to the embeddings.
GAR: for each rollout that passes, a forward of its own, one sample at a time, with autograd through the output layer;
    the same for each expert solution.

What happens on the driver (locating answers, weights, bonuses) is the same in all and left out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from setting import Rollouts, Setting
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.utils.losses import ppo_loss

from tests.signals.engines import batch_of, run_pass, schedule_rows
from tests.signals.tiny import Row
from verl_grail.signals.hf import find_parts
from verl_grail.signals.hooks import Leaf, checkpointing_in_eval
from verl_grail.signals.request import EMPTY_PLAN
from verl_grail.signals.schedule import Limits

Pass = Callable[[], Any]
METHODS: dict[str, dict[str, Any]] = {
    "no signal": {},
    "grail": {"weights": "grail"},
    "gar": {"gar": True},
    "grail + gar": {"weights": "grail", "gar": True},
    "oar_g": {"weights": "oar_g"},
}
"""The plugin's step by name -> options of `Ways.signals`."""
THEIRS = {"grail": {"weights": True}, "gar": {"gar": True}, "grail + gar": {"weights": True, "gar": True}}
"""The authors' way by name -> options of `Ways.authors`."""


class Ways:
    """The parts of a step.

    Args:
        engine: a live engine whose model the passes run on.
    """

    def __init__(self, engine: Any, setting: Setting, rollouts: Rollouts):
        self._engine, self._setting, self._rollouts = engine, setting, rollouts
        self._parts = find_parts(engine.module)
        self._loss = partial(ppo_loss, FSDPActorConfig(
            strategy="fsdp2", rollout_n=setting.group, ppo_micro_batch_size_per_gpu=setting.micro_batch,
            loss_agg_mode="seq-mean-token-sum-norm", loss_scale_factor=setting.response, use_dynamic_bsz=False,
        ))  # fmt: skip

    # ------------------------------ verl's ------------------------------

    def _data(self, entropy: bool, fused: bool = False) -> TensorDict:
        rows = self._rollouts.rows
        data = batch_of(rows, [EMPTY_PLAN] * len(rows))
        for name in ("old_log_probs", "advantages"):
            values = [torch.full((len(r.response),), -1.0 if i % 2 else 1.0) for i, r in enumerate(rows)]
            data[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
        tu.assign_non_tensor(
            data, use_remove_padding=False, use_dynamic_bsz=False, micro_batch_size_per_gpu=self._setting.micro_batch,
            use_fused_kernels=fused, temperature=1.0, calculate_entropy=entropy, global_batch_size=len(rows),
        )  # fmt: skip
        return data

    def log_probs(self, fused: bool = False) -> None:
        """verl's log-prob pass before the update."""
        with self._engine.eval_mode():
            self._engine.infer_batch(self._data(True, fused))

    def train(self) -> None:
        """One epoch: forward, backward and optimizer step of verl's actor."""
        with self._engine.train_mode():
            self._engine.train_batch(self._data(False), self._loss)

    # ------------------------------ the plugin's ------------------------------

    def signals(self, weights: str | None = None, gar: bool = False, recompute: bool = True) -> None:
        """The signal pass in the place of the log-prob pass, and that of the expert solutions."""
        rows, limits = self._rollouts.rows, Limits(rows=self._setting.micro_batch)
        if weights is None:
            rows = [Row(r.prompt, r.response, (0, 0), r.vector) for r in rows]
        extra: dict[str, Any] = {"method": weights or "grail", "recompute": recompute}
        if weights == "oar_g":
            extra |= {"noise_std": 1e-3, "seed": 0, "step": 1}
        order, plans, request = schedule_rows(rows, 1, limits, vectors=gar, **extra)
        run_pass(self._engine, rows, order[0], plans, request)
        if gar:
            anchors = self._rollouts.anchors
            order, plans, request = schedule_rows(anchors, 1, limits, vectors=True, log_probs=False)
            run_pass(self._engine, anchors, order[0], plans, request)

    # ------------------------------ the authors' ------------------------------

    def _logits(self, rows: list[Row]) -> torch.Tensor:
        """Of the responses and of one position more, whose logits predict nothing (as TRL takes them)."""
        ids, keep = torch.stack([r.ids for r in rows]), self._setting.response + 1
        return self._engine.module(input_ids=ids, use_cache=False, logits_to_keep=keep).logits

    def authors_saliency(self) -> list[torch.Tensor]:
        """GRAIL's: a forward with all logits and a backward to the embeddings, over the selected rollouts.

        Returns:
            Saliency (prompt + response,) of each.
        """
        found: list[torch.Tensor] = []
        size, rows = self._setting.micro_batch, [r for r in self._rollouts.rows if r.answer[1]]
        for start in range(0, len(rows), size):
            part, leaf = rows[start : start + size], Leaf(self._parts, "embeddings")
            with checkpointing_in_eval(self._parts.layers, "embeddings"), leaf():
                logits = self._logits(part)[:, :-1]
                labels = torch.tensor([r.response for r in part])
                log_p = torch.log_softmax(logits.float(), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
                mask = torch.zeros_like(log_p)
                for i, row in enumerate(part):
                    mask[i, slice(*row.answer)] = 1
                (gradient,) = torch.autograd.grad(-(log_p * mask).sum(), [leaf.value])
            found += (leaf.activation.float() * gradient.float()).norm(dim=-1)
        return found

    def authors_vectors(self) -> list[torch.Tensor]:
        """GAR's: a forward for each passing rollout and each expert solution, autograd through the output layer.

        Returns:
            Vectors (d,), before they are normalised.
        """
        found = []
        kept: dict[str, torch.Tensor] = {}

        def from_here(_module: Any, args: tuple) -> tuple:
            kept["h"] = args[0].detach().requires_grad_()
            torch.set_grad_enabled(True)
            return (kept["h"],)

        passing = [r for r in self._rollouts.rows if r.vector[1]]
        for row in [*passing, *self._rollouts.anchors]:
            handle = self._parts.head.register_forward_pre_hook(from_here)
            try:
                with torch.no_grad():
                    logits = self._logits([row])[0, :-1].float()
                    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(row.response), reduction="sum")
                    (g,) = torch.autograd.grad(loss, [kept["h"]])
            finally:
                handle.remove()
            found.append((g * kept["h"].detach())[0, :-1].mean(0))
        return found

    # ------------------------------ steps ------------------------------

    def verl_step(self) -> None:
        """(a) GRPO, as verl has it."""
        self.log_probs()
        for _ in range(self._setting.epochs):
            self.train()

    def our_step(self, weights: str | None = None, gar: bool = False) -> None:
        """(b) with the plugin's signals."""
        self.signals(weights, gar)
        for _ in range(self._setting.epochs):
            self.train()

    def authors(self, weights: bool = False, gar: bool = False) -> None:
        """(c) with the authors' way of computing them."""
        self.log_probs()
        if gar:
            self.authors_vectors()
        for _ in range(self._setting.epochs):
            if weights:
                self.authors_saliency()
            self.train()

    def steps(self) -> dict[str, Pass]:
        """Every step by name; "verl" first."""
        ours = {f"plugin: {name}": partial(self.our_step, **o) for name, o in METHODS.items()}
        theirs = {f"authors' way: {name}": partial(self.authors, **o) for name, o in THEIRS.items()}
        return {"verl": self.verl_step, **ours, **theirs}
