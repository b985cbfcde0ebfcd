"""Answer and thinking spans, from strings and from generated token ids."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.tokenizers_for_tests import byte_level, sentencepiece_like
from verl_grail.core.answers import AnswerPolicy, extract_answer
from verl_grail.core.boxes import find_boxes
from verl_grail.core.spans import locate_answer
from verl_grail.core.thinking import ThinkTags, locate_thinking
from verl_grail.core.tokens import TokenBytes

BYTE_LEVEL = byte_level()
BYTES = TokenBytes.from_tokenizer(BYTE_LEVEL)

ANSWERS = [
    (r"so it is \boxed{5}.", "5"),
    (r"\boxed{5}, no wait \boxed{7}", "7"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\left\{ x \mid x>0 \right.}", r"\left\{ x \mid x>0 \right."),
    (r"\boxed{\left\{1,2\right\}}", r"\left\{1,2\right\}"),
    (r"\boxed 5 and more", "5"),
    (r"$\boxed5$", "5"),
    (r"\boxed {8}", "8"),
    (r"\boxed{\text{E}}", r"\text{E}"),
    (r"\boxed{\boxed{3}}", r"\boxed{3}"),
    (r"\boxed{ \boxed{4}", "4"),
    ("put it in \\boxed and nothing else", None),
    (r"\boxed{\frac{1}{2", None),
    (r"\boxed{}", None),
    (r"\boxed{ }", None),
    ("\\boxed{\u00a0}", "\u00a0"),
    ("\\boxed\u00a05", None),
    (r"\fbox{3}", None),
    (r"\boxedx{3}", None),
    ("no box", None),
    (r"stray } and { then \boxed{9}", "9"),
]


@pytest.mark.parametrize("text,answer", ANSWERS)
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer


def test_first_and_last():
    text = r"\boxed{5}, no wait \boxed{7}"
    assert [extract_answer(text, AnswerPolicy(which=w)) for w in ("first", "last")] == ["5", "7"]


def test_deep_nesting_and_length_are_linear():
    deep = "\\boxed{" * 10_000 + "1" + "}" * 10_000
    assert len(find_boxes(deep)) == 1
    assert find_boxes("\\boxed{" * 50_000) == []
    assert extract_answer("x" * 2_000_000 + r"\boxed{3}") == "3"


def _content(ids, table, which="last"):
    span = locate_answer(ids, table, AnswerPolicy(which=which))
    if span is None:
        return None
    pieces = table.pieces(ids)
    return b"".join(pieces[span.content_start : span.content_end]).decode(errors="replace")


@pytest.mark.parametrize("make", [byte_level, sentencepiece_like])
@pytest.mark.parametrize("text,answer", ANSWERS)
def test_token_span_covers_the_answer(make, text, answer):
    tokenizer = make()
    table = TokenBytes.from_tokenizer(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    content = _content(ids, table)
    if answer is None:
        assert content is None
    else:
        assert answer in content  # a fused token may hold a delimiter too; it counts as content
        span = locate_answer(ids, table)
        assert span.start <= span.content_start < span.content_end <= span.end


@settings(max_examples=300, deadline=None)
@given(
    before=st.text(alphabet="ab \\{}é日1😀\n", max_size=12),
    content=st.text(alphabet="12a \\é日", min_size=1, max_size=6).filter(lambda s: s.strip() and not s.endswith("\\")),
    after=st.text(alphabet="ab .${}é", max_size=8),
    cuts=st.lists(st.integers(0, 80), max_size=25),
)
def test_any_segmentation_gives_the_bytes_of_the_string_answer(before, content, after, cuts):
    """For any text and any cutting of its bytes into tokens, the content tokens are exactly those that overlap."""
    text = f"{before}\\boxed{{{content}}}{after}"
    data = text.encode()
    edges = sorted({0, len(data), *[c for c in cuts if c < len(data)]})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    table = TokenBytes(pieces)
    boxes = find_boxes(text)
    span = locate_answer(range(len(pieces)), table)
    if not boxes:
        assert span is None
        return
    start = len(text[: boxes[-1].content_start].encode())
    end = len(text[: boxes[-1].content_end].encode())
    offsets = [0]
    for p in pieces:
        offsets.append(offsets[-1] + len(p))
    expected = [i for i in range(len(pieces)) if offsets[i] < end and offsets[i + 1] > start]
    assert list(range(span.content_start, span.content_end)) == expected


def test_ids_are_never_encoded_again():
    """A segmentation the tokenizer would not choose itself still gives the span of those very tokens."""
    ids = [i for c in r"ab \boxed{12}." for i in BYTE_LEVEL.convert_tokens_to_ids([c.replace(" ", "Ġ")])]
    assert ids != BYTE_LEVEL.encode(r"ab \boxed{12}.", add_special_tokens=False)
    span = locate_answer(ids, BYTES)
    assert (span.start, span.content_start, span.content_end, span.end) == (3, 10, 12, 13)


def test_boxes_of_other_speakers_are_passed_over():
    ids = BYTE_LEVEL.encode(r"\boxed{5} tool: \boxed{7}", add_special_tokens=False)
    last = locate_answer(ids, BYTES)
    mask = [1] * len(ids)
    mask[last.content_start] = 0
    other = locate_answer(ids, BYTES, allowed=mask)
    assert other.end <= last.start and _content(ids, BYTES) == "7"
    assert locate_answer(ids, BYTES, allowed=[0] * len(ids)) is None


def test_multi_byte_characters_split_over_tokens():
    text = "日本😀 \\boxed{é}"
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    assert len(ids) > len(text) - 8
    assert BYTES.text(ids).decode() == text
    assert "é" in _content(ids, BYTES)


def test_special_tokens_and_ids_outside_the_table_hold_their_own_text():
    ids = [*BYTE_LEVEL.encode(r"\boxed{5}", add_special_tokens=False), BYTE_LEVEL.eos_token_id, 10_000]
    span = locate_answer(ids, BYTES)
    assert span.end == len(ids) - 2 and _content(ids, BYTES) == "5"


THINK = ThinkTags()


@pytest.mark.parametrize(
    "text,thinking",
    [
        ("<think>1+1=2</think>\n\\boxed{2}", "1+1=2"),
        ("  <think>a</think> b", "a"),
        ("<think>a</think>", None),
        ("<think>a</think>  ", None),
        ("<think> </think> b", None),
        ("a <think>b</think> c", None),
        ("<think>a<think>b</think> c", None),
        ("<think>a</think> b</think>", None),
        ("a</think> b", None),
        ("<think>a", None),
    ],
)
def test_thinking_span(text, thinking):
    ids = BYTE_LEVEL.encode(text, add_special_tokens=False)
    span = locate_thinking(ids, BYTES, THINK)
    if thinking is None:
        assert span is None
    else:
        assert thinking in BYTES.text(ids[span[0] : span[1]]).decode()


def test_thinking_opened_by_the_prompt_and_eos_is_no_answer():
    ids = BYTE_LEVEL.encode("a</think> b", add_special_tokens=False)
    assert locate_thinking(ids, BYTES, ThinkTags(open_in_prompt=True)) is not None
    ids = [*BYTE_LEVEL.encode("<think>a</think>", add_special_tokens=False), BYTE_LEVEL.eos_token_id]
    assert locate_thinking(ids, BYTES, THINK, frozenset([BYTE_LEVEL.eos_token_id])) is None


def test_unreadable_tokenizers_are_refused():
    class Slow:
        pass

    with pytest.raises(ValueError, match="not a fast tokenizer"):
        TokenBytes.from_tokenizer(Slow())
