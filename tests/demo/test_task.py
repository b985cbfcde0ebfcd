"""The demo's task, tokenizer and files; training itself is only smoke-tested."""

import ast
import dataclasses
import json
import operator

import pandas as pd
import prepare
import pytest
import task
import tokenizer as demo_tokenizer
import torch
import warm_start
from transformers import AutoModelForCausalLM, AutoTokenizer

RANGES = {"normal": task.NORMAL, "fast": task.FAST}
TINY = warm_start.Settings(
    hidden_size=32,
    intermediate_size=64,
    layers=2,
    batch_size=4,
    first_check=3,
    check_every=1,
    check_size=4,
    max_steps=3,
)
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def evaluate(expression: str) -> int:
    """The value of an expression of integers, by Python's own grammar."""

    def walk(node: ast.AST) -> int:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -walk(node.operand)
        assert isinstance(node, ast.Constant) and isinstance(node.value, int), ast.dump(node)
        return node.value

    return walk(ast.parse(expression.strip(), mode="eval").body)


@pytest.fixture(scope="module", params=RANGES)
def ranges(request):
    return RANGES[request.param]


@pytest.fixture(scope="module")
def problems(ranges):
    return [*task.unique(0, ranges, "train", 600), *task.unique(0, ranges, "val", 200)]


@pytest.fixture(scope="module")
def tokenizer(ranges):
    return prepare.make_tokenizer(ranges, seed=0)


@pytest.mark.parametrize("method", task.METHODS)
def test_every_step_is_true_and_the_last_one_is_the_answer(problems, method):
    for problem in problems:
        gold = evaluate(problem.text.removeprefix("Compute "))
        assert problem.answer == gold
        lines = task.steps(problem, method)
        sides = [line.split(" = ") for line in lines]
        assert all(evaluate(left) == int(right) for left, right in sides), lines
        assert int(sides[-1][1]) == gold
        body = "\n".join(lines)
        assert task.solution(problem, method) == f"<think>\n{body}\n</think>\n\\boxed{{{gold}}}"
        assert 2 <= len(lines) <= 5


def test_problems_cover_every_form(problems):
    assert {(p.bracket, p.product_last, len(p.terms)) for p in problems} == {
        (True, False, 1), (True, True, 1), (False, False, 2), (False, True, 1)
    }  # fmt: skip
    assert any(p.answer < 0 for p in problems) and any(p.right < 0 for p in problems)


def test_methods_differ_from_the_first_line(problems):
    for problem in problems:
        first = {task.steps(problem, method)[0] for method in task.METHODS}
        assert len(first) == len(task.METHODS)


def test_split_is_a_function_of_the_text_and_disjoint(ranges):
    texts = {split: {p.text for p in task.unique(7, ranges, split, 150)} for split in task.SPLITS}
    assert sum(map(len, texts.values())) == len(set.union(*texts.values()))
    assert all(task.split_of(text) == split for split in task.SPLITS for text in texts[split])


def test_generation_follows_the_seed(ranges):
    assert task.unique(1, ranges, "train", 50) == task.unique(1, ranges, "train", 50)
    assert task.unique(1, ranges, "train", 50) != task.unique(2, ranges, "train", 50)


def test_more_problems_than_there_are_is_an_error():
    few = task.Ranges(factor=(2, 2), operand=(2, 2), number=(11, 11), term=(1, 1))
    with pytest.raises(ValueError, match="distinct"):
        task.unique(0, few, "train", 500)


def test_experts_are_step_and_for_a_quarter_expand_too(problems):
    counts = [len(task.experts(problem)) for problem in problems]
    assert 0.15 < counts.count(2) / len(counts) < 0.35
    assert set(counts) == {1, 2}
    assert all(task.experts(problem)[0] == task.solution(problem, "step") for problem in problems)


