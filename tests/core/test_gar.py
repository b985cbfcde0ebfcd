"""GAR: cosines, anchors, bonus and penalties against hand-computed values."""

import numpy as np
import pytest
import torch

from verl_grail.core.gar import anchor_alignment, as_solutions, group_bonus, length_penalty, normalise


def test_normalise_keeps_zero_vectors():
    v = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    torch.testing.assert_close(normalise(v), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_best_of_several_anchors():
    v = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    primary = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    torch.testing.assert_close(anchor_alignment(v, primary), torch.tensor([1.0, 0.5**0.5]))


@pytest.mark.parametrize(
    "mode,want",
    [
        ("real_only", [0.6, 0.6]),
        ("aux_max", [max(0.6, 0.5 * 0.8), max(0.6, 0.5 * 1.0)]),
        ("aux_residual", [0.6 + 0.5 * 0.2, 0.6 + 0.5 * 0.4]),
    ],
)
def test_auxiliary_solutions(mode, want):
    v = torch.tensor([[0.6, 0.8, 0.0], [0.6, 0.0, 0.8]])
    primary = torch.tensor([[1.0, 0.0, 0.0]])
    aux = torch.tensor([[0.0, 1.0, 0.0], [0.6, 0.0, 0.8]])
    got = anchor_alignment(v, primary, aux, mode)
    cos_aux = [max(0.8, 0.36), max(0.0, 1.0)]
    assert cos_aux == [0.8, 1.0]
    torch.testing.assert_close(got, torch.tensor(want))


def test_real_cosine_may_win_over_auxiliary():
    v = torch.tensor([[1.0, 0.0]])
    got = anchor_alignment(v, torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), "aux_residual")
    assert got.item() == pytest.approx(1.0)


def test_bonus_is_centred_on_the_group():
    cos = torch.tensor([0.2, 0.6, 0.4, -0.3, 0.9])
    bonus = group_bonus(cos, ["a", "a", "a", "b", "b"], beta=0.5)
    # a: mean 0.4; b: mean 0.3
    torch.testing.assert_close(bonus, torch.tensor([0.0, 0.1, 0.0, 0.0, 0.3]))


def test_lone_rollout():
    cos = torch.tensor([0.7, -0.2])
    assert group_bonus(cos, ["a", "b"], 0.5, "zero").tolist() == [0.0, 0.0]
    torch.testing.assert_close(group_bonus(cos, ["a", "b"], 0.5, "plain"), torch.tensor([0.35, 0.0]))


def test_non_finite_cosine_neither_pays_nor_counts():
    cos = torch.tensor([0.2, float("nan"), 0.6])
    torch.testing.assert_close(group_bonus(cos, ["a"] * 3, 1.0), torch.tensor([0.0, 0.0, 0.2]))


@pytest.mark.parametrize(
    "thinking,expert,want",
    [
        (200, 400, 0.0),  # target 200
        (150, 400, -0.25),  # halfway between 100 and 200
        (100, 400, -0.5),
        (10, 400, -0.5),
        (96, 10, 0.0),  # target floored at 96
        (72, 10, -0.25),
        (512, 4000, 0.0),  # capped at 512
        (384, 4000, -0.25),
    ],
)
def test_length_penalty(thinking, expert, want):
    assert length_penalty(thinking, expert) == pytest.approx(want)


@pytest.mark.parametrize(
    "cell,want",
    [
        ("one", ["one"]),
        (["a", " ", None, "b", "c"], ["a", "b"]),
        (np.array(["a", "b", "c"], dtype=object), ["a", "b"]),
        (np.array("a", dtype=object), ["a"]),
        (None, []),
        (float("nan"), []),
        ("  ", []),
        ([], []),
    ],
)
def test_solutions_of_a_dataset_cell(cell, want):
    assert as_solutions(cell, 2) == want
