"""What an outbox tells about itself: a snapshot, and the file in its directory from which `waltz outbox status` reads it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

__all__ = ["STATISTICS_FILE", "OutboxStatistics"]

STATISTICS_FILE = "outbox.json"


@dataclass(frozen=True, slots=True)
class OutboxStatistics:
    """A snapshot. Counts that begin with the process say so."""

    at_ms: int
    """When it was taken."""
    process_id: int
    client_id: int | None
    """What the log knows this outbox by; None: it has not met its cluster yet."""
    epoch: int
    """Raised by every start and every connection."""
    connected: bool
    depth: int
    """Intents owed."""
    size_bytes: int
    """What they and the dead letters take of `bytes_max`."""
    oldest_age_s: float
    """Of the intent that waits longest; 0 where there is none."""
    in_doubt: int
    """Sent, and the answer has not come."""
    dead: int
    submitted: int
    """Since the process started."""
    forwarded: int
    """In the log, since the process started."""
    forward_rate: float
    """In the log per second, over the last period between two writings of the file."""
    error: str
    """What the last connection, or the journal, ended with; empty where all is well."""

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(**json.loads(data))