def test_tokenizer_round_trips(tokenizer, problems):
    for problem in problems:
        for text in (problem.text, *(task.solution(problem, method) for method in task.METHODS)):
            ids = tokenizer.encode(text)
            assert tokenizer.decode(ids) == text
            assert tokenizer.decode(ids, skip_special_tokens=True) == text
            assert tokenizer.unk_token_id not in ids
    for text in (" x . , = 5 ", "\u00e9\u4e2d\U0001f600 don't"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokenizer_has_the_tokens_the_demo_leans_on(tokenizer):
    tokens = tokenizer.tokenize("3*(14+5)\n<think>\n20-28 = -8\n</think>\n\\boxed{-8}")
    assert {"<think>", "</think>", "*(", "boxed", "\u0120=\u0120"} <= set(tokens)
    assert tokens[-4:] == ["{", "-", "8", "}"]
    assert tokenizer.all_special_tokens == ["<bos>", "<|im_end|>", "<pad>"]
    assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1


def test_chat_template_is_what_the_model_is_trained_on(tokenizer):
    text = demo_tokenizer.prompt_text(tokenizer, "Compute 3*12-8")
    assert text == "<bos>user\nCompute 3*12-8\nassistant\n"
    messages = [{"role": "user", "content": "Compute 3*12-8"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer.encode(text)
    assert ids[0] == tokenizer.bos_token_id


def test_lengths_stay_below_the_limits(tokenizer, problems):
    limits = prepare.lengths(tokenizer, problems)
    assert limits["longest_prompt"] < limits["max_prompt_length"] <= 32
    assert limits["longest_solution"] < limits["max_response_length"] <= 96


def test_labels_cover_solution_and_eos_only(tokenizer, ranges):
    inputs, labels = next(warm_start.batches(tokenizer, ranges, batch_size=8, seed=0))
    for row, label in zip(inputs, labels, strict=True):
        kept = label != warm_start.IGNORE
        assert torch.equal(row[kept], label[kept])
        response = tokenizer.decode(row[kept])
        assert response.startswith("<think>\n") and response.endswith("}<|im_end|>")
        prompt = tokenizer.decode(row[: int(kept.int().argmax())])
        assert prompt.endswith("\nassistant\n")


def test_orthogonalise_flattens_the_singular_values():
    torch.manual_seed(0)
    values = torch.linalg.svdvals(warm_start.orthogonalise(torch.randn(32, 64)))
    assert values.min() > 0.5 and values.max() < 1.4


def test_is_correct_wants_the_format_and_the_answer():
    problem = task.Problem(factor=3, left=14, right=5, bracket=True, terms=(-8,))
    assert warm_start.is_correct(problem, task.solution(problem, "expand"))
    assert not warm_start.is_correct(problem, "\\boxed{49}")
    assert not warm_start.is_correct(problem, task.solution(problem, "step").replace("{49}", "{48}"))
    assert not warm_start.is_correct(problem, task.solution(problem, "step") + "1")


def test_prepare_writes_a_folder_that_loads_and_is_not_made_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(warm_start, "FAST", TINY)
    content = prepare.prepare(tmp_path, fast=True, seed=0, train_size=40, val_size=8)
    assert json.loads((tmp_path / "task.json").read_text()) == content
    assert content["warm_start"]["steps"] == 3

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    loaded = AutoTokenizer.from_pretrained(tmp_path / "model")
    original = prepare.make_tokenizer(task.FAST, seed=0)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert model.config.vocab_size == len(loaded) == len(original) == content["vocab_size"]
    assert not model.config.tie_word_embeddings and model.dtype == torch.float32
    for config in (model.config, model.generation_config):
        ids = (config.pad_token_id, config.bos_token_id, config.eos_token_id)
        assert ids == (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id)
    text = task.solution(next(task.stream(0, task.FAST, "val")), "expand")
    assert loaded.encode(text) == original.encode(text)
    assert loaded.decode(loaded.encode(text), skip_special_tokens=True) == text
    assert loaded.clean_up_tokenization_spaces is False
    assert loaded.chat_template == original.chat_template

    train, val = (pd.read_parquet(tmp_path / f"{split}.parquet") for split in ("train", "val"))
    assert (len(train), len(val)) == (40, 8)
    assert not {p[0]["content"] for p in train.prompt} & {p[0]["content"] for p in val.prompt}
    for row in train.to_dict("records"):
        gold = row["reward_model"]["ground_truth"]
        assert row["data_source"] == "arithmetic" and row["extra_info"]["split"] == "train"
        assert int(gold) == evaluate(row["prompt"][0]["content"].removeprefix("Compute "))
        assert all(expert.endswith(f"\\boxed{{{gold}}}") for expert in row["expert_solution"])

    stamp = (tmp_path / "task.json").stat().st_mtime_ns
    assert prepare.prepare(tmp_path, fast=True, seed=0, train_size=40, val_size=8) == content
    assert (tmp_path / "task.json").stat().st_mtime_ns == stamp
    assert prepare.prepare(tmp_path, fast=True, seed=0, train_size=41, val_size=8) != content


def test_warm_start_repeats_itself(tokenizer, ranges):
    settings = dataclasses.replace(TINY, first_check=9)
    first, second = (warm_start.warm_start(tokenizer, ranges, settings, 8, seed=3)[0] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
