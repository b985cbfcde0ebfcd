"""Locators and the policy that chooses among their candidates, on strings."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_grail.core.answers import AnswerPolicy, extract_answer, find_answer
from verl_grail.core.boxes import find_boxes
from verl_grail.core.spans import locate_answer
from verl_grail.core.tokens import TokenBytes


@pytest.mark.parametrize(
    ("text", "ignored", "counted"),
    [
        (r"\fbox{3}", None, "3"),
        (r"\framebox{3}", None, "3"),
        (r"\framebox[2cm][c]{3}", None, "3"),
        (r"\boxed{4} or \fbox{3}", "4", "3"),
        (r"\fbox 3", None, None),
        (r"\fboxsep{3}", None, None),
    ],
)
def test_frames(text, ignored, counted):
    assert extract_answer(text) == ignored
    assert extract_answer(text, AnswerPolicy(frames=True)) == counted


THINKING = [
    # text, after, never, anywhere
    (r"<think>\boxed{4}</think> The answer is 5.", None, None, "4"),
    (r"<think>\boxed{4}</think> So \boxed{5}.", "5", "5", "5"),
    ("<think>\\boxed{4}</think>\n ", "4", None, "4"),
    (r"<think>\boxed{4} and so on", "4", None, "4"),
    (r"\boxed{4}", "4", "4", "4"),
    (r"\boxed{4} <think>\boxed{5}", "5", "4", "5"),
    (r"a</think>\boxed{4}<think>b</think>", "4", None, "4"),
    (r"\boxed{1}</think>\boxed{2}</think>\boxed{3}", "3", "3", "3"),
]


@pytest.mark.parametrize(("text", "after", "never", "anywhere"), THINKING)
def test_thinking(text, after, never, anywhere):
    found = {p: extract_answer(text, AnswerPolicy(thinking=p)) for p in ("after", "never", "anywhere")}
    assert found == {"after": after, "never": never, "anywhere": anywhere}


@pytest.mark.parametrize(
    ("text", "one", "several"),
    [
        (r"\boxed{3}, \boxed{5}, \boxed{7}", "7", "3, 5, 7"),
        (r"$\boxed{3}$ and $\boxed{5}$", "5", "3, 5"),
        (r"$x_1 = \boxed{3}$ or $x_2 = \boxed{5}$.", "5", "3, 5"),
        (r"\boxed{5}. Wrong, so \boxed{7}", "7", "7"),
        (r"\boxed{1} no. So \boxed{3} \text{ and } \boxed{4}", "4", "3, 4"),
        (r"\boxed{2}" + " " * 80 + r"\boxed{3}", "3", "3"),
    ],
)
def test_several_boxes(text, one, several):
    assert extract_answer(text) == one
    assert extract_answer(text, AnswerPolicy(several="set")) == several


def test_first_of_several():
    text = r"\boxed{1}, \boxed{2}. No: \boxed{3}"
    assert extract_answer(text, AnswerPolicy(which="first")) == "1"
    assert extract_answer(text, AnswerPolicy(which="first", several="set")) == "1, 2"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer> 5 </answer>.", "5"),
        ("<answer>5</answer> no <answer>7</answer>", "7"),
        ("<answer>5 <answer>7</answer>", "7"),
        ("<answer>5", None),
        ("</answer>5<answer>", None),
        ("<answer> </answer>", None),
        ("<think><answer>5</answer></think> 6", None),
    ],
)
def test_answer_tags(text, answer):
    assert extract_answer(text, AnswerPolicy(locator="answer_tag")) == answer


@pytest.mark.parametrize(
    ("pattern", "text", "answer"),
    [
        (r"answer is (\d+)", "the answer is 12. So the answer is 13!", "13"),
        (r"#### (?P<answer>.+?)$", "it\n#### 72", "72"),
        (r"\d+", "1 2 3", "3"),
        (r"answer: (\d*)", "answer: ", None),
    ],
)
def test_patterns(pattern, text, answer):
    assert extract_answer(text, AnswerPolicy(locator="regex", pattern=pattern)) == answer


def test_a_pattern_that_backtracks_for_ever_is_no_answer():
    start = time.monotonic()
    assert extract_answer("a" * 5000 + "!", AnswerPolicy(locator="regex", pattern=r"(a|aa)+$")) is None
    assert time.monotonic() - start < 20


def last_word(text):
    word = text.split()[-1]
    return text.rindex(word), text.rindex(word) + len(word)


def outside(text):
    return [(0, len(text) + 1)]


def raises(text):
    raise KeyError("no")


@pytest.mark.parametrize(("name", "answer"), [("last_word", "7"), ("outside", None), ("raises", None)])
def test_functions_by_import_path(name, answer, tmp_path):
    for where in (__name__, __file__):
        assert extract_answer("it is 7", AnswerPolicy(locator=f"{where}:{name}")) == answer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"which": "best"}, "which='best' is not one of: last, first"),
        ({"several": "all"}, "several='all'"),
        ({"thinking": "no"}, "thinking='no'"),
        ({"locator": "regex"}, "pattern goes with locator=regex"),
        ({"pattern": "x"}, "pattern goes with locator=regex"),
        ({"locator": "regex", "pattern": "("}, "is no regular expression"),
        ({"locator": "boxes"}, "locator='boxes' is not one of"),
        ({"locator": "nowhere:f"}, "cannot be loaded"),
        ({"locator": "/nowhere/x.py:f"}, "cannot be loaded"),
        ({"locator": "math:nothing"}, "cannot be loaded"),
        ({"locator": "answer_tag", "frames": True}, "frames has no effect"),
        ({"think_close": ""}, "must not be empty"),
    ],
)
def test_wrong_policies_say_what_is_wrong(options, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        AnswerPolicy(**options)


def test_hostile_texts_take_linear_time():
    start = time.monotonic()
    for text in (
        "\\boxed{5} " * 100_000,
        "\\boxed{" * 100_000,
        "<answer>" * 100_000 + "</answer>" * 100_000,
        "{" * 1_000_000,
        "é\\boxed{5}" * 50_000,
        "\\boxed{" * 10_000 + "5" + "}" * 10_000,
        "\\boxed" + " " * 1_000_000,
    ):
        for locator in ("boxed", "answer_tag"):
            extract_answer(text, AnswerPolicy(locator=locator, several="set"))
        pieces = [text[i : i + 7].encode() for i in range(0, len(text), 7)]
        locate_answer(range(len(pieces)), TokenBytes(pieces), AnswerPolicy(several="set"), [1] * len(pieces))
    assert time.monotonic() - start < 60


POLICIES = [
    AnswerPolicy(),
    AnswerPolicy(several="set"),
    AnswerPolicy(which="first", frames=True),
    AnswerPolicy(thinking="never"),
    AnswerPolicy(locator="answer_tag"),
    AnswerPolicy(locator="regex", pattern=r"is (\S+)"),
]
MARKS = ["\\boxed{", "}", "{", "\\}", "\\fbox{", "<answer>", "</answer>", "<think>", "</think>", ", ", "is ", "5", "é"]
PIECES = st.sampled_from([*MARKS, "日", "😀"])


@settings(max_examples=400, deadline=None)
@given(
    text=st.lists(PIECES | st.text(max_size=3), max_size=25).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=40),
    policy=st.sampled_from(POLICIES),
)
def test_any_segmentation_gives_the_bytes_of_the_string_answer(text, cuts, policy):
    """For any text, any cutting of its bytes into tokens and any policy: content tokens are those that overlap."""
    data = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace").encode()
    text = data.decode()
    edges = sorted({0, len(data), *[c for c in cuts if c < len(data)]})
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    span = locate_answer(range(len(pieces)), TokenBytes(pieces), policy)
    answer = find_answer(text, policy)
    assert (span is None) == (answer is None)
    if span is None:
        return
    starts = [*edges]
    at = [len(text[:i].encode()) for i in range(len(text) + 1)]
    for (a, b), (first, last) in zip(answer.contents, span.contents, strict=True):
        overlapping = [i for i in range(len(pieces)) if starts[i] < at[b] and starts[i + 1] > at[a]]
        assert list(range(first, last)) == overlapping
    whole = [i for i in range(len(pieces)) if starts[i] < at[answer.end] and starts[i + 1] > at[answer.start]]
    assert list(range(span.start, span.end)) == whole


def test_boxes_are_found_where_they_are():
    assert [(b.start, b.end) for b in find_boxes(r"a\boxed{1}b\boxed{2}")] == [(1, 10), (11, 20)]
