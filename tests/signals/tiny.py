"""Tiny models, ragged batches and the plain one-process reference that the layout tests compare with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

VOCAB = 97


def build_model(kind: str = "qwen3", tied: bool = False, layers: int = 3, seed: int = 0, **changes):
    """A randomly initialised model in float32 whose logits are far from uniform."""
    torch.manual_seed(seed)
    size = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=2,
        initializer_range=0.25,
        attn_implementation="sdpa",
    )
    if kind == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**{**size, "head_dim": 8, **changes}))
    elif kind == "qwen3_moe":
        experts = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True)
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**{**size, "head_dim": 8, **experts, **changes}))
    else:
        model = LlamaForCausalLM(LlamaConfig(**{**size, **changes}))
    return model.float().eval()


def save_model(folder: Path, **kwargs) -> str:
    build_model(**kwargs).save_pretrained(folder)
    return str(folder)


@dataclass
class Row:
    """One sequence: prompt and response ids, the answer's and the vector's token ranges, holes in the mask."""

    prompt: list[int]
    response: list[int]
    answer: tuple[int, int] = (0, 0)
    vector: tuple[int, int] = (0, 0)
    holes: list[int] = field(default_factory=list)

    @property
    def ids(self) -> torch.Tensor:
        return torch.tensor(self.prompt + self.response)


def ragged_rows(n: int = 8, seed: int = 3) -> list[Row]:
    """Rows of different lengths; some without an answer, some without a vector, one with holes in its mask."""
    g = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=g))

    rows = []
    for i in range(n):
        prompt = [draw(3, VOCAB) for _ in range(draw(2, 7))]
        response = [draw(3, VOCAB) for _ in range(draw(6, 20))]
        end = len(response) - draw(0, 3)
        answer = (max(end - 3, 1), end) if i % 3 != 2 else (0, 0)
        vector = (1, max(2, end - 3)) if i % 2 == 0 else (0, 0)
        rows.append(Row(prompt, response, answer, vector, [2] if i == 4 else []))
    return rows


@dataclass
class Expected:
    """What the plain reference says about one row."""

    log_probs: torch.Tensor
    entropy: torch.Tensor
    saliency: torch.Tensor
    vector: torch.Tensor


def norm(activation: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """GRAIL's saliency."""
    return (activation * gradient).norm(dim=-1)


def attribution(activation: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Another measure, for ``algorithm.grail.measure``."""
    return (activation * gradient).sum(-1).abs()


def reference(
    model, row: Row, temperature: float = 1.0, leaf: str = "embeddings", raw: bool = False, measure=norm
) -> Expected:
    """Log-probs, entropy, saliency (token-aligned over prompt + response) and vector of one row, by plain autograd.

    Written from the formulas: L = -sum over the answer of log softmax(W h / tau)[y], s_t = ||e_t * dL/de_t||, and
    v = mean over the span of (d NLL_t / d h_t) * h_t at temperature 1, L2-normalised by the caller.
    """
    ids, p, n = row.ids.unsqueeze(0), len(row.prompt), len(row.response)
    kept = {}

    def keep(_module, _args, output):
        value = (output[0] if isinstance(output, tuple) else output).detach().clone().requires_grad_()
        kept["leaf"] = value
        return (value, *output[1:]) if isinstance(output, tuple) else value

    blocks = model.model.layers
    module = {
        "embeddings": model.get_input_embeddings(),
        "first": blocks[0],
        "middle": blocks[len(blocks) // 2 - 1],
        "last": blocks[len(blocks) - 2],
    }[leaf]
    handle = module.register_forward_hook(keep)
    hidden = model.model(input_ids=ids).last_hidden_state[0]
    handle.remove()
    logits = model.lm_head(hidden).float()
    log_p = torch.log_softmax(logits / temperature, -1)
    y = ids[0, p:]
    log_probs = log_p[p - 1 : p + n - 1].gather(1, y.unsqueeze(1)).squeeze(1)
    entropy = torch.distributions.Categorical(logits=logits[p - 1 : p + n - 1] / temperature).entropy()
    saliency = torch.zeros(p + n)
    a, b = row.answer
    if b > a:
        (grad,) = torch.autograd.grad(-log_probs[a:b].sum(), kept["leaf"])
        saliency = measure(kept["leaf"], grad)[0].detach()
    total, count = torch.zeros(hidden.shape[1]), 0
    for t in range(*row.vector):
        if t in row.holes:
            continue
        h = hidden[p + t - 1].detach().clone().requires_grad_()
        loss = torch.nn.functional.cross_entropy(model.lm_head(h).unsqueeze(0), y[t : t + 1])
        (g,) = torch.autograd.grad(loss, h)
        total += g if raw else g * h.detach()
        count += 1
    return Expected(log_probs.detach(), entropy.detach(), saliency, total / max(count, 1))


def oar_g_reference(model, row: Row, noise: torch.Tensor) -> torch.Tensor:
    """OAR-G influence of each response token: |e_t . dKL/de_t| with noise on the response embeddings."""
    ids, p = row.ids.unsqueeze(0), len(row.prompt)
    a, b = row.answer
    at = slice(p + a - 1, p + b - 1)
    e = model.get_input_embeddings()(ids).detach()
    shifted = e.clone()
    shifted[0, p:] += noise
    leaf = shifted.requires_grad_()
    clean = model(inputs_embeds=e).logits[0, at].mean(0).detach()
    noisy = model(inputs_embeds=leaf).logits[0, at].mean(0)
    p0 = torch.softmax(clean, -1)
    kl = (p0 * (p0.log() - torch.log_softmax(noisy, -1))).sum()
    (g,) = torch.autograd.grad(kl, leaf)
    return (e * g)[0, p:].sum(-1).abs()
