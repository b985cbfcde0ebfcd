"""The examples of docs/extending.md: short, and they do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.plugin.test_weighting import WEIGHTED, plan, rows
from verl_grail.config import AnswersConfig, ConfigError, GrailConfig, parse_section
from verl_grail.core.answers import extract_answer
from verl_grail.core.grail import RowOutcome
from verl_grail.plugin.weighting import weigh_grail
from verl_grail.signals.measure import measure_of
from verl_grail.signals.request import PassRequest

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


@pytest.fixture
def files(tmp_path):
    """Path of each example by its name."""
    found = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        name = re.match(r"# (\w+\.py)", block).group(1)
        assert len(block.splitlines()) < 30
        (tmp_path / name).write_text(block)
        found[name] = str(tmp_path / name)
    assert set(found) == {"rules.py", "measures.py", "locators.py"}
    return found


def weigh(rule: str, saliency=None):
    section, data = parse_section(GrailConfig, {"rule": rule}), rows()
    planned = plan({"rule": rule})
    if saliency is None:
        saliency = torch.rand(data.response_mask.shape, generator=torch.Generator().manual_seed(0)) + 0.1
    return data, planned, saliency, weigh_grail(data, planned, section, saliency)


def test_a_weight_rule(files):
    data, planned, saliency, done = weigh(f"{files['rules.py']}:top_fifth")
    weighted = (done.outcome == WEIGHTED).nonzero().flatten().tolist()
    assert weighted == (planned.outcome == WEIGHTED).nonzero().flatten().tolist() != []
    for row in range(len(data)):
        if row not in weighted:
            assert torch.equal(done.weights[row], torch.ones_like(done.weights[row]))
            continue
        reasoning = planned.regions.reasoning[row]
        bar = torch.quantile(saliency[row][reasoning], 0.8)
        want = torch.where(reasoning & (saliency[row] >= bar), 2.0, 1.0)
        assert torch.equal(done.weights[row], want) and want.max() == 2.0
    assert done.metrics["grail/clip_frac_max"] == 0.0


def test_a_rule_that_gives_no_numbers_costs_its_rows_alone(tmp_path):
    (tmp_path / "bad.py").write_text("def nan(saliency, reasoning):\n    return saliency * float('nan')\n")
    *_, done = weigh(f"{tmp_path}/bad.py:nan")
    assert (done.outcome == RowOutcome.NON_FINITE).any() and torch.equal(done.weights, torch.ones_like(done.weights))
    (tmp_path / "bad.py").write_text("def short(saliency, reasoning):\n    return saliency[:1]\n")
    with pytest.raises(RuntimeError, match=r"algorithm\.grail\.rule=.*bad.py:short returned shape \(1,\)"):
        weigh(f"{tmp_path}/bad.py:short")


def test_a_signal(files, tmp_path):
    measure = measure_of(PassRequest(0, 1, measure=f"{files['measures.py']}:attribution"))
    e, g = torch.randn(5, 1, 8).bfloat16(), torch.randn(5, 1, 8).bfloat16()
    torch.testing.assert_close(measure(e, g), (e.float() * g.float()).sum(-1).abs())
    (tmp_path / "bad.py").write_text("def all(activation, gradient):\n    return activation.sum()\n")
    with pytest.raises(ValueError, match=r"algorithm\.grail\.measure=.* returned shape \(\)"):
        measure_of(PassRequest(0, 1, measure=f"{tmp_path}/bad.py:all"))(e, g)


def test_a_locator(files):
    policy = AnswersConfig(locator=f"{files['locators.py']}:final_line").policy()
    assert extract_answer("Answer: 3\nso\nAnswer:  x + 1 \n", policy) == "x + 1"
    assert extract_answer("the answer is 3", policy) is None


@pytest.mark.parametrize("name", ["rule", "measure"])
@pytest.mark.parametrize("path", ["nothing", "no.such.module:f", "/no/file.py:f", "math:nothing"])
def test_a_function_that_cannot_be_loaded_is_refused(name, path):
    with pytest.raises(ConfigError, match=rf"algorithm\.grail\.{name}='{path}' (is not a function|cannot be loaded)"):
        parse_section(GrailConfig, {name: path})
