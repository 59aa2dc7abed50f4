"""What a client was given and has not told the outcome of: to be looked at, for instance before a process gives up. Decides nothing."""

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
    """In the order of appending. Those that were told to be unknown are told, and not here."""
    window, partition, client_id = producer.window, producer.partition, producer.client_id
    sent = [
        Unacknowledged(partition, item[2], item[1], client_id, sequence, frame.since)
        for frame in window.frames
        for sequence, item in enumerate(frame.items, frame.first_sequence)
        if item is not None and not item[0].done()
    ]
    queued = [Unacknowledged(partition, item[2], item[1], client_id, None, window.known_mark) for item in window.queue if not item[0].done()]
    return sent + queued
