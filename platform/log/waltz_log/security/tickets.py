"""Tickets: which principal a client id was given to, signed by the log server that gave it. Pure.

A ticket binds the cluster's key, the epoch of its coordinator, the client id and the principal with an HMAC-SHA-256. Its key is in the coordinator,
where only nodes and operators read it, so that every owner checks tickets of all servers without asking anyone. A ticket is no secret: it has no
value for a principal other than its own. It never expires, because an outbox keeps its client id for years.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from dataclasses import dataclass
from typing import Final, Self
from uuid import UUID

__all__ = ["KEY_BYTES", "TICKET_KEY", "TicketKey", "Tickets"]

TICKET_KEY: Final = "/ids/ticket_key"
"""Where the coordinator keeps the key."""

KEY_BYTES: Final = 32
MAC_BYTES: Final = 16
_TICKET: Final = re.compile(rf"([0-9a-f]{{1,16}})\.([0-9a-f]{{{2 * MAC_BYTES}}})")


@dataclass(frozen=True, slots=True)
class TicketKey:
    secret: bytes

    def __repr__(self) -> str:
        return "TicketKey()"  # the secret is left out

    def to_bytes(self) -> bytes:
        return json.dumps({"secret": self.secret.hex()}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """None: what is there is no key."""
        try:
            found = json.loads(data)
            secret = bytes.fromhex(found["secret"])
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return cls(secret) if len(secret) == KEY_BYTES else None


class Tickets:
    """The tickets of one cluster. `epoch`: that of its coordinator; tickets of earlier epochs stay good, as the ids do."""

    def __init__(self, cluster_key: UUID, epoch: int, key: TicketKey) -> None:
        self._cluster_key = cluster_key.bytes
        self._epoch = epoch
        self._secret = key.secret

    def sign(self, client_id: int, principal: str) -> str:
        """The ticket of that principal for the id."""
        return f"{self._epoch:x}.{self._mac(self._epoch, client_id, principal)}"

    def proves(self, ticket: str, client_id: int, principal: str) -> bool:
        """Whether the id was given to the principal."""
        found = _TICKET.fullmatch(ticket)
        if found is None or not 0 < client_id < 2**31:
            return False
        return hmac.compare_digest(found[2], self._mac(int(found[1], 16), client_id, principal))

    def _mac(self, epoch: int, client_id: int, principal: str) -> str:
        signed = b"waltz client id" + self._cluster_key + epoch.to_bytes(8, "big") + client_id.to_bytes(4, "big") + principal.encode()
        return hmac.new(self._secret, signed, hashlib.sha256).digest()[:MAC_BYTES].hex()
