"""Bugs to plant in who owns a partition (as in `planted.py`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from verification.mutants.planting import bug, change
from waltz_log.core.hand_over import Reach, Stranded
from waltz_log.core.metadata import Assignment
from waltz_log.server.node import hand_overs

__all__: list[str] = []


@bug
def kept_without_a_majority() -> None:
    """An owner that reaches no majority keeps its partitions, though another server could serve them."""
    change(hand_overs, "hand_over", lambda assignment, *_: assignment)


@bug
def handed_over_without_asking() -> None:
    """A partition without a majority goes to any other server, again and again, whichever of them reaches its replicas."""

    def hand_over(assignment: Assignment, stranded: Mapping[int, Stranded], _reach: Reach, _resting: Collection[int]) -> Assignment:
        reach = {server: {partition: each.replicas for partition, each in stranded.items()} for server in assignment.addresses}
        for partition, each in stranded.items():
            reach.setdefault(each.server_id, {})[partition] = ()
        return original(assignment, stranded, reach, ())

    original: Callable[..., Assignment] = change(hand_overs, "hand_over", hand_over)
