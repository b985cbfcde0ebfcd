"""``verl-grail check OVERRIDES``: would this run start, and what would it do? Needs no GPU and starts nothing.

Takes what follows ``python -m verl.trainer.main_ppo``: composes it, runs verl's own validation and ours, and tells what
each method does with it and what that costs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from verl_grail.cost.flops import Workload, step_cost
from verl_grail.cost.memory import Parallel, memory
from verl_grail.cost.shapes import KNOWN, ModelShape

_GIB = 1 << 30
_ANSWER_TOKENS = 16
_PASSING = 0.5
"""Share of rollouts that the estimate takes to be right."""


def run(args: argparse.Namespace) -> int:
    """Print; 1 if the run would be refused."""
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    try:
        config = _compose(args.overrides)
        notes = [*_validate(config), *template_notes(config)]
    except Exception as e:  # hydra's, omegaconf's, verl's assertions and ours: all say what is wrong
        console.print("[bold red]refused[/]", end=" ")
        console.print(_message(e), markup=False)
        return 1
    for note in notes:
        console.print("[yellow]note[/]", end="    ")
        console.print(note, markup=False)
    for line in [*explain(config), *estimate(config)]:
        console.print(line, markup=False)
    console.print("[bold green]This run passes all checks.[/]")
    return 0


def _message(error: BaseException) -> str:
    """The message that helps most: hydra hides the first cause behind its own."""
    cause = error.__cause__
    text = str(error).strip() or type(error).__name__
    return f"{text}\n{cause}".strip() if cause is not None and str(cause) not in text else text


def _compose(overrides: list[str]) -> Any:
    from hydra import compose, initialize_config_module

    name = "ppo_trainer"
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose(name, overrides=overrides)


class _Notes(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def _validate(config: Any) -> list[str]:
    """verl's validation, and ours inside of it; returns the warnings."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    notes, log = _Notes(), logging.getLogger("verl_grail")
    log.addHandler(notes)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            validate_config(config, need_reference_policy(config), need_critic(config))
    finally:
        log.removeHandler(notes)
    return notes.found


def template_notes(config: Any) -> list[str]:
    """A local model without a chat template: verl then filters out every prompt, or fails at the first."""
    model = config.actor_rollout_ref.model
    folder = Path(os.path.expanduser(model.get("tokenizer_path") or model.path))
    card = folder / "tokenizer_config.json"
    if model.get("custom_chat_template") or not card.is_file() or (folder / "chat_template.jinja").is_file():
        return []
    if json.loads(card.read_text()).get("chat_template"):
        return []
    return [f"{folder} has no chat template: set actor_rollout_ref.model.custom_chat_template"]


# ------------------------------ what it does ------------------------------


def explain(config: Any) -> list[str]:
    """What each method does in this run, a line each."""
    from verl_grail.config import load_settings

    settings = load_settings(config)
    if not settings.active:
        return [f"verl's own {config.algorithm.adv_estimator}: no signal is computed"]
    lines = []
    section = settings.weighting
    if section is not None:
        name = section.key.rsplit(".", 1)[1]
        kept = " with an advantage other than zero" if section.skip_zero_advantage else ""
        which = {"all": "every rollout", "wrong": "every wrong rollout", "correct": "every correct rollout"}
        path = _path_of(settings)
        backward = f"{path} forwards and backwards between zero and" if path else "a backward to"
        lines.append(
            f"{name}: {which[section.rollouts]} ({section.select_by}){kept} and an answer in the "
            f"{section.box} {settings.answers.locator} gets {backward} its embeddings and token weights on its "
            f"{section.base_estimator} advantage; reading: {section.reading}"
        )
    gar = settings.gar
    if gar is not None:
        gated = "every rollout that passes" if gar.gate else "every well-formed rollout"
        span = "thinking" if gar.span == "think" else "response"
        lines.append(
            f"gar: {gated} gets a {gar.signal} vector over its {span}; bonus {gar.beta} x its cosine with the expert "
            f"solution ({gar.solution_key}) above the group's mean; reading: {gar.reading}"
        )
    bypass = bool((config.algorithm.get("rollout_correction") or {}).get("bypass_mode", False))
    where = "beside it (bypass mode): rows with a signal only" if bypass else "in place of verl's log-prob pass"
    lines.append(f"signal pass: {where}, on the {config.actor_rollout_ref.actor.strategy} actor")
    return lines


def _path_of(settings: Any) -> int:
    """Points of Integrated Gradients; 0 without."""
    grail = settings.grail
    return grail.ig_steps if grail and grail.saliency == "integrated_gradients" else 0


