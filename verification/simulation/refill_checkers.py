"""Compares what a replica reports to keep, each time a session opens it, with its answers and its acknowledgments so far."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from verification.simulation.history import Evidence, ReplicaOpened
from waltz_log.testing.memory_connection import Connection
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["REFILL_CHECKERS", "FillsSeen", "fills_go_on", "only_committed_is_kept"]

SESSIONS_MAX: Final = 10
"""Sessions in a row in which a replica copies something and keeps nothing more."""


class FillsSeen:
    """Records the messages between owners and storage nodes when a session opens a replica."""

    def __init__(self, opened: list[ReplicaOpened]) -> None:
        self._opened = opened
        self._asked: dict[int, tuple[int, int]] = {}

    def observe(self, now_s: float, connection: Connection, storage: str, message: Any) -> None:
        if isinstance(message, pb.OpenRequest):
            self._asked[connection.original] = (message.partition, message.session)
        elif isinstance(message, pb.OpenResponse) and connection.original in self._asked:
            partition, session = self._asked[connection.original]
            kept, last = message.local_low_water_mark, message.last_transaction_id
            self._opened.append(ReplicaOpened(now_s, storage, connection.address, partition, session, message.session, kept, last))


class _Replica(NamedTuple):
    storage: str
    address: str
    partition: int


def only_committed_is_kept(evidence: Evidence) -> Iterator[str]:
    """28: no replica keeps more across sessions than the highest mark that any replica of the partition knew by then."""
    reported = sorted((each.at_s, each.partition, each.mark) for each in evidence.history.reported_marks)
    for opened in evidence.history.replicas_opened:
        highest = max((mark for at_s, partition, mark in reported if partition == opened.partition and at_s <= opened.at_s), default=-1)
        if opened.kept > highest:
            where = f"partition={opened.partition} replica={opened.storage} session={opened.session}"
            yield f"keeps everything up to {opened.kept} at {opened.at_s:.3f}, and no mark above {highest} was told: {where}"


def fills_go_on(evidence: Evidence) -> Iterator[str]:
    """28: a replica that copies something in each of ten sessions keeps more at their end than at their beginning."""
    lives: dict[_Replica, list[ReplicaOpened]] = defaultdict(list)
    for each in evidence.history.replicas_opened:
        found = lives[_Replica(each.storage, each.address, each.partition)]
        if not found or found[-1].session != each.session:
            found.append(each)
    for replica, opened in lives.items():
        idle = 0
        for before, after in pairwise(opened):
            stuck = after.kept == before.kept and after.clean_in == before.clean_in and after.last > after.kept
            idle = idle + 1 if stuck else 0
            if idle == SESSIONS_MAX:
                yield f"{replica.storage} copied in {idle} sessions and kept nothing above {after.kept}: partition={replica.partition}"


REFILL_CHECKERS: Final = (only_committed_is_kept, fills_go_on)
