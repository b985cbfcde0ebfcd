"""What the page's script reads: a header in JSON and typed arrays, compressed, as text that HTML can hold.

Layout before compression, little-endian: uint32 length of the header; the header (UTF-8 JSON); zeros up to a multiple
of 8; then each array at the offset that ``header.arrays[name] = [dtype, offset, length]`` gives, counted from the end
of those zeros. ``web/data.js`` reads it.

Base64 has no character that ends an HTML element, so no text of a model can leave the element that holds it.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from verl_grail.report.rollouts import Rollout
from verl_grail.report.run.collect import Collected, Kept
from verl_grail.report.run.regions import REGIONS
from verl_grail.report.run.sums import VERDICTS, WEIGHT_BIN, StepSums
from verl_grail.report.tokens import clean

ALL_ONES, NO_WEIGHTS, WEIGHTS = range(3)
"""What a row's entry in ``weighing`` says: every weight is 1, there are none, or they are in ``weights``."""
UNKNOWN_WEIGHT = 65535
UNKNOWN_VERDICT = 2


class Table:
    """Texts without repetitions, made safe to show."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def number(self, text: str) -> int:
        """Of a text, new or known."""
        return self._index.setdefault(text, len(self._index))

    def texts(self) -> list[str]:
        """By number."""
        return [clean(text) for text in self._index]


def encode(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Base64 of the layout above."""
    blobs, places, at = [], {}, 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
        places[name] = [array.dtype.name, at, len(array)]
        blobs.append(data + bytes(-len(data) % 8))
        at += len(blobs[-1])
    # ASCII: JSON's escapes carry even a lone surrogate. allow_nan: the browser's parser knows no NaN.
    head = json.dumps({**header, "arrays": places}, separators=(",", ":"), allow_nan=False).encode("ascii")
    start = len(head).to_bytes(4, "little") + head
    # mtime 0: the same run gives the same file.
    packed = gzip.compress(start + bytes(-len(start) % 8) + b"".join(blobs), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode("ascii")


def payload(collected: Collected) -> str:
    """The whole report as text."""
    used, ids = np.unique(_joined([k.ids for k in collected.kept], np.uint32), return_inverse=True)
    texts = collected.vocabulary.texts()
    steps = sorted(collected.sums)
    header = {
        "vocabulary": [clean(texts[number]) for number in used],
        "metrics": _metrics(collected),
        "sums": _sums_header(collected, steps),
        "total": collected.total,
        "notes": [clean(note) for note in collected.run.notes],
    }
    tables, arrays = _rows(collected, steps)
    weights, scale = _quantised(_joined([k.weights for k in collected.kept], np.float32))
    arrays["ids"] = ids.astype(np.uint16 if len(used) <= 1 << 16 else np.uint32)
    arrays["weights"] = weights
    return encode({**header, **tables, "weight_scale": scale}, arrays)


def _quantised(weights: np.ndarray) -> tuple[np.ndarray, float]:
    """uint16 multiples of a scale (0.001 unless a weight is above 65); `UNKNOWN_WEIGHT` for what is not finite."""
    known = np.isfinite(weights)
    highest = float(weights[known].max()) if known.any() else 0.0
    scale = max(0.001, highest / (UNKNOWN_WEIGHT - 1))
    rounded = np.full(len(weights), UNKNOWN_WEIGHT, dtype=np.uint16)
    rounded[known] = np.clip(np.rint(weights[known] / scale), 0, UNKNOWN_WEIGHT - 1).astype(np.uint16)
    return rounded, scale


def _rows(collected: Collected, steps: list[int]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Tables of texts and one array per column of the rollouts."""
    kept, rollouts = collected.kept, [k.rollout for k in collected.kept]
    names = ("prompts", "golds", "groups", "members", "weight_outcomes", "gar_outcomes", "reward_outcomes", "outputs")
    tables = {name: Table() for name in names}
    step_index = {step: i for i, step in enumerate(steps)}
    group_of = {(step, group): tables["groups"].number(f"{step}:{group}") for step, group in map(_group, rollouts)}

    def numbered(name: str, texts: Iterable[str]) -> np.ndarray:
        return np.array([tables[name].number(text) for text in texts], dtype=np.uint32)

    def numbers(values: Iterable[float | None]) -> np.ndarray:
        return np.array(list(values), dtype=np.float32)

    arrays = {
        "step": np.array([step_index[r.step] for r in rollouts], dtype=np.uint32),
        "group": np.array([group_of[_group(r)] for r in rollouts], dtype=np.uint32),
        "member": numbered("members", (r.uid.removeprefix(f"{r.group}_") for r in rollouts)),
        "prompt": numbered("prompts", (r.prompt for r in rollouts)),
        "gold": numbered("golds", (r.gold for r in rollouts)),
        "weight_outcome": numbered("weight_outcomes", (r.weight_outcome or "" for r in rollouts)),
        "gar_outcome": numbered("gar_outcomes", (r.gar_outcome or "" for r in rollouts)),
        "reward_outcome": numbered("reward_outcomes", (r.reward_outcome or "" for r in rollouts)),
        "output": numbered("outputs", (r.output for r in rollouts)),
        "verdict": np.array([UNKNOWN_VERDICT if r.correct is None else r.correct for r in rollouts], dtype=np.uint8),
        "score": numbers(r.score for r in rollouts),
        "cosine": numbers(r.cosine for r in rollouts),
        "bonus": numbers(r.bonus for r in rollouts),
        "mean_weight": numbers(k.mean_weight for k in kept),
        "advantage_low": numbers(k.advantage[0] if k.advantage else None for k in kept),
        "advantage_high": numbers(k.advantage[1] if k.advantage else None for k in kept),
        "length": np.array([len(k.ids) for k in kept], dtype=np.uint32),
        "weighing": np.array([_weighing(k) for k in kept], dtype=np.uint8),
        "answer": np.array([r.answer_span or (0, 0) for r in rollouts], dtype=np.uint32).reshape(-1),
        **_ragged("contents", [r.contents for r in rollouts]),
        **_ragged("masked", [r.masked for r in rollouts]),
    }
    solutions = {
        group_of[key]: list(map(clean, texts)) for key, texts in collected.solutions.items() if key in group_of
    }
    return {**{name: table.texts() for name, table in tables.items()}, "solutions": solutions}, arrays


def _group(rollout: Rollout) -> tuple[int, str]:
    return rollout.step, rollout.group


def _weighing(kept: Kept) -> int:
    if len(kept.weights):
        return WEIGHTS
    return ALL_ONES if kept.rollout.weighting is not None else NO_WEIGHTS


def _ragged(name: str, rows: Sequence[tuple[tuple[int, int], ...]]) -> dict[str, np.ndarray]:
    """Number of ranges of each row, and all their ends one after the other."""
    ends = [end for spans in rows for span in spans for end in span]
    return {
        f"{name}_count": np.array([len(spans) for spans in rows], dtype=np.uint32),
        f"{name}_ends": np.array(ends, dtype=np.uint32),
    }


def _joined(arrays: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *arrays])


def _metrics(collected: Collected) -> dict[str, list[list[float]]]:
    """Name -> steps and values (7 digits)."""
    names = dict.fromkeys(name for data in collected.run.metrics.values() for name in data)
    columns = {name: zip(*collected.run.series(name), strict=True) for name in names}
    return {
        clean(name): [list(steps), [float(f"{v:.7g}") for v in values]] for name, (steps, values) in columns.items()
    }


def _sums_header(collected: Collected, steps: list[int]) -> dict[str, Any]:
    """The charts of every step, and last of all steps together."""
    every = [collected.sums[step] for step in steps]
    top = max([sums.weights.any(axis=0).nonzero()[0].max(initial=-1) for sums in every], default=-1) + 1
    return {
        "steps": steps,
        "regions": REGIONS,
        "weight_bin": WEIGHT_BIN,
        "each": [_step_header(sums, top) for sums in [*every, *([sum(every, StepSums())] if every else [])]],
    }


def _step_header(sums: StepSums, top: int) -> dict[str, Any]:
    profiles = {}
    for verdict in VERDICTS:
        profile = sums.profiles[verdict]
        mean, half = profile.mean(), profile.half_width()
        profiles[verdict] = {
            "rollouts": profile.rollouts,
            "prompts": profile.prompts,
            "mean": None if mean is None else mean.round(5).tolist(),
            "half": None if half is None else half.round(5).tolist(),
        }
    return {
        "rollouts": sums.rollouts,
        "weighted": sums.weighted,
        "with_cosine": sums.with_cosine,
        "cosine_mean": round(sums.cosine_total / sums.with_cosine, 6) if sums.with_cosine else None,
        "weights": sums.weights[: len(REGIONS) - 1, :top].tolist(),
        "profiles": profiles,
        "cosines": sums.cosines.tolist(),
    }
