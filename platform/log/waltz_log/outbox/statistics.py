"""The statistics of an outbox: a snapshot, and the file in its directory from which `waltz outbox status` reads it."""

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
    """The time of the snapshot."""
    process_id: Newest[int]
    client_id: Newest[int | None]
    """The client id of this outbox in the log; None before the first connection to the cluster."""
    epoch: Highest[int]
    """Raised by every start and every connection."""
    connected: Newest[bool]
    depth: Summed[int]
    """Intents owed."""
    size_bytes: Summed[int]
    """How much of `bytes_max` the intents and the dead letters use."""
    oldest_age_s: Highest[float]
    """The age of the oldest intent; 0 if there is none."""
    in_doubt: Summed[int]
    """Sent, without a response yet."""
    dead: Summed[int]
    submitted: Summed[int]
    """Since the process started."""
    forwarded: Summed[int]
    """In the log, since the process started."""
    forward_rate: Summed[float]
    """In the log per second, over the last period between two writings of the file."""
    error: Newest[str]
    """The error that ended the last connection, or the journal's; empty if there is none."""
    connections: Summed[int] = 0
    """Connections to the cluster that were opened since the process started."""

    def encode(self) -> bytes:
        """The snapshot as JSON, as the file in the outbox's directory has it."""
        return json.dumps(to_json(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Reads what `encode` returned. Fields that this version does not know are ignored."""
        return from_json(cls, json.loads(data), unknown="ignore")
