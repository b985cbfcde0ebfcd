"""Sums, sampling and payload of the run report, against plain references."""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.synthetic import write_run
from verl_grail.report.rollouts import Rollout, parse_rollout
from verl_grail.report.run.collect import collect, compact
from verl_grail.report.run.payload import payload
from verl_grail.report.run.regions import REGIONS, token_regions
from verl_grail.report.run.sample import choose, shares
from verl_grail.report.run.sums import MIN_PROMPTS, WEIGHT_BIN, ProfileSums, StepCounter, StepSums, position_means
from verl_grail.report.tokens import clean

ROW = {"input": "p", "output": "abcdef", "uid": "u_0_0", "tokens": list("abcdef"), "grail_weights": [1.0] * 6}


def rollout(**columns) -> Rollout:
    parsed, trouble = parse_rollout(ROW | columns, step=1)
    assert not trouble
    return parsed


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "made_up", steps=4, prompts=6, samples=5, tokens=40)


def dumped(run: Path) -> list[dict]:
    files = sorted((run / "rollouts").glob("*.jsonl"), key=lambda p: int(p.stem))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def decode(text: str) -> tuple[dict, dict[str, np.ndarray]]:
    """The payload as its docstring describes it."""
    data = gzip.decompress(base64.b64decode(text))
    length = int.from_bytes(data[:4], "little")
    header, start = json.loads(data[4 : 4 + length]), -(-(4 + length) // 8) * 8
    return header, {
        name: np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), size, start + offset)
        for name, (dtype, offset, size) in header["arrays"].items()
    }


@given(st.lists(st.floats(0.5, 5.0), min_size=1, max_size=70), st.integers(1, 25))
@settings(deadline=None, max_examples=60)
def test_position_means_are_those_of_the_step_function(values, bins):
    fine = np.repeat(values, bins)  # constant on each of n * bins equal pieces, of which every part holds n
    expected = fine.reshape(bins, len(values)).mean(axis=1)
    np.testing.assert_allclose(position_means(np.array(values), bins), expected, rtol=1e-9)


def test_interval_is_the_cluster_robust_one_of_the_mean():
    from scipy.stats import t

    draw = np.random.default_rng(0)
    profiles = {f"p{g}": [draw.normal(g % 3, 1, 20) for _ in range(draw.integers(1, 6))] for g in range(9)}
    sums = ProfileSums.of(profiles)
    x = np.array([p for members in profiles.values() for p in members])
    cluster = np.array([g for g, members in profiles.items() for _ in members])
    residuals = x - x.mean(axis=0)
    meat = sum(np.square(residuals[cluster == g].sum(axis=0)) for g in profiles)
    error = np.sqrt(9 / 8 * meat) / len(x)  # the sandwich with a constant alone, (X'X)^-1 = 1 / n
    np.testing.assert_allclose(sums.mean(), x.mean(axis=0))
    np.testing.assert_allclose(sums.half_width(), t.ppf(0.975, 8) * error)
    # added up over steps: the same as all prompts at once
    names = list(profiles)
    halves = [ProfileSums.of({n: profiles[n] for n in part}) for part in (names[:4], names[4:])]
    np.testing.assert_allclose((halves[0] + halves[1]).half_width(), sums.half_width())
    few = ProfileSums.of({n: profiles[n] for n in names[: MIN_PROMPTS - 1]})
    assert few.half_width() is None and few.mean() is not None and ProfileSums().mean() is None


def test_regions():
    row = rollout(answer_span=[2, 5], answer_contents=[[3, 4]], masked=[[0, 1]])
    names = [REGIONS[r] for r in token_regions(row)]
    assert names == ["masked", "reasoning", "delimiter", "content", "delimiter", "post"]
    assert set(token_regions(rollout())) == {0}
    old = token_regions(rollout(answer_span=[2, 5]))
    assert [REGIONS[r] for r in old] == ["reasoning"] * 2 + ["delimiter"] * 3 + ["post"]


