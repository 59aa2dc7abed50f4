"""The evidence of a run about one topic that is constantly trimmed and compacted. `kept.py` collects it and `kept_checkers.py` judges it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from verification.simulation.kept_mix import KeptTopic
from waltz_log.client import Transaction
from waltz_log.core.formats.wal_records import WalRecord

__all__ = ["KeptEvidence", "ViewSeen"]


@dataclass(frozen=True, slots=True)
class ViewSeen:
    """`holders`: the number of replicas that had acknowledged everything up to the view's bound when it was read."""

    at_s: float
    storage: str
    bound: int
    records: Sequence[WalRecord]
    holders: int


@dataclass
class KeptEvidence:
    """`log`: every transaction as the subscriber read it, from 0 on. `appended`: the data of each attempt, by number."""

    partition: int
    topic: KeptTopic
    log: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    transactions: dict[int, Transaction] = field(default_factory=dict)
    """The same, with who appended each."""
    appended: dict[int, bytes] = field(default_factory=dict)
    views: list[ViewSeen] = field(default_factory=list)
    first: int = 0
    mark: int = -1
    stored: dict[str, bytes | str] = field(default_factory=dict)
    """What each replica serves from the first retained id on."""
    firsts: dict[str, int] = field(default_factory=dict)
    majority: int = 1
    complaints: list[str] = field(default_factory=list)