# ------------------------------ what it costs ------------------------------


def shape_of(path: str) -> ModelShape:
    """Sizes of the model at a path, or of one of the papers' models by its name.

    Raises:
        ValueError: unknown, or not a dense decoder.
    """
    file = Path(os.path.expanduser(path)) / "config.json"
    if file.is_file():
        return ModelShape.from_config(json.loads(file.read_text()))
    if path in KNOWN:
        return KNOWN[path]
    raise ValueError(f"no {file}, and {path} is not one of the papers' models")


def parallel_of(config: Any) -> Parallel:
    """How the actor is spread."""
    actor, gpus = config.actor_rollout_ref.actor, config.trainer.nnodes * config.trainer.n_gpus_per_node
    if actor.strategy == "megatron":
        m = actor.megatron
        sizes = (m.tensor_model_parallel_size, m.pipeline_model_parallel_size, m.context_parallel_size)
        return Parallel(gpus, *sizes, fsdp=False)
    return Parallel(gpus, context=actor.fsdp_config.get("ulysses_sequence_parallel_size", 1) or 1)


def workload_of(config: Any) -> Workload:
    """A step with responses of full length."""
    from verl_grail.config import load_settings
    from verl_grail.plugin.startup import recomputes

    settings = load_settings(config)
    actor, rollout, data = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.data
    section, gar = settings.weighting, settings.gar
    share = {"all": 1.0, "wrong": 1 - _PASSING, "correct": _PASSING}
    return Workload(
        rows=data.train_batch_size * rollout.n,
        prompt=data.max_prompt_length,
        response=data.max_response_length,
        updates=actor.ppo_epochs,
        recompute=recomputes(config),
        recompute_signals=settings.signals.recompute,
        saliency=share[section.rollouts] if section else 0.0,
        answer=_ANSWER_TOKENS,
        selective=actor.strategy != "megatron" and getattr(section, "measure", None) is None,
        noisy=settings.oar_g is not None,
        path=_path_of(settings),
        vectors=(_PASSING if gar.gate else 1.0) if gar else 0.0,
        anchors=data.train_batch_size if gar else 0,
    )


def estimate(config: Any) -> list[str]:
    """FLOPs and memory from shapes; what they assume is said."""
    from verl_grail.config import load_settings

    settings = load_settings(config)
    try:
        shape = shape_of(config.actor_rollout_ref.model.path)
    except ValueError as e:
        return [f"no estimate of cost: {e}"]
    actor, work = config.actor_rollout_ref.actor, workload_of(config)
    tokens = (
        actor.ppo_max_token_len_per_gpu
        if actor.use_dynamic_bsz
        else actor.ppo_micro_batch_size_per_gpu * (work.prompt + work.response)
    )
    parallel = parallel_of(config)
    if actor.use_dynamic_bsz:
        tokens *= parallel.context
    used = memory(shape, parallel, tokens, settings.signals.head_chunk_tokens, settings.signals.recompute)
    lines = [
        f"memory of a GPU ({shape.parameters / 1e9:.1f}e9 parameters over {parallel.gpus}): "
        f"{used.state / _GIB:.1f} GiB of state; training {used.training / _GIB:.1f}, of which logits "
        f"{used.logits / _GIB:.1f}"
    ]
    if settings.active:
        cost = step_cost(shape, work)
        parts = {"saliency": cost.saliency, "vectors": cost.vectors, "expert solutions": cost.anchors}
        added = ", ".join(f"{name} +{100 * cost.share(part):.1f} %" for name, part in parts.items() if part)
        traffic = work.rows * work.response * 4 * (1 + bool(settings.weighting)) / (1 << 20)
        vectors = (work.rows * work.vectors + work.anchors) * shape.width * 4 / (1 << 20)
        lines[0] += f"; signal pass {used.signal_pass / _GIB:.1f}, of which its own {used.signal / _GIB:.1f}"
        lines.append(
            f"FLOPs against a {config.algorithm.adv_estimator if not settings.weighting else 'grpo'} step without "
            f"signals: {added or 'none'} (responses of full length, half of the rollouts right)"
        )
        lines.append(f"through TransferQueue a step: {traffic + vectors:.0f} MiB more than verl's own log-probs")
    return lines


def add(commands) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "check",
        help="would this run start, and what would it do? takes the overrides of python -m verl.trainer.main_ppo",
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE")
    parser.set_defaults(run=run)