@pytest.mark.parametrize("ranges", [[[1, 3]], [[2, 9]], [[3, 4], [3, 5]], ["x"], [[4, 3]]])
def test_contents_outside_of_the_answer_are_left_out_and_said(ranges):
    parsed, trouble = parse_rollout(ROW | {"answer_span": [2, 5], "answer_contents": ranges}, step=1)
    assert parsed.contents == () and trouble == ["answer_contents holds no ordered ranges of its tokens, left out"]


def test_sums_of_a_step_against_plain_counting(run):
    collected = collect("x", run / "metrics.jsonl", run / "rollouts", 10**6, 10**9)
    rows = [row for row in dumped(run) if row["step"] == 3]
    expected, profiles, cosines = Counter(), {"correct": [], "wrong": []}, Counter()
    for row in rows:
        if row["gar_cosine"] is not None:
            cosines[min(int((row["gar_cosine"] + 1) / 2 * 40), 39)] += 1
        if row["grail_outcome"] != "weighted":
            continue
        start, end = row["answer_span"]
        content = {i for a, b in row["answer_contents"] for i in range(a, b)}
        for i, w in enumerate(row["grail_weights"]):
            name = "reasoning" if i < start else "post" if i >= end else "content" if i in content else "delimiter"
            expected[name, round(w * 1e4) // round(WEIGHT_BIN * 1e4)] += 1
        profiles["correct" if row["acc"] else "wrong"].append(position_means(np.array(row["grail_weights"][:start])))
    sums = collected.sums[3]
    found = {(REGIONS[r], b): n for (r, b), n in np.ndenumerate(sums.weights) if n}
    assert found == expected and expected["content", 50] > 0 and expected["reasoning", 5] > 0
    assert dict(enumerate(sums.cosines.tolist())) == {b: cosines[b] for b in range(40)}
    assert sums.with_cosine == cosines.total() and sums.rollouts == len(rows) == 30
    assert sums.profiles["correct"].rollouts == 0 and sums.profiles["wrong"].rollouts == sums.weighted > 5
    np.testing.assert_allclose(sums.profiles["wrong"].mean(), np.mean(profiles["wrong"], axis=0), rtol=1e-5)
    every = sum(collected.sums.values(), StepSums())
    assert every.rollouts == collected.total == 120


def test_masked_tokens_and_tokens_without_a_weight_are_not_counted():
    counter = StepCounter()
    row = rollout(grail_outcome="weighted", answer_span=[4, 5], answer_contents=[[4, 5]], masked=[[0, 2]], score=0.0)
    weights = np.array([4.0, 4.0, 0.7, np.nan, 5.0, 1.0], dtype=np.float32)
    counter.add(row, weights, token_regions(row))
    sums = counter.sums()
    assert sums.weights.sum() == 3 and sums.weights[0, 7] == sums.weights[1, 50] == sums.weights[3, 10] == 1
    np.testing.assert_allclose(sums.profiles["wrong"].mean(), 0.7, rtol=1e-6)


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(0, 200))
def test_shares_use_the_limit_and_are_as_equal_as_the_steps_allow(wanted, limit):
    given_ = shares(wanted, limit)
    assert sum(given_) == min(limit, sum(wanted)) and all(0 <= g <= w for g, w in zip(given_, wanted, strict=True))
    cut = [g for g, w in zip(given_, wanted, strict=True) if g < w]
    assert not cut or max(given_) - min(cut) <= 1


