"""Sides that do not belong together any more, or never did: older sessions, other clusters, a restored coordinator."""

from __future__ import annotations

from dataclasses import field
from hmac import compare_digest

from waltz_log.errors.base import WaltzError
from waltz_log.exit_codes import REFUSED

__all__ = ["ClusterKeyMismatch", "CoordinatorBehind", "Fenced", "OutboxFenced", "ReplicaFenced", "SessionTooOld"]


class Fenced(WaltzError):
    """A newer session, generation or mount replaced this one. `what` says which of them; `mine` and `newer` are their numbers.

    To do: stop writing. Open again if this process should still write."""

    text = "fenced: a newer one is active"
    prose = "what"
    outcome = "unknown"
    exit_code = REFUSED
    what: str
    partition: int
    mine: int
    newer: int


class ReplicaFenced(Fenced):
    """A replica refuses the store session, because it has seen session `newer`, or the same session from another owner. `clean_session` is the newest
    session in which the replica was made clean.

    To do: stop writing. The partition's owner opens a new session if it is still the owner."""

    clean_session: int


class OutboxFenced(Fenced):
    """Another copy of this outbox's directory forwards now. This one forwards nothing more. What it still holds stays
    in its directory, and `waltz journal export` prints it; no command moves it to another outbox.

    To do: find the other copy, and keep only one."""

    text = "outbox fenced by a newer epoch"
    prose = "reason"
    client_id: int
    mine: int
    newer: int
    reason: str
    what: str = field(init=False, default="outbox")
    partition: int = field(init=False, default=-1)


class CoordinatorBehind(WaltzError):
    """A replica has been in a store session that the coordinator's metadata does not know: the coordinator was restored to an older state. Nothing
    was truncated or appended, and the partition stays closed. `recorded`: the session that the metadata knew before the owner's own; `found`: the
    replica's. The owner's own session can have the number that was found, because the restored metadata counted from an older one.

    To do: an operator adopts what the replicas hold (docs/guides/operations.md, A restored coordinator)."""

    text = "the coordinator is older than the replicas"
    advice = "stop the cluster's nodes and run `waltz cluster adopt --restored`"
    exit_code = REFUSED
    partition: int
    replica: str | None
    recorded: int
    found: int


class SessionTooOld(WaltzError):
    """This replica was last made clean in an older session than the reader asked for, so its tail may not be committed. It is not read.

    To do: read from another replica."""

    text = "replica of an older session, whose tail may not be committed: it is not read; read from another one"
    retriable = True
    exit_code = REFUSED
    partition: int
    asked: int
    session: int


class ClusterKeyMismatch(WaltzError):
    """The two sides belong to different clusters. `where`: the address, directory, table or request that belongs to another one. No message
    to a caller has a key that the caller lacks. An error about a table names the key that is in its log.

    To do: check addresses and directories."""

    text = "cluster key mismatch: the two sides belong to different clusters, so check the address and the directory"
    exit_code = REFUSED
    where: str

    @classmethod
    def expect(cls, own: bytes, given: bytes, where: str = "the request") -> None:
        """Raises the error if a caller gave another key than the own one. Its time does not depend on how much of the key is right."""
        if not compare_digest(own, given):
            raise cls(where=where)
