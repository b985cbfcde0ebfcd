"""The global micro-batch plan: the same on every rank, within the limits, nothing lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_grail.signals.schedule import Limits, plan_schedule


def check(lengths, backward, run, n_ranks, forward, back):
    s = plan_schedule(lengths, backward, run, n_ranks, forward, back)
    assert sorted(s.order) == list(range(len(lengths)))
    share = len(lengths) // n_ranks
    total = s.n_forward + s.n_backward
    for rank in range(n_ranks):
        mine = s.order[rank * share : (rank + 1) * share]
        for index in range(total):
            rows = [i for i in mine if s.micro_batch[i] == index]
            limit = forward if index < s.n_forward else back
            assert all(backward[i] == (index >= s.n_forward) for i in rows)  # kinds never share a micro-batch
            if limit.rows is not None:
                assert len(rows) <= limit.rows
            else:
                assert len(rows) <= 1 or sum(lengths[i] for i in rows) <= limit.tokens
    for i in range(len(lengths)):
        assert (s.micro_batch[i] >= 0) == (run[i] or backward[i])
    return s


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_batch(data):
    n_ranks = data.draw(st.integers(1, 4))
    n = n_ranks * data.draw(st.integers(1, 9))
    lengths = data.draw(st.lists(st.integers(2, 60), min_size=n, max_size=n))
    backward = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    run = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    limits = st.one_of(st.builds(Limits, rows=st.integers(1, 5)), st.builds(Limits, tokens=st.integers(20, 120)))
    check(lengths, backward, run, n_ranks, data.draw(limits), data.draw(limits))


def test_backward_rows_are_shared_even_if_they_come_together():
    """All selected rows at the front of the batch, where verl's order would give them to rank 0."""
    backward = [True] * 8 + [False] * 8
    s = check([10] * 16, backward, [True] * 16, 2, Limits(rows=4), Limits(rows=2))
    assert [sum(backward[i] for i in s.order[:8]), sum(backward[i] for i in s.order[8:])] == [4, 4]
    assert (s.n_forward, s.n_backward) == (1, 2)


def test_one_backward_row_gives_every_rank_one_backward():
    s = check([10] * 4, [True, False, False, False], [True] * 4, 4, Limits(rows=4), Limits(rows=4))
    assert (s.n_forward, s.n_backward) == (1, 1)


def test_no_backward_rows():
    s = check([5] * 4, [False] * 4, [True] * 4, 2, Limits(tokens=10), Limits(tokens=10))
    assert (s.n_forward, s.n_backward) == (1, 0)


def test_a_row_longer_than_the_budget_runs_alone():
    s = check([100, 5, 5, 5], [True] * 4, [True] * 4, 1, Limits(tokens=20), Limits(tokens=20))
    assert s.n_backward == 2


def test_unequal_shares_are_refused():
    with pytest.raises(ValueError, match="3 rows cannot be shared equally by 2"):
        plan_schedule([5] * 3, [False] * 3, [True] * 3, 2, Limits(rows=1), Limits(rows=1))
    with pytest.raises(ValueError, match="either by rows or by tokens"):
        Limits()
