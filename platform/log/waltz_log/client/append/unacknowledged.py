"""The appends of a client that have no outcome yet, for example to save them before the process ends. Changes nothing."""

from __future__ import annotations

from itertools import repeat
from typing import NamedTuple

from waltz_log.client.append.pending_append import PendingAppend
from waltz_log.client.append.producer import Producer
from waltz_log.client.append.unsent import Unsent
from waltz_log.core.locks.lock_columns import TURN_MARK

__all__ = ["Unacknowledged", "unacknowledged"]


class Unacknowledged(NamedTuple):
    """An append without an outcome. If `sequence` is None, it was not sent, and never will be in the log if the process ends now. Otherwise
    `client_id` and `sequence` identify it permanently, and a search of the log above the id `since` finds its outcome."""

    partition: int
    header: int
    data: bytes
    client_id: int
    sequence: int | None
    since: int


def unacknowledged(producer: Producer) -> list[Unacknowledged]:
    """In the order of appending. An append whose outcome was reported as unknown is not among them."""
    window, partition, client_id = producer.window, producer.partition, producer.client_id
    found: list[Unacknowledged] = []
    for sequence, since, unsent in window.undecided_sent():
        found += [Unacknowledged(partition, *each, client_id, sequence + at, since) for at, each in enumerate(_contents(unsent))]
    for unsent in window.undecided_unsent():
        found += [Unacknowledged(partition, *each, client_id, None, window.known_mark) for each in _contents(unsent)]
    return found


def _contents(unsent: Unsent) -> list[tuple[int, bytes]]:
    """Header and data of each transaction. A request for a turn is not an append."""
    if isinstance(unsent, PendingAppend):
        return [] if unsent.mark == TURN_MARK else [(unsent.header, unsent.data)]
    rows, start, stop = unsent.pending.rows, unsent.start, unsent.stop
    headers = rows.headers(start, stop)
    each = repeat(headers, stop - start) if isinstance(headers, int) else headers
    return [(header, bytes(data)) for header, data in zip(each, rows.bodies(start, stop), strict=True)]
