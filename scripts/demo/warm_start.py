"""The demo's model: a small Qwen3 taught the task by supervised training, and stopped half-way.

The point is a policy that keeps the format, mixes both methods and gets about 45 % of its answers right at
temperature 1: reinforcement learning then has rollouts of both verdicts in nearly every group. So training stops on
accuracy, measured by sampling answers to problems that neither data file holds, and not on a loss. The learning
rate falls linearly to zero over `Settings.max_steps`: at a constant rate the accuracy jumps by ten points from check
to check, while under the decay it rises steadily through the target.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import task
import tokenizer as demo_tokenizer
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

IGNORE = -100  # what the cross-entropy of transformers skips
CHUNK = 16  # batches drawn and sorted by length together, so that little of a batch is padding


@dataclass(frozen=True)
class Settings:
    """Size of the model, and when its training stops."""

    hidden_size: int = 128
    intermediate_size: int = 256
    layers: int = 4
    batch_size: int = 16
    adam_lr: float = 2e-3
    """For embeddings, output layer and norms."""
    muon_lr: float = 0.015
    """For the matrices of the blocks."""
    warmup_steps: int = 30
    target: float = 0.45
    """Training stops at the first measured accuracy that reaches this."""
    first_check: int = 800
    check_every: int = 50
    check_size: int = 192
    """Problems a check samples one answer each to: a standard error of 3.6 points."""
    max_steps: int = 1300
    """Also the length of the learning rate's decay; the target is met a little before its end."""


NORMAL = Settings()
FAST = Settings(layers=3, first_check=350, max_steps=650)