def test_a_sample_keeps_the_extremes_whole_prompts_and_the_limits():
    groups = [f"p{i // 4}" for i in range(40)]
    bonuses = [None] * 40
    bonuses[7], bonuses[22], bonuses[30] = 0.4, 0.1, 0.0
    kept = choose(groups, bonuses, [10] * 40, 14, 10**6)
    assert {7, 30} <= set(kept) and len(kept) == 14 and kept == sorted(kept)
    assert kept == choose(groups, bonuses, [10] * 40, 14, 10**6)
    counts = Counter(groups[i] for i in kept)
    # at most one prompt is cut by the limit; the extremes' own are added to
    assert sum(n not in (0, 4) for n in counts.values()) <= 3 and 4 in counts.values()
    assert len(choose(groups, bonuses, [10] * 40, 40, 55)) == 5
    assert choose(groups, bonuses, [10] * 40, 1, 10**6) == [7]
    assert choose([], [], [], 5, 5) == []


def test_base_advantage_is_the_advantage_over_the_weight():
    class Numbers:
        def numbers(self, tokens):
            return np.zeros(len(tokens), np.uint32)

    def advantage(**columns):
        row = rollout(**columns)
        return compact(row, np.array(row.weights, np.float32), token_regions(row), Numbers()).advantage

    weights = [0.5, 0.5, 2.0, 0.0, 1.0, 4.0]
    spread = advantage(grail_weights=weights, advantages=[-0.25, -0.25, -1.0, 9.0, -0.5, -2.0])
    assert spread == pytest.approx((-0.5, -0.5))  # the token of weight 0 says nothing
    varied = advantage(advantages=[0.1, 0.2, 0.3, 0.1, 9.0, 0.2], masked=[[4, 5]])
    assert varied == pytest.approx((0.1, 0.3))
    assert advantage() is None


def test_payload_gives_back_tokens_weights_and_columns(run):
    collected = collect("x", run / "metrics.jsonl", run / "rollouts", 10**6, 10**9)
    header, arrays = decode(payload(collected))
    rows = dumped(run)
    assert len(arrays["step"]) == len(rows) == header["total"]
    token, weight = 0, 0
    for i, row in enumerate(rows):
        n = len(row["tokens"])
        assert [header["vocabulary"][k] for k in arrays["ids"][token : token + n]] == [clean(t) for t in row["tokens"]]
        token += n
        if arrays["weighing"][i] == 2:
            stored = arrays["weights"][weight : weight + n] * header["weight_scale"]
            np.testing.assert_allclose(stored, row["grail_weights"], atol=6e-4)
            weight += n
        else:
            assert arrays["weighing"][i] == 0 and set(row["grail_weights"]) == {1.0}
        assert header["golds"][arrays["gold"][i]] == row["gts"]
        assert header["prompts"][arrays["prompt"][i]] == row["input"]
        np.testing.assert_equal(
            arrays["bonus"][i], np.float32(np.nan if row["gar_bonus"] is None else row["gar_bonus"])
        )
        assert header["sums"]["steps"][arrays["step"][i]] == row["step"] and arrays["verdict"][i] == row["acc"]
    assert weight == len(arrays["weights"]) > 0 and token == len(arrays["ids"])
    assert len(header["solutions"]) == 4 * 6 and len(header["prompts"]) <= 24
    assert header["metrics"]["gar/bonus_mean"][0] == [1, 2, 3, 4]


def test_weights_beyond_the_usual_scale_and_broken_text_survive(tmp_path):
    row = ROW | {
        "tokens": ["\ud83d", "</script>", "a"],
        "grail_weights": [0.25, 900.0, None],
        "grail_outcome": "weighted",
    }
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "1.jsonl").write_text(json.dumps(row) + "\n")
    collected = collect("x", tmp_path / "metrics.jsonl", tmp_path / "rollouts", 10, 10**6)
    text = payload(collected)
    header, arrays = decode(text)
    assert header["vocabulary"] == ["\ufffd", "</script>", "a"] and "<" not in text
    np.testing.assert_allclose(arrays["weights"][:2] * header["weight_scale"], [0.25, 900.0], atol=0.01)
    assert arrays["weights"][2] == 65535
    assert any("metrics.jsonl is missing" in note for note in header["notes"])
