"""Calls that no node served: no owner, no connection, no room, or a peer that does not speak the protocol."""

from __future__ import annotations

from waltz_log.errors.base import WaltzError
from waltz_log.exit_codes import REFUSED, UNAVAILABLE

__all__ = ["ClusterUnavailable", "ConnectionLost", "NotOwner", "OutboxFull", "ProtocolViolation", "Unavailable"]


class Unavailable(WaltzError):
    """No node could serve the call in time.

    To do: retry later."""

    text = "unavailable"
    retriable = True
    exit_code = UNAVAILABLE
    reason: str


class ClusterUnavailable(Unavailable):
    """No log server answers at the address, or, of nodes and operators' commands, no ZooKeeper; or there is no cluster.

    To do: check the address; retry later."""

    text = "cluster unavailable"
    address: str
    reason: str


class ConnectionLost(Unavailable):
    """One connection could not be made, or it ended.

    To do: retry, with this node or with another one. For an append, resolve its outcome first."""

    text = "connection lost"
    outcome = "unknown"
    address: str
    reason: str


class NotOwner(Unavailable):
    """This server does not own the partition, or not yet.

    To do: find the new owner."""

    text = "not the owner"
    partition: int
    reason: str


class OutboxFull(Unavailable):
    """The outbox holds as many bytes as its settings allow, or would wait longer than they allow. It accepted nothing.

    To do: retry later, or report it to the caller."""

    text = "outbox full"
    bytes: int
    reason: str


class ProtocolViolation(WaltzError):
    """The peer sent what the protocol does not allow. The connection ends.

    To do: upgrade or fix the peer."""

    text = "protocol violation"
    exit_code = REFUSED
    reason: str
