"""Small fast tokenizers of the three kinds whose bytes the package reads."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "so it is \\boxed{5}. Then \\boxed{\\frac{1}{2}}$ and {\\frac{3}{4}}.",
    "<think>12 + 7 = 19\n19 * 2 = 38</think>\n\\boxed{38}",
    "the answer is 42}$ or { \\left\\{ x \\mid x>0 \\right\\} } . a  b",
    "café 日本 😀 naïve",
] * 4


def byte_level(vocab_size: int = 320) -> PreTrainedTokenizerFast:
    """Byte-level BPE with merges across braces and spaces (as Qwen's and Llama-3's)."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<pad>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        max_token_length=5,
    )
    tok.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tok, pad_token="<pad>", eos_token="<eos>")


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Pieces with a lower one eighth block for spaces and byte fallback (as Llama-2's)."""
    alphabet = [chr(c) for c in range(33, 127)] + ["\n", "\u2581", "\u2581so", "}.", "\\boxed"]
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{b:02X}>" for b in range(256)], *alphabet]
    tok = Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(dict.fromkeys(pieces))}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    tok.pre_tokenizer = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="never")
    tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="</s>", pad_token="</s>", unk_token="<unk>")
