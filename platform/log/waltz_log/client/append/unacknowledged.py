"""The appends of a client that have no outcome yet, for instance to save them before a process gives up. Decides nothing."""

from __future__ import annotations

from typing import NamedTuple

from waltz_log.client.append.producer import Producer

__all__ = ["Unacknowledged", "unacknowledged"]


class Unacknowledged(NamedTuple):
    """An append without an outcome. `sequence` None: it was not sent, and will not be in the log if the process ends now. Else (client_id, sequence)
    names it for ever, and a search of the log above `since` tells what became of it."""

    partition: int
    header: int
    data: bytes
    client_id: int
    sequence: int | None
    since: int


def unacknowledged(producer: Producer) -> list[Unacknowledged]:
    """In the order of appending. An append whose outcome was reported as unknown is not among them."""
    window, partition, client_id = producer.window, producer.partition, producer.client_id
    sent = [Unacknowledged(partition, append.header, append.data, client_id, sequence, since) for sequence, since, append in window.undecided_sent()]
    queued = [Unacknowledged(partition, append.header, append.data, client_id, None, window.known_mark) for append in window.undecided_unsent()]
    return sent + queued
