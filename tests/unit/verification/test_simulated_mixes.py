"""What a seed of the simulator draws."""

from __future__ import annotations

from verification.simulation.clients import CLIENT_KINDS
from verification.simulation.mix import ACCESS_IN, draw
from verification.simulation.run import STRANGERS


def test_clients_without_rights_take_part_only_where_rules_are_enforced() -> None:
    """Elsewhere they may do everything, and a kind that is added must not change what earlier seeds draw."""
    assert set(STRANGERS) <= CLIENT_KINDS.keys()
    for seed in (*range(0, 900_000, 1_777), *range(880_000, 880_100)):
        strangers = set(draw(seed, sorted(CLIENT_KINDS), ()).clients) & set(STRANGERS)
        assert strangers == (set(STRANGERS) if seed in ACCESS_IN else set()), seed
