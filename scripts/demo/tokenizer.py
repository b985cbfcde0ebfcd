r"""The demo's tokenizer: byte-level BPE trained on the task's own text.

Digits stay single, because a tiny model learns to carry from digit to digit long before it has seen enough pairs of
two-digit tokens; braces stay single, so that the content of ``\boxed{...}`` never shares a token with its delimiters.
All other runs (`` = ``, ``*(``, ``Compute ``, ``boxed``) may merge into multi-character tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

# verl's agent loop asks every qwen3 tokenizer for this end token (verl/utils/tokenizer/continuous_token.py).
PAD, BOS, EOS = "<pad>", "<bos>", "<|im_end|>"
THINK, END_THINK = "<think>", "</think>"

# Newlines are inside expressions: Jinja swallows one that follows a block tag.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ message['role'] + '\\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{{ '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant\\n' }}{% endif %}"
)

# One match is one piece, and BPE never merges across pieces.
_PIECES = r"[0-9]|[{}]|\n| ?[A-Za-z]+ ?| ?[^\sA-Za-z0-9{}]+ ?|\s"


def train_tokenizer(texts: Iterable[str], vocab_size: int = 384) -> PreTrainedTokenizerFast:
    """Train on `texts`.

    The thinking marks are ordinary added tokens: ``skip_special_tokens`` must not strip them from a rollout, or the
    format of a response could no longer be checked.

    Args:
        texts: prompts and responses as the model will see them.
        vocab_size: an upper bound; training ends earlier when no pair is left to merge.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # The marks are cut out first: they become tokens of their own, and their letters must not earn merges.
    pieces = (piece for text in texts for piece in text.replace(END_THINK, THINK).split(THINK))
    backend.train_from_iterator(pieces, trainer)
    backend.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in (THINK, END_THINK)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def prompt_text(tokenizer: PreTrainedTokenizerFast, content: str) -> str:
    """A user message rendered up to the point where the model answers."""
    messages = [{"role": "user", "content": content}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
