"""Runs of any size with made-up rollouts, whose dumps come from the plugin's own writer of columns."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from verl_grail.core.grail import RowOutcome
from verl_grail.core.spans import AnswerSpan
from verl_grail.core.tokens import TokenBytes
from verl_grail.plugin.dumps import dump_columns

SENTENCES = (
    "so we add the two sides and then see that each of them is even which gives a bound on every term of this sum "
    "let us check it by hand for small cases first because an odd number leaves rest one when divided by two now "
    "suppose not take any prime factor write both numbers as products compare what remains hence therefore finally"
)
WORDS = SENTENCES.split()
PIECES = [f" {word}" for word in dict.fromkeys(WORDS)] + [f" {a}{b}" for a in WORDS for b in ("s", "ed", "ing")]
PIECES += [*"0123456789", "\n", "\n\n", " =", " +", ".", ",", " \\", "boxed", "{", "}", "<|im_end|>"]
PIECES = list(dict.fromkeys(PIECES))
ID = {piece: i for i, piece in enumerate(PIECES)}
TABLE = TokenBytes([piece.encode() for piece in PIECES])
GAR = SimpleNamespace(solution_key="expert_solution", max_solutions=4)


def write_run(
    folder: Path, steps: int, prompts: int, samples: int, tokens: int = 200, seed: int = 0, gar: bool = True
) -> Path:
    """A run's folder: ``rollouts/<step>.jsonl`` of prompts x samples rollouts each, and ``metrics.jsonl``."""
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    log = [{"step": 0, "data": {"val-core/made_up/acc/mean@4": 0.21}}]
    for step in range(1, steps + 1):
        entries = _step(step, steps, prompts, samples, tokens, rng, draw, gar)
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        (folder / "rollouts" / f"{step}.jsonl").write_text(lines, encoding="utf-8")
        log.append({"step": step, "data": _metrics(entries, step, steps, rng)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log), encoding="utf-8")
    return folder


def _step(step, steps, prompts, samples, tokens, rng, draw, gar) -> list[dict[str, Any]]:
    done = step / steps
    rows, weights, spans, cosine, entries = [], [], [], {}, []
    for prompt in range(prompts):
        a, b = rng.randrange(10, 90), rng.randrange(10, 90)
        for sample in range(samples):
            right = rng.random() < 0.25 + 0.4 * done
            answer = str(a + b if right else a + b + rng.choice([1, 2, 10, -1]))
            ids, span = _response(answer, tokens, has_answer=rng.random() < 0.95, rng=rng)
            if right and span and gar:
                cosine[len(rows)] = float(np.clip(draw.normal(0.15 + 0.3 * done, 0.18), -1, 1))
            rows.append((f"p{step}x{prompt}_{sample}_0", ids, right and span is not None))
            weights.append(_weights(len(ids), span, done, draw) if span and not rows[-1][2] else np.ones(len(ids)))
            spans.append(span)
            text = f"What is {a} + {b}? Please reason step by step, and put your final answer within \\boxed{{}}."
            entries.append({"input": text, "output": "", "gts": str(a + b), "score": 0.0, "step": step})
    columns = dump_columns(*_update(rows, weights, spans, cosine, prompts, samples, gar))
    for entry, (key, ids, right) in zip(entries, rows, strict=True):
        entry["output"] = TABLE.text(ids[:-1]).decode()
        entry["score"] = float(right) + (columns[key].get("gar_bonus") or 0.0)
        entry |= {"uid": key} | columns[key]
    return entries


def _response(answer: str, tokens: int, has_answer: bool, rng: random.Random) -> tuple[list[int], AnswerSpan | None]:
    length = max(8, int(rng.gauss(tokens, tokens / 4)))
    ids = rng.choices(range(len(ID) - 8), k=length)
    for t in range(17, length, 17):
        ids[t] = ID["\n"]
    if not has_answer:
        return ids, None
    ids += [ID[" \\"], ID["boxed"], ID["{"], *(ID[digit] for digit in answer), ID["}"], ID["."], ID["<|im_end|>"]]
    content = (length + 3, length + 3 + len(answer))
    return ids, AnswerSpan(length, content[1] + 1, (content,))


