"""What an outbox tells about itself: a snapshot, and the file in its directory from which `waltz outbox status` reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Self

from waltz_log.statistics import Highest, Newest, Summed, from_json, snapshot, to_json

__all__ = ["STATISTICS_FILE", "OutboxStatistics"]

STATISTICS_FILE = "outbox.json"


@snapshot
@dataclass(frozen=True, slots=True)
class OutboxStatistics:
    """A snapshot. Counts that begin with the process say so."""

    at_ms: Highest[int]
    """When it was taken."""
    process_id: Newest[int]
    client_id: Newest[int | None]
    """What the log knows this outbox by; None: it has not met its cluster yet."""
    epoch: Highest[int]
    """Raised by every start and every connection."""
    connected: Newest[bool]
    depth: Summed[int]
    """Intents owed."""
    size_bytes: Summed[int]
    """What they and the dead letters take of `bytes_max`."""
    oldest_age_s: Highest[float]
    """Of the intent that waits longest; 0 where there is none."""
    in_doubt: Summed[int]
    """Sent, and the answer has not come."""
    dead: Summed[int]
    submitted: Summed[int]
    """Since the process started."""
    forwarded: Summed[int]
    """In the log, since the process started."""
    forward_rate: Summed[float]
    """In the log per second, over the last period between two writings of the file."""
    error: Newest[str]
    """What the last connection, or the journal, ended with; empty where all is well."""

    def encode(self) -> bytes:
        return json.dumps(to_json(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return from_json(cls, json.loads(data), unknown="ignore")
