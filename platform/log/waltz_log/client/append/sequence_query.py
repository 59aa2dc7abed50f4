"""Asks the owner which of a client's sequences are in the log, in as many requests as necessary.

The log above `since` can be longer than an owner reads before a call's deadline. So each request says how long the owner may search, and the next
one starts where that search ended; a failed request loses only its own work. A range that was searched stays searched after a change of owner,
because committed transactions never change. This module never decides that something is not in the log: the last answer says whether it is final.
"""

from __future__ import annotations

from waltz_log.client.owners.mounting import ranges
from waltz_log.errors import ProtocolViolation
from waltz_log.transport import waltz_pb2 as pb

__all__ = ["SequenceQuery"]

SEARCH_SHARE = 0.5
"""The share of a call's deadline in which the owner may search. The rest is for the round trip, and for the owner to decide earlier appends."""


class SequenceQuery:
    """`committed` (first sequence, count, first transaction id) grows with each answer; `since` is the id up to which the log was searched."""

    def __init__(self, partition: int, client_id: int, first_sequence: int, last_sequence: int, since: int, cluster_key: bytes, ticket: str) -> None:
        self.committed: list[tuple[int, ...]] = []
        self.final = False
        """The search is complete, and a sequence that is not in `committed` never will be in the log."""
        self._trimmed = False
        self._request = pb.ResolveRequest(
            partition=partition,
            client_id=client_id,
            first_sequence=first_sequence,
            last_sequence=last_sequence,
            since=since,
            cluster_key=cluster_key,
            ticket=ticket,
        )

    @property
    def contiguous(self) -> bool:
        """Whether no part of the searched log was trimmed."""
        return not self._trimmed

    @property
    def since(self) -> int:
        return self._request.since

    def question(self, timeout_s: float) -> pb.ResolveRequest:
        """The request for a call with this deadline."""
        question = pb.ResolveRequest()
        question.CopyFrom(self._request)
        question.search_ms = max(1, int(1000 * SEARCH_SHARE * timeout_s))
        return question

    def add_answer(self, answer: pb.ResolveResponse) -> bool:
        """Returns True if the search has reached the end of the log; otherwise send the next `question`. Raises `ProtocolViolation`."""
        self.committed.extend(ranges(answer.committed, 3))
        self._trimmed = self._trimmed or answer.trimmed
        if answer.more:
            if answer.searched_to <= self.since:
                raise ProtocolViolation(reason=f"a search made no progress: since={self.since} searched_to={answer.searched_to}")
            self._request.since = answer.searched_to
            return False
        self.final = answer.final and not self._trimmed
        return True
