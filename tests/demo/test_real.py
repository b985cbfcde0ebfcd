r"""The real demo's pure part: solutions, prompts and the choice of problems; nothing is downloaded."""

import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import real
import real_problems
import task

DEMO = Path(real.__file__).parent


def entry(question: str, worked: str, answer: str) -> dict:
    """A problem as reasoning-gym hands it out."""
    return {"question": question, "answer": answer, "metadata": {"answer_cot": worked}}


TOYS = entry(
    "A child has 18 toys. His friend has 6 fewer. How many toys do they have together? ",
    "His friend has 18 - 6 = <<18-6=12>>12 toys.\n\nTogether, they have 18 + 12 = 30 toys.\n#### 30",
    "30",
)


def problem(index: int, answer: int, steps: int = 2, largest: int = 10, template: int = 0) -> real_problems.Problem:
    solution = real_problems.rewrite(f"It is 1 + {answer - 1} = {answer}.", str(answer))
    return real_problems.Problem(
        f"t/{template}/{index}", f"Question {template}-{index}?", solution, str(answer), steps, largest
    )


def test_import_needs_no_extra_package():
    code = (
        "import sys, real; print([m for m in ('torch', 'vllm', 'transformers', 'gguf', 'pandas') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=DEMO, text=True).strip() == "[]"


def test_rewrite():
    expected = "His friend has 18 - 6 = 12 toys.\nTogether, they have 18 + 12 = 30 toys.\nThe answer is \\boxed{30}."
    assert real_problems.rewrite(TOYS["metadata"]["answer_cot"], "30") == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("He drank 12*2=24 ozs of soda.", [("12*2", 24)]),
        ("24 girls x 2 boys/girl = 48 boys", [("24*2", 48)]),
        ("cost 6 * $2 = $12 more", [("6*2", 12)]),
        ("68 students - 16 bake - 8 play = 44", [("68-16-8", 44)]),
        ("152 pages x 1/4 = 38 pages; 12 ÷ 4 = 3", [("152*1/4", 38), ("12/4", 3)]),
        ("receives 36=36 emails", []),
    ],
)
def test_equations(text, expected):
    assert real_problems.equations(text) == expected


@pytest.mark.parametrize(
    "expression, expected", [("7", 7), ("18-6-2", 10), ("2+3*4", 14), ("152*1/4", 38), ("1/2", Fraction(1, 2))]
)
def test_value(expression, expected):
    assert real_problems.value(expression) == expected


def test_read_problem():
    found = real_problems.read_problem(TOYS, "gsm_symbolic/43/0")
    assert (found.answer, found.steps, found.largest) == ("30", 2, 30)
    assert found.question == TOYS["question"].strip()
    assert real.load_grader()(real_problems.DATA_SOURCE, found.solution, found.answer)["score"] == 1.0


@pytest.mark.parametrize(
    "question, worked, answer",
    [
        ("One step?", "It is 1 + 2 = 3.\n#### 3", "3"),
        ("Four steps?", "1 + 1 = 2\n2 + 1 = 3\n3 + 1 = 4\n4 + 1 = 5\n#### 5", "5"),
        ("Large?", "60 + 50 = 110\n110 - 10 = 100\n#### 100", "100"),
        ("Percent, 50% of it?", "1 + 1 = 2\n2 + 1 = 3\n#### 3", "3"),
        ("Decimal, 1.5 of it?", "1 + 1 = 2\n2 + 1 = 3\n#### 3", "3"),
        ("Answer no whole number?", "1 + 1 = 2\n2 + 1 = 3\n#### 1/2", "1/2"),
        ("Wrong step?", "1 + 1 = 3\n3 + 1 = 4\n#### 4", "4"),
        ("Division by zero?", "1 / 0 = 1\n3 + 1 = 4\n#### 4", "4"),
        ("Not a step?", "1 + 1 = 2\n2 + 1 = 3 = 3\n#### 3", "3"),
        ("Other last value?", "1 + 1 = 2\n2 + 1 = 3\n#### 2", "2"),
        ("Long?", "1 + 1 = 2\n2 + 1 = 3" + " and so on" * 30 + "\n#### 3", "3"),
    ],
)
def test_read_problem_refuses(question, worked, answer):
    assert real_problems.read_problem(entry(question, worked, answer), "x") is None


