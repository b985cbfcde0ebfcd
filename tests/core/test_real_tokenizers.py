"""Answer spans with the tokenizers of Qwen2.5, Qwen3, Llama-3, DeepSeek-V3, Llama-2 and Gemma-2 (SentencePiece)."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from verl_grail.core.answers import AnswerPolicy, extract_answer, find_answer
from verl_grail.core.spans import locate_answer
from verl_grail.core.tokens import TokenBytes

FOLDER = Path(__file__).parents[2] / ".cache" / "tokenizers"
BYTE_LEVEL = ("qwen2_5", "qwen3", "llama3", "deepseek_v3")
ALL = (*BYTE_LEVEL, "llama2", "gemma2")

# scripts/test.sh fetches them and demands them; elsewhere `python scripts/fetch_tokenizers.py` does
if not FOLDER.exists() and os.environ.get("VERL_GRAIL_TOKENIZERS") != "required":
    pytest.skip("python scripts/fetch_tokenizers.py fetches the tokenizers", allow_module_level=True)


@lru_cache
def load(name: str) -> tuple[PreTrainedTokenizerFast, TokenBytes]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(FOLDER / name / "tokenizer.json"))
    return tokenizer, TokenBytes.from_tokenizer(tokenizer)


def encode(name: str, text: str) -> list[int]:
    return load(name)[0].encode(text, add_special_tokens=False)


def parts(name: str, ids: list[int], policy: AnswerPolicy | None = None) -> tuple[list[bytes], list[bytes], bytes]:
    """Pieces of the span, of the content, and the text after it."""
    table = load(name)[1]
    span = locate_answer(ids, table, policy)
    assert span is not None
    pieces = table.pieces(ids)
    content = [p for a, b in span.contents for p in pieces[a:b]]
    return pieces[span.start : span.end], content, b"".join(pieces[span.end :])


CUTS = [
    # (tokenizers, text, pieces of the span, pieces of the content)
    (("qwen2_5", "qwen3"), r"so it is \boxed{5}.", [" \\", "boxed", "{", "5", "}."], ["5"]),
    (("qwen2_5", "qwen3"), r"so $\boxed{42}$", ["\\", "boxed", "{", "4", "2", "}$"], ["4", "2"]),
    (("llama3",), r"so $\boxed{42}$", ["\\", "boxed", "{", "42", "}$"], ["42"]),
    (("deepseek_v3",), r"so $\boxed{42}$", ["\\", "box", "ed", "{", "42", "}$"], ["42"]),
    (("qwen2_5", "qwen3", "llama3"), r"\boxed{-3}", ["\\", "boxed", "{-", "3", "}"], ["{-", "3"]),
    (("qwen3",), r"\boxed{\frac{1}{2}}.", ["\\", "boxed", "{\\", "frac", "{", "1", "}{", "2", "}}", "."], None),
]


@pytest.mark.parametrize(("names", "text", "pieces", "content"), CUTS)
def test_fused_tokens(names, text, pieces, content):
    """A token that holds content and delimiter both counts as content; the pieces are those of the real vocabulary."""
    for name in names:
        span, inside, _ = parts(name, encode(name, text))
        if name == "qwen3" and content is None:
            assert b"".join(inside).decode() in (r"{\frac{1}{2}}", r"{\frac{1}{2}}.")
            continue
        tight = [p.decode().lstrip() for p in span]
        assert (tight[0].endswith("\\") or span[0] == b" \\") and tight[-1] == pieces[-1], (name, span)
        assert [p.decode() for p in inside] == content, (name, inside)


TEXTS = [
    r"so it is \boxed{5}.",
    r"then $$\boxed{\left\{ x \mid x>0 \right\}}$$ and more text",
    "日本語の答えは \\boxed{日本}。そして",
    "😀😀\\boxed{😀 7}😀",
    "a  b\n\n\\boxed{ x != y . , ; : }\n\n",
    r"\boxed{3}, \boxed{5} and $\boxed{7}$.",
    "<think>\\boxed{1}</think>\n\n\\boxed{\\text{E}}",
    r"the answer is \boxed 5 and nothing else",
    "<|tool|> \\boxed{\\frac{12345}{678}}!",
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("several", ["one", "set"])
def test_spans_are_those_of_the_string(name, text, several):
    ids = encode(name, text)
    table = load(name)[1]
    data = table.text(ids)
    assert data.decode().strip() == text.strip()
    policy = AnswerPolicy(several=several)
    answer = find_answer(data.decode(), policy)
    assert answer is not None
    _, content, after = parts(name, ids, policy)
    inside = b"".join(content).decode()
    for a, b in answer.contents:
        assert data.decode()[a:b] in inside
    assert data.decode()[answer.end :].endswith(after.decode())


@pytest.mark.parametrize("name", ALL)
def test_special_tokens_and_padding_hold_no_answer(name):
    table = load(name)[1]
    special = sorted(table.special)
    assert special, name
    end = special[0]
    ids = [*encode(name, r"<think>\boxed{3}</think> so \boxed{4}"), end, end]
    plain = locate_answer(ids[:-2], table)
    assert locate_answer(ids, table) == plain and plain.end <= len(ids) - 2
    # nothing but end tokens after the thinking is no text: the box in it stays the answer
    thought = [*encode(name, r"<think>\boxed{3}</think>"), end]
    assert locate_answer(thought, table) is not None
    inside = encode(name, r"so \boxed{")
    broken = [*inside, end, *encode(name, "7}")]
    assert locate_answer(broken, table) is not None
    assert b"7" in b"".join(table.pieces(broken))


@pytest.mark.parametrize("name", ("llama3", "llama2"))
def test_decoders_that_clean_up_spaces_do_not_move_spans(name):
    load(name)[0].clean_up_tokenization_spaces = True
    ids = encode(name, "we ' ve x != y , so \\boxed{ y != x . } .")
    assert parts(name, ids)[1]
    assert b"y != x . " in b"".join(parts(name, ids)[1])


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_characters_split_over_tokens(name):
    """Rare characters take several tokens; a response may be cut in the middle of one."""
    ids = encode(name, "\U0001f9ee𒀀 so \\boxed{𒀀7}")
    assert len(encode(name, "𒀀")) > 1
    assert "𒀀7".encode() in b"".join(parts(name, ids)[1])
    cut = [*ids, encode(name, "𒀀")[0]]
    assert locate_answer(cut, load(name)[1]) == locate_answer(ids, load(name)[1])


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(ALL),
    seed=st.lists(st.integers(0, 31_000), max_size=20),
    content=st.lists(st.integers(300, 31_000), min_size=1, max_size=4),
    after=st.lists(st.integers(0, 31_000), max_size=5),
)
def test_any_ids_a_sampler_may_draw(name, seed, content, after):
    """Random ids, never the output of an encoder: the content's bytes are those of the string's answer."""
    table = load(name)[1]
    ids = [*seed, *encode(name, "\\boxed{"), *content, *encode(name, "}"), *after]
    data = table.text_and_offsets(ids, skip_special=True)[0]
    text = data.decode("utf-8", "surrogateescape")
    answer = extract_answer(text)
    span = locate_answer(ids, table)
    assert (answer is None) == (span is None)
    if span is not None:
        pieces = table.pieces(ids)
        inside = b"".join(pieces[span.content_start : span.content_end])
        assert answer.encode("utf-8", "surrogateescape") in inside