class Muon:
    """Momentum whose update is orthogonalised (Newton-Schulz), for matrices only.

    It needs about half the steps of AdamW here. `torch.optim.Muon` iterates in bfloat16, which is slow on CPUs.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], momentum: float = 0.95, weight_decay: float = 0.1):
        self.parameters, self.momentum, self.weight_decay = parameters, momentum, weight_decay
        self.buffers = [torch.zeros_like(parameter) for parameter in parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every matrix from its ``.grad``."""
        for parameter, buffer in zip(self.parameters, self.buffers, strict=True):
            buffer.mul_(self.momentum).add_(parameter.grad)
            update = parameter.grad + self.momentum * buffer
            update = orthogonalise(update if update.shape[0] <= update.shape[1] else update.T)
            if parameter.shape[0] > parameter.shape[1]:
                update = update.T
            scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
            parameter.mul_(1 - lr * self.weight_decay).add_(update, alpha=-lr * scale)


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """Push the singular values of `matrix` (m, n), m <= n, towards 1 by five Newton-Schulz iterations."""
    x = matrix / (matrix.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def build_model(tokenizer: PreTrainedTokenizerFast, settings: Settings, seed: int) -> Qwen3ForCausalLM:
    """A fresh model in float32; its vocabulary is exactly the tokenizer's, and its output layer is its own.

    Heads of 32 are the smallest that vLLM's CPU attention takes.
    """
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def batches(
    tokenizer: PreTrainedTokenizerFast, ranges: task.Ranges, batch_size: int, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless ``(input_ids, labels)``, both (batch_size, longest), right-padded; labels cover solution and EOS only.

    The problems are of the train split; each is solved by a method drawn evenly.
    """
    problems = task.stream(seed, ranges, "train")
    rng = random.Random(seed)
    while True:
        drawn = [next(problems) for _ in range(batch_size * CHUNK)]
        # Prompt and solution are encoded apart, as in a rollout: no token may straddle the seam.
        prompts = tokenizer([demo_tokenizer.prompt_text(tokenizer, problem.text) for problem in drawn])["input_ids"]
        solutions = tokenizer([task.solution(problem, rng.choice(task.METHODS)) for problem in drawn])["input_ids"]
        pairs = [(p, [*s, tokenizer.eos_token_id]) for p, s in zip(prompts, solutions, strict=True)]
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        starts = list(range(0, len(pairs), batch_size))
        rng.shuffle(starts)
        for start in starts:
            yield collate(pairs[start : start + batch_size], tokenizer.pad_token_id)


def collate(pairs: list[tuple[list[int], list[int]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-pad ``(prompt ids, solution ids)`` pairs to ``(input_ids, labels)``, both (n, longest)."""
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    inputs = torch.full((len(pairs), width), pad)
    labels = torch.full((len(pairs), width), IGNORE)
    for i, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        inputs[i, :end] = torch.tensor(prompt + answer)
        labels[i, len(prompt) : end] = torch.tensor(answer)
    return inputs, labels


@torch.no_grad()
def sample(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: list[task.Problem],
    max_new_tokens: int,
    seed: int,
) -> list[str]:
    """One response per problem, sampled at temperature 1 from the full distribution."""
    prompts = [demo_tokenizer.prompt_text(tokenizer, problem.text) for problem in problems]
    encoded = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    training = model.training
    model.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        output = model.generate(
            input_ids=encoded["input_ids"],
            attention_mask=encoded["attention_mask"],
            max_new_tokens=max_new_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
        )
    model.train(training)
    return tokenizer.batch_decode(output[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)


def is_correct(problem: task.Problem, response: str) -> bool:
    """Whether `response` ends as a solution does, with the gold answer in the box."""
    return response.startswith("<think>\n") and response.endswith(f"\n</think>\n\\boxed{{{problem.answer}}}")


def accuracy(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    problems: list[task.Problem],
    max_new_tokens: int,
    seed: int = 0,
) -> float:
    """Share of `problems` answered correctly by one sample each."""
    responses = sample(model, tokenizer, problems, max_new_tokens, seed)
    return sum(map(is_correct, problems, responses)) / len(problems)


def warm_start(
    tokenizer: PreTrainedTokenizerFast,
    ranges: task.Ranges,
    settings: Settings,
    max_new_tokens: int,
    seed: int = 0,
) -> tuple[Qwen3ForCausalLM, dict]:
    """Train a model until its sampled accuracy reaches ``settings.target``.

    One thread only: sums then have one order, so a seed gives the same model on the same machine.

    Returns:
        The model in eval mode, and ``{"steps", "loss", "probe_accuracy", "probe_size"}``; the accuracy is 0.0 if
        ``settings.max_steps`` came before the first check.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _train(tokenizer, ranges, settings, max_new_tokens, seed)
    finally:
        torch.set_num_threads(threads)


def _train(tokenizer, ranges, settings, max_new_tokens, seed) -> tuple[Qwen3ForCausalLM, dict]:
    model = build_model(tokenizer, settings, seed).train()
    matrices = [p for name, p in model.named_parameters() if ".layers." in name and p.ndim == 2]
    taken = {id(p) for p in matrices}
    muon = Muon(matrices)
    adam = torch.optim.AdamW([p for p in model.parameters() if id(p) not in taken], betas=(0.9, 0.98), weight_decay=0.1)
    probe = task.unique(seed, ranges, "probe", settings.check_size)
    data = batches(tokenizer, ranges, settings.batch_size, seed + 1)  # not the order of the training file
    step, average, measured = 0, 0.0, 0.0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns) as progress:
        bar = progress.add_task("warm start", total=settings.max_steps)
        for step in range(1, settings.max_steps + 1):
            inputs, labels = next(data)
            loss = model(input_ids=inputs, labels=labels, use_cache=False).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            ramp = min(step / settings.warmup_steps, 1 - (step - 1) / settings.max_steps)
            for group in adam.param_groups:
                group["lr"] = settings.adam_lr * ramp
            adam.step()
            muon.step(settings.muon_lr * ramp)
            model.zero_grad()
            average = loss.item() if step == 1 else 0.95 * average + 0.05 * loss.item()
            if step >= settings.first_check and step % settings.check_every == 0:
                measured = accuracy(model, tokenizer, probe, max_new_tokens, seed)
            progress.update(bar, advance=1, description=f"warm start: loss {average:.3f}, accuracy {measured:.0%}")
            if measured >= settings.target:
                break
    result = {"steps": step, "loss": average, "probe_accuracy": measured, "probe_size": len(probe)}
    return model.eval(), result