def test_split_template_takes_the_easiest_and_other_answers():
    instances = [problem(i, answer=30 - i, largest=50 - i) for i in range(30)]
    template = real_problems.split_template([*instances, *instances])
    assert [p.largest for p in template.problems] == list(range(21, 21 + real_problems.PER_TEMPLATE))
    assert len(template.shots) == real_problems.SHOTS
    answers = [p.answer for p in template.shots]
    assert len(set(answers)) == real_problems.SHOTS
    assert not set(answers) & {p.answer for p in template.problems}


def test_split_template_refuses_a_small_one():
    assert real_problems.split_template([problem(i, answer=i + 1) for i in range(3)]) is None
    assert real_problems.split_template([problem(i, answer=7) for i in range(20)]) is None


def test_messages():
    shots = [problem(i, i + 1) for i in range(3)]
    chat = real_problems.messages(problem(9, 9), shots)
    assert [m["role"] for m in chat] == ["system", *["user", "assistant"] * 3, "user"]
    assert chat[2]["content"] == shots[0].solution
    assert chat[2]["content"].endswith("\\boxed{1}.")
    assert chat[-1]["content"] == problem(9, 9).question


def test_row_has_the_schema_of_the_demo():
    (theirs,) = task.unique(0, task.FAST, "train", 1)
    expected = task.row(theirs, 0, "train")
    found = real_problems.row(problem(0, 5), [problem(1, 6)], 0, "train")
    assert list(found) == list(expected)
    assert {key: type(value) for key, value in found.items()} == {key: type(value) for key, value in expected.items()}
    assert list(found["extra_info"]) == list(expected["extra_info"])
    assert found["reward_model"] == {"style": "rule", "ground_truth": "5"}


def templates(count: int, size: int) -> list[real_problems.Template]:
    return [real_problems.Template([problem(i, i + 1, template=t) for i in range(size)], []) for t in range(count)]


def test_select_keeps_mixed_ones_of_every_template_first():
    def measure(batch):
        assert len(batch) <= 2
        return [{"right": 4} for _ in batch]

    kept, counts = real_problems.select(templates(3, 4), measure, wanted=5, chunk=2)
    assert [p.id for p, _ in kept] == ["t/0/0", "t/1/0", "t/2/0", "t/0/1", "t/1/1"]
    assert list(counts) == [p.id for p, _ in kept]


def test_select_leaves_templates_thrice_unsolved_and_skips_those_always_solved():
    def measure(batch):
        return [{"right": {"t/0": 0, "t/1": real_problems.SAMPLES, "t/2": 1}[p.id.rsplit("/", 1)[0]]} for p, _ in batch]

    kept, counts = real_problems.select(templates(3, 4), measure, wanted=10, chunk=8)
    assert [p.id for p, _ in kept] == ["t/2/0", "t/2/1", "t/2/2", "t/2/3"]
    assert list(counts) == [f"t/{t}/{i}" for i in range(4) for t in range(3) if (t, i) != (0, 3)]


def test_shares():
    counts = [{"right": 2, "tokens": 400}, {"right": 4, "tokens": 800}]
    assert real.shares(counts) == {"right": 0.375, "tokens": 75.0}


def test_a_complete_folder_is_left_alone(tmp_path):
    arguments = {"seed": 0, "train_size": 4, "val_size": 2, "source": real.fingerprint()}
    (tmp_path / "task.json").write_text(json.dumps({"arguments": arguments, "mark": 1}))
    assert real.prepare(tmp_path, 0, 4, 2)["mark"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["task.json"]