def _weights(length: int, span: AnswerSpan, done: float, draw: np.random.Generator) -> np.ndarray:
    """Low in the middle of the reasoning, high at both its ends, more so as training goes on."""
    at = np.linspace(0, 1, span.start)
    z = draw.normal(size=span.start) + (0.4 + done) * (6 * (at - 0.45) ** 2 - 0.6)
    weights = np.ones(length)
    weights[: span.start] = np.clip(1 + 0.5 * z, 0.5, 5.0)
    for start, end in span.contents:
        weights[start:end] = 5.0
    return weights


def _update(rows, weights, spans, cosine, prompts, samples, gar) -> tuple:
    """The arguments of `dump_columns`, with the fields that it reads."""
    width = max(len(ids) for _, ids, _ in rows)
    n, by_prompt = len(rows), {key.rsplit("_", 2)[0]: [] for key, _, _ in rows}
    for i, (key, _, _) in enumerate(rows):
        by_prompt[key.rsplit("_", 2)[0]] += [i] if i in cosine else []
    means = {i: np.mean([cosine[m] for m in members]) for members in by_prompt.values() for i in members}
    outcome = [
        RowOutcome.UNSELECTED if right else RowOutcome.WEIGHTED if span else RowOutcome.NO_ANSWER
        for (_, _, right), span in zip(rows, spans, strict=True)
    ]
    padded = torch.tensor(np.stack([np.pad(w, (0, width - len(w)), constant_values=1.0) for w in weights]))
    step_rows = SimpleNamespace(
        keys=[key for key, _, _ in rows],
        uids=[key.rsplit("_", 2)[0] for key, _, _ in rows],
        padding=[False] * n,
        responses=[ids for _, ids, _ in rows],
        response_mask=torch.ones(n, width, dtype=torch.int64),
        correct=[right for _, _, right in rows],
        info=[
            {"acc": float(r), "gar_outcome": "pass" if r else "wrong", "outcome": "correct" if r else "wrong"}
            for _, _, r in rows
        ],
        columns={"expert_solution": [f"Add tens, then units.\nPrompt {i // samples}: carry." for i in range(n)]},
    )  # fmt: skip
    update = SimpleNamespace(
        rows=step_rows,
        weighting_plan=SimpleNamespace(spans=spans),
        weighting=SimpleNamespace(name="grail", weights=padded, outcome=torch.tensor(outcome)),
        alignment=SimpleNamespace(cosine=cosine, bonus={i: 0.5 * max(0.0, c - means[i]) for i, c in cosine.items()}),
    )
    if not gar:
        update.alignment = None
    shares = [np.mean([r for _, _, r in rows[i - i % samples : i - i % samples + samples]]) for i in range(n)]
    advantages = [torch.tensor((float(r) - s) * w) for (_, _, r), s, w in zip(rows, shares, weights, strict=True)]
    return update, SimpleNamespace(unbind=lambda: advantages), TABLE, GAR if gar else None


def _metrics(entries: list[dict[str, Any]], step: int, steps: int, rng: random.Random) -> dict[str, float]:
    weighted = [w for e in entries if e["grail_outcome"] == "weighted" for w in e["grail_weights"]]
    cosines = [e["gar_cosine"] for e in entries if e.get("gar_cosine") is not None]
    scores = [e["score"] for e in entries]
    data = {
        "critic/rewards/mean": float(np.mean(scores)),
        "critic/score/mean": float(np.mean(scores)),
        "grail/weight_mean": float(np.mean(weighted)) if weighted else 1.0,
        "grail/weight_std": float(np.std(weighted)) if weighted else 0.0,
        "grail/clip_frac_min": float(np.mean(np.array(weighted) == 0.5)) if weighted else 0.0,
        "grail/clip_frac_max": float(np.mean(np.array(weighted) == 5.0)) if weighted else 0.0,
        "grail/answer_found_rate": float(np.mean([e["answer_span"] is not None for e in entries])),
        "actor/entropy": 0.9 - 0.5 * step / steps + 0.05 * rng.random(),
        "response_length/mean": float(np.mean([len(e["tokens"]) for e in entries])),
        "timing_s/step": 10.0 + rng.random(),
    }
    if cosines:
        bonus = [e["gar_bonus"] for e in entries if e["gar_bonus"] is not None]
        data |= {"gar/cosine_mean": float(np.mean(cosines)), "gar/cosine_std": float(np.std(cosines))}
        data |= {"gar/bonus_mean": float(np.mean(bonus)), "gar/gate_rate": len(cosines) / len(entries)}
    if step % 5 == 0:
        data["val-core/made_up/acc/mean@4"] = 0.21 + 0.3 * step / steps + 0.02 * rng.random()
    return data
