"""What signals add to a GRPO step at the papers' sizes, from parts that are counted on the meta device; the targets;
how it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

from counting import Parts, added, count_parts, qwen3_config

from verl_grail.cost.shapes import KNOWN, ModelShape

MODELS = ("Qwen/Qwen3-4B", "Qwen/Qwen3-8B")
PROMPT, RESPONSE, ANSWER, GROUP = 1024, 4096, 16, 16
EPOCHS = (1, 2, 3, 4)
CASES: dict[str, dict[str, Any]] = {
    "grail, every rollout": {"selected": 1.0},
    "grail, wrong of half right": {"selected": 0.5},
    "gar, half passing": {"passing": 0.5},
    "grail, every rollout + gar": {"selected": 1.0, "passing": 0.5},
    "oar_g, every rollout": {"selected": 1.0, "noisy": True},
}


def counted(shape: ModelShape, response: int = RESPONSE, checkpointing: bool = False) -> Parts:
    """Parts at the papers' prompt and answer."""
    return count_parts(qwen3_config(shape), PROMPT, response, ANSWER, checkpointing)


def shares(parts: Parts) -> dict[str, dict[str, dict[str, float]]]:
    """Case -> epochs -> what is added (`counting.added`)."""
    return {name: {str(n): added(parts, n, group=GROUP, **case) for n in EPOCHS} for name, case in CASES.items()}


def where(parts: Parts) -> dict[str, float]:
    """Shares of a one-epoch GRPO step, every rollout selected: what GRAIL's backward is made of, what is saved, and
    what attention could still save.

    Half of attention's backward forms the gradients of queries, half those of keys and values; a query of the prompt
    looks at prompt keys only, one of the response also at the prompt's.
    """
    base = parts.log_prob + parts.train
    attention = parts.saliency_attention / base
    pairs = (PROMPT + RESPONSE) * (PROMPT + RESPONSE + 1) / 2
    queries = attention * (PROMPT * (PROMPT + 1) / 2) / pairs
    keys = attention / 2 * PROMPT * RESPONSE / pairs
    return {
        "linear layers": (parts.saliency - parts.saliency_attention) / base,
        "attention": attention,
        "linear layers at the prompt, skipped": (parts.saliency - parts.saliency_whole) / base,
        "output layer at the prompt, skipped": (parts.forward - parts.log_prob) / base,
        "attention's prompt queries, not skipped": -queries,
        "attention's prompt keys and values, not skipped": -keys,
    }


def papers() -> dict[str, Any]:
    """Everything that is counted at the papers' sizes."""
    out: dict[str, Any] = {
        "tokens": {"prompt": PROMPT, "response": RESPONSE, "answer": ANSWER, "group": GROUP},
        "models": {},
    }
    for model in MODELS:
        plain, recomputing = (counted(KNOWN[model], checkpointing=on) for on in (False, True))
        # algorithm.signals.recompute=False: training recomputes, the signal pass does not
        kept = replace(recomputing, saliency=plain.saliency)
        out["models"][model] = {
            "parts": asdict(plain),
            "added": shares(plain),
            "where": where(plain),
            "added_with_checkpointing": shares(recomputing),
            "added_in_training_alone": shares(kept),
        }
    return out


GROWTH: dict[str, tuple] = {
    "response": (1024, 2048, 4096, 8192, 16384),
    "vocab": (32_000, 64_000, 128_000, 256_000),
    "group": (2, 4, 8, 16, 32),
    "epochs": EPOCHS,
    "selected": (0.0, 0.25, 0.5, 0.75, 1.0),
    "passing": (0.0, 0.25, 0.5, 0.75, 1.0),
}
"""Fields that are varied one at a time, the others at the papers' values and one epoch."""
METHODS: dict[str, Callable[[float, float], dict[str, Any]]] = {
    "grail": lambda selected, passing: {"selected": selected},
    "gar": lambda selected, passing: {"passing": passing},
    "oar_g": lambda selected, passing: {"selected": selected, "noisy": True},
}


def growth(model: str = MODELS[0]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Field -> value -> method -> what is added (`counting.added`), on one of the models."""
    shape = KNOWN[model]
    usual = counted(shape)

    def at(field: str, value: Any) -> dict[str, dict[str, float]]:
        parts = usual
        if field == "response":
            parts = counted(shape, response=value)
        elif field == "vocab":
            parts = counted(replace(shape, vocab=value))
        chosen: dict[str, Any] = {"epochs": 1, "selected": 1.0, "passing": 0.5, "group": GROUP}
        if field in chosen:
            chosen[field] = value
        step = {"epochs": chosen["epochs"], "group": chosen["group"]}
        return {
            name: added(parts, **step, **case(chosen["selected"], chosen["passing"])) for name, case in METHODS.items()
        }

    return {field: {str(value): at(field, value) for value in values} for field, values in GROWTH.items()}


def targets(results: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each target with what came out, as shares of a GRPO step: ``at_most``; ``found`` without checkpointing; with it
    in training and in the pass's backward (``with_checkpointing``); in training alone (``in_training_alone``)."""
    for model in MODELS:
        keys = ("added", "added_with_checkpointing", "added_in_training_alone")
        found = [results["models"][model][key] for key in keys]
        for case, epochs, at_most in (
            ("grail, every rollout", 4, 0.08),
            ("grail, every rollout", 1, 0.21),
            ("grail, wrong of half right", 4, 0.04),
            ("grail, wrong of half right", 1, 0.105),
            ("gar, half passing", 1, 0.03),
        ):
            value, both, training = (x[case][str(epochs)]["plugin"] for x in found)
            yield {
                "model": model, "case": case, "epochs": epochs, "at_most": at_most, "found": value,
                "met": value <= at_most, "with_checkpointing": both, "in_training_alone": training,
            }  # fmt: skip
