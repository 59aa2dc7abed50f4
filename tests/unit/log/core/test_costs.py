"""What each principal holds is counted, bounded and returned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_log.core.costs import Cost, Costs
from waltz_log.errors import QuotaExceeded


@given(st.lists(st.tuples(st.sampled_from(["ada", "bob"]), st.sampled_from(list(Cost)), st.integers(0, 5), st.booleans())))
def test_what_is_held_is_what_was_charged_and_not_returned(steps: list[tuple[str, Cost, int, bool]]) -> None:
    costs = Costs(dict.fromkeys(Cost, 10))
    held: dict[tuple[str, Cost], int] = {}
    for principal, cost, amount, returns in steps:
        known = held.get((principal, cost), 0)
        if returns:
            amount = min(amount, known)
            costs.release(principal, cost, amount)
            held[principal, cost] = known - amount
        else:
            assert costs.fits(principal, cost, amount) == (known + amount <= 10)
            costs.charge(principal, cost, amount)
            held[principal, cost] = known + amount
        assert all(costs.held(*key) == amount for key, amount in held.items())
        assert costs.principals == len({principal for (principal, _), amount in held.items() if amount})


def test_a_principal_at_its_limit_is_refused_and_another_one_is_not() -> None:
    costs = Costs({Cost.STREAMS: 2})
    with costs.holding("ada", Cost.STREAMS), costs.holding("ada", Cost.STREAMS):
        with pytest.raises(QuotaExceeded, match="streams_per_principal") as refused, costs.holding("ada", Cost.STREAMS):
            raise AssertionError("above the limit")
        assert refused.value.facts["principal"] == "ada"
        with costs.holding("bob", Cost.STREAMS):
            pass
    assert costs.principals == 0


def test_what_fails_returns_what_it_held() -> None:
    costs = Costs({Cost.STREAMS: 1})
    with pytest.raises(ValueError, match="broken"), costs.holding("ada", Cost.STREAMS):
        raise ValueError("broken")
    assert costs.principals == 0


@pytest.mark.parametrize("limits", [{}, {Cost.STREAMS: 0}])
def test_a_cost_without_a_limit_and_a_peer_without_a_principal_are_not_counted(limits: dict[Cost, int]) -> None:
    costs = Costs(limits)
    costs.charge("ada", Cost.STREAMS, 1_000_000)
    assert costs.fits("ada", Cost.STREAMS, 1_000_000)
    assert costs.principals == 0
    bounded = Costs({Cost.STREAMS: 1})
    bounded.charge(None, Cost.STREAMS, 5)
    assert bounded.fits(None, Cost.STREAMS, 5)
    assert bounded.principals == 0
