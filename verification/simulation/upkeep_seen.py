"""Records the upkeep calls between owners and storage nodes. A node must not execute a call of a session older than the one that it had reported."""

from __future__ import annotations

from typing import Any, Final

from verification.simulation.history import History
from waltz_log.testing.memory_connection import Connection
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["UpkeepSeen"]

ASKED: Final = (pb.DescribeRequest, pb.TrimRequest, pb.CompactRequest, pb.DropViewRequest)
DONE: Final = (pb.DescribeResponse, pb.TrimResponse, pb.CompactResponse, pb.DropViewResponse)


class UpkeepSeen:
    def __init__(self, history: History) -> None:
        self._history = history
        self._opening: dict[int, tuple[int, int]] = {}
        self._admitted: dict[tuple[str, int], int] = {}
        """By address, which is another for each life of a node, and partition: the newest session that it reported."""
        self._asked: dict[int, str] = {}

    def observe(self, now_s: float, connection: Connection, message: Any) -> None:
        """Called with each message when it is sent."""
        which, address = connection.original, connection.address
        if isinstance(message, pb.OpenRequest):
            self._opening[which] = (message.partition, message.session)
        elif isinstance(message, pb.OpenResponse) and which in self._opening:
            partition, session = self._opening[which]
            self._admitted[address, partition] = max(session, self._admitted.get((address, partition), -1))
        elif isinstance(message, ASKED):
            newest = self._admitted.get((address, message.partition), -1)
            if newest > message.session:
                self._asked[which] = f"{type(message).__name__} of session {message.session}, {newest} was told of: partition={message.partition}"
        elif isinstance(message, DONE) and which in self._asked:
            self._history.complaints.append(f"24: {address} did at {now_s:.3f} a {self._asked.pop(which)}")
