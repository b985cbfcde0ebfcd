"""The reward functions as verl loads them: keys, settings, cheating, the strict format."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import numpy as np
import pytest

from tests.core.tokenizers_for_tests import byte_level
from verl_grail.grading.options import make_grader

ROOT = Path(__file__).parents[2]


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "reward_fns" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_score


math_boxed, strict_format = load("math_boxed"), load("strict_format")
KEYS = {"score", "acc", "outcome", "graded", "rule", "pred"}


def score(text, gold, **options):
    return math_boxed("maths", text, gold, {}, **options)


RESPONSES = [
    # what has gone wrong in public: whole responses
    (r"\boxed{5}. Wrong, so \boxed{7}", "7", "correct"),
    (r"\boxed{7}. Wrong, so \boxed{5}", "7", "wrong"),
    (r"\boxed{12}. But let me also check \boxed{12 = 3*4}", "12", "correct"),
    (r"so it is \boxed{5}.", "5", "correct"),
    (r"\boxed 5 and $\boxed5$", "5", "correct"),
    ("put it in \\boxed", "5", "no_answer"),
    (r"\boxed{\text{E}}", "E", "correct"),
    (r"<think> \boxed{4} ...</think> The answer is 5.", "4", "no_answer"),
    (r"<think> \boxed{4} ...</think> The answer is \boxed{5}.", "5", "correct"),
    (r"... \boxed{\frac{1}{2", "1/2", "no_answer"),
    (r"\boxed{}", "5", "no_answer"),
    (r"\boxed{ }", "5", "no_answer"),
    (r"\boxed{\left\{ x \mid x>0 \right.}", "5", "unparseable_pred"),
    (r"\boxed{5^{5^{5^{5^{5}}}}}", "7", "timeout"),
    (r"\boxed{7}", "\\begin{foo}", "unparseable_gold"),
    (r"\boxed{7}", None, "unparseable_gold"),
    ("no box", "\\begin{foo}", "unparseable_gold"),
    ("no box", "x+1", "no_answer"),
    (r"\boxed{7}", "", "unparseable_gold"),
    (r"\boxed{7}", ["5", "7"], "correct"),
    (r"\boxed{7}", np.array(["5", "7"]), "correct"),
    (r"\boxed{7}", 7, "correct"),
    # cheating
    (" ".join(rf"\boxed{{{i}}}" for i in range(100)), "50", "wrong"),
    (r"Please put your final answer within \boxed{}.", "5", "no_answer"),
    (r"within \boxed{answer}. I don't know.", "5", "wrong"),
    (r"\boxed{5, 6, 7, 8}", "7", "wrong"),
    (r"\boxed{7 \text{ or } 8}", "7", "wrong"),
    (r"\boxed{x = 7 = 8}", "7", "wrong"),
    (r"\boxed{\boxed{7} \boxed{8}}", "7", "wrong"),
    (r"\boxed{7" + "\x00\x08" + "}", "7", "correct"),
    ("\\boxed{" * 10_000 + "7" + "}" * 10_000, "7", "unparseable_pred"),
    ("\\boxed{" + "(" * 10_000 + "7" + ")" * 10_000 + "}", "7", "unparseable_pred"),
    ("\\boxed{" + "7" * 1_000_000 + "}", "7", "unparseable_pred"),
    ("x" * 2_000_000 + r"\boxed{7}", "7", "correct"),
    ("\\boxed{7} " * 100_000, "7", "correct"),
    ("\\boxed{" * 200_000, "7", "no_answer"),
    ("{" * 1_000_000 + r"\boxed{7}", "7", "correct"),
    ("\ud800\\boxed{7}", "7", "correct"),
]


@pytest.mark.parametrize(("text", "gold", "want"), RESPONSES, ids=range(len(RESPONSES)))
def test_responses(text, gold, want):
    start = time.monotonic()
    result = score(text, gold, seconds=1.0, workers=1)
    assert result["outcome"] == want
    assert set(result) == KEYS and all(isinstance(v, (float, str)) for v in result.values())
    assert result["score"] == result["acc"] == float(want == "correct")
    assert result["graded"] == float(want != "unparseable_gold") and len(result["pred"]) <= 200
    assert time.monotonic() - start < 20


def test_settings_reach_the_grader():
    text = r"\boxed{3}, \boxed{5}"
    assert score(text, "3, 5")["outcome"] == "wrong"
    assert score(text, "3, 5", several="set")["outcome"] == "correct"
    assert score(text, "3, 5", answers={"several": "set"})["pred"] == "3, 5"
    assert score(r"\boxed{28}", r"28\%", percent="strict")["outcome"] == "wrong"
    assert score("<answer>5</answer>", "5", locator="answer_tag")["outcome"] == "correct"
    assert score(r"\boxed{1} \boxed{2}", "1", which="first")["outcome"] == "correct"
    assert score(r"\boxed{5}", "5", reward_router_address="x", reward_model_tokenizer=None)["outcome"] == "correct"


@pytest.mark.parametrize("options", [{"severl": "set"}, {"several": "all"}, {"workers": 0}, {"percent": 5}])
def test_wrong_settings_name_themselves(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make_grader(options)


THINKS = "<think>3 + 4 = 7</think>\n\\boxed{7}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    byte_level().save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("text", "gold", "options", "want"),
    [
        (THINKS, "7", {}, 1.0),
        (THINKS, "8", {}, 0.0),
        ("so \\boxed{7}", "7", {}, -0.1),
        ("so \\boxed{7}", "7", {"reading": "authors_code", "length_penalty": 0.0}, -0.6),
        ("so \\boxed{7}", "7", {"format_penalty": 0.3}, -0.3),
        ("3 + 4</think>\\boxed{7}", "7", {"open_in_prompt": True}, 1.0),
        ("<t>3 + 4</t>\\boxed{7}", "7", {"think_open": "<t>", "think_close": "</t>"}, 1.0),
        ("<think>\\boxed{7}</think>so it is", "7", {}, 0.0),
        ("<t>\\boxed{7}</t>so it is", "7", {"think_open": "<t>", "think_close": "</t>"}, 0.0),
        (THINKS, "7", {"base_reward": 2.0}, 2.0),
        ("<think>\ud800</think>\\boxed{7}", "7", {}, 1.0),
    ],
)
def test_strict_format(text, gold, options, want):
    result = strict_format("maths", text, gold, {}, **options)
    assert result["score"] == pytest.approx(want)
    assert set(result) == KEYS | {"format_valid", "format_penalty", "length_penalty"}
    assert all(isinstance(v, (float, str)) for v in result.values())


def test_short_thinking(tokenizer):
    def of(thinking, solution, **options):
        info = {"expert_solution": solution}
        text = f"<think>{thinking}</think>\\boxed{{7}}"
        options = {"reading": "authors_code", "tokenizer": tokenizer, **options}
        return strict_format("maths", text, "7", info, **options)

    expert = "<think>" + "a" * 20 + " b" * 200 + "</think>\\boxed{7}"
    assert of("3 + 4", expert)["score"] == 0.5
    assert of("c d" * 300, expert)["score"] == 1.0
    half = of("c d" * 40, expert)
    assert -0.5 < half["length_penalty"] < 0 and half["score"] == 1.0 + half["length_penalty"]
    assert of("3 + 4", None)["score"] == of("3 + 4", [])["score"] == 1.0
    assert of("3 + 4", [expert, "x"], length_penalty=0.25)["score"] == 0.75


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reading": "authors_code"}, "length_penalty counts tokens: set tokenizer"),
        ({"reading": "theirs"}, "reading='theirs'"),
        ({"format_penalty": -1.0}, "format_penalty=-1.0"),
        ({"formt_penalty": 1.0}, "formt_penalty is unknown"),
    ],
)
def test_wrong_format_settings(options, message):
    with pytest.raises(ValueError, match=message):
        strict_format("maths", THINKS, "7", {}, **options)
