"""GAR on the driver: rows, anchors, bonus over whole groups, and the metrics."""

import pytest
import torch

from tests.plugin.rows import BYTES, TOKENIZER, encode, make_rows
from verl_grail.config import GarConfig, parse_section
from verl_grail.plugin.alignment import align, plan_alignment

SOLUTION = "<think>3 * 2 = 6</think>\n\\boxed{6}"


def info(passed=1.0, span=(1, 4), outcome="pass", valid=1.0):
    return {
        "acc": passed,
        "gar_pass": passed,
        "gar_format_valid": valid,
        "gar_format_penalty": 0.0 if valid else -0.1,
        "gar_length_penalty": 0.0,
        "gar_span_start": span[0],
        "gar_span_end": span[1],
        "gar_outcome": outcome,
    }


def rows(solutions=SOLUTION):
    wrong, cell = info(0.0, outcome="wrong"), {"expert_solution": solutions}
    none = {"expert_solution": None}
    return make_rows(
        [
            {"key": "a_0_0", "text": "one two three", "reward": 1.0, "info": info(), "columns": cell},
            {"key": "b_0_0", "text": "one two four", "reward": 1.0, "info": info(), "columns": none},
            {"key": "a_1_0", "text": "one", "reward": 0.0, "info": wrong, "columns": cell},
            {"key": "a_2_0", "text": "three two one", "reward": 1.0, "info": info(), "columns": cell},
            {"key": "c_0_0", "text": "six", "reward": 0.0, "info": wrong, "columns": cell},
            {"key": "pad_0_0", "text": "x", "padding": True, "info": info()},
        ]
    )  # fmt: skip


def plan(data, section=None, limit=100):
    gar = parse_section(GarConfig, section)
    end = frozenset([TOKENIZER.eos_token_id])
    return plan_alignment(data, gar, encode, BYTES, limit, end), gar


def test_rows_and_anchors():
    p, _ = plan(rows())
    assert p.rows == [0, 3] and p.spans == {0: (1, 4), 3: (1, 4)}
    assert p.passing == 3 and p.missing == 1  # b has no expert solution, c no passing rollout
    assert [a.uid for a in p.anchors] == ["a"] and p.groups == frozenset("a")
    a = p.anchors[0]
    assert BYTES.text(a.solution[a.span[0] : a.span[1]]).decode() == "3 * 2 = 6"


@pytest.mark.parametrize(
    "section,text",
    [({"span": "response"}, SOLUTION), ({}, "no tags at all"), ({}, "3 * 2 = 6</think>\n\\boxed{6}")],
)
def test_anchor_span(section, text):
    p, _ = plan(rows(text), section)
    a = p.anchors[0]
    whole = (0, len(a.solution))
    if text.startswith("3"):
        assert BYTES.text(a.solution[a.span[0] : a.span[1]]).decode() == "3 * 2 = 6"
    else:
        assert a.span == whole


def test_several_solutions_and_their_limits():
    p, _ = plan(rows([SOLUTION, "", "other way"]))
    assert len(p.anchors) == 2 and not any(a.auxiliary for a in p.anchors)
    p, _ = plan(rows([f"s{i}" for i in range(9)]))
    assert len(p.anchors) == 4
    p, _ = plan(rows("x" * 500), limit=7)
    assert len(p.anchors[0].solution) == 7


def test_a_solution_without_tokens_is_missing():
    gar = parse_section(GarConfig, None)
    p = plan_alignment(rows(), gar, lambda text: [], BYTES, 100)
    assert p.rows == [] and p.anchors == [] and p.missing == 2


def test_no_gate_takes_every_well_formed_rollout():
    p, _ = plan(rows(), {"gate": False})
    assert p.rows == [0, 2, 3, 4] and {a.uid for a in p.anchors} == {"a", "c"}


def test_bonus_and_metrics():
    data = rows()
    p, gar = plan(data)
    vectors = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    anchors = torch.tensor([[2.0, 0.0]])
    done = align(data, p, gar, vectors, anchors)
    assert done.cosine == pytest.approx({0: 1.0, 3: 0.6})
    assert done.bonus == pytest.approx({0: 0.5 * 0.2, 3: 0.0})
    m = done.metrics
    assert m["gar/cosine_mean"] == pytest.approx(0.8) and m["gar/cosine_std"] == pytest.approx(0.2)
    assert m["gar/bonus_mean"] == pytest.approx(0.05) and m["gar/anchors"] == 1 and m["gar/missing_expert"] == 1
    assert m["gar/gate_rate"] == pytest.approx(3 / 5) and m["gar/rows_skipped"] == 3
    assert m["gar/rows/pass"] == 3 and m["gar/rows/wrong"] == 2 and m["gar/format_valid_rate"] == 1.0


@pytest.mark.parametrize("bad", [float("nan"), 0.0])
def test_unusable_vectors_get_no_bonus_and_are_counted(bad):
    data = rows()
    p, gar = plan(data)
    vectors = torch.tensor([[bad, bad], [0.6, 0.8]])
    done = align(data, p, gar, vectors, torch.tensor([[1.0, 0.0]]))
    assert done.bonus == {0: 0.0, 3: 0.0} and done.metrics["gar/non_finite"] == 1
    assert done.metrics["gar/cosine_mean"] == pytest.approx(0.6)
    done = align(data, p, gar, torch.ones(2, 2), torch.full((1, 2), bad))
    assert done.metrics["gar/non_finite"] == 2 and not any(done.bonus.values())
    assert "gar/cosine_mean" not in done.metrics


def test_nothing_passes():
    data = make_rows(
        [{"key": "a_0_0", "text": "x", "info": info(0.0, outcome="wrong"), "columns": {"expert_solution": "y"}}]
    )
    p, gar = plan(data)
    done = align(data, p, gar, torch.zeros(0, 1), torch.zeros(0, 1))
    assert done.cosine == {} and done.metrics["gar/bonus_mean"] == 0.0 and done.metrics["gar/anchors"] == 0


def test_a_verifier_that_fails_on_everything_is_an_error():
    broken = info(0.0, outcome="verify_error")
    entries = [{"key": f"a_{i}_0", "text": "x", "info": broken, "columns": {"expert_solution": "y"}} for i in range(2)]
    with pytest.raises(RuntimeError, match=r"reward\.custom_reward_function\.path"):
        plan(make_rows(entries))
    entries[1]["info"] = info(0.0, outcome="wrong")
    assert plan(make_rows(entries))[0].rows == []


def test_anchors_follow_the_data_sets_prompt_not_a_rollouts_history():
    cell = {"expert_solution": "y"}
    data = make_rows(
        [
            {"key": "a_0_1", "text": "final", "info": info(), "columns": cell},
            {"key": "a_0_0", "text": "draft", "info": info(), "columns": cell},
        ]
    )
    data.prompts = [[1, 2, 3, 4, 5], [1, 2]]
    assert plan(data)[0].anchors[0].prompt == [1, 2]


def test_final_outputs_of_sessions_only():
    data = make_rows(
        [
            {"key": "a_0_0", "text": "draft", "info": info(), "columns": {"expert_solution": "y"}},
            {"key": "a_0_1", "text": "final", "info": info(), "columns": {"expert_solution": "y"}},
        ]
    )
    assert plan(data)[0].rows == [1]
