"""Which protocol version two peers speak with each other: the highest that both speak (Client-Server Communication).

The client says in its mount the highest version it speaks and the lowest it accepts, the server answers with the one they use. A version stays
spoken for as long as clients of it are about: servers are upgraded first, clients in their own time. A client that names no
lowest version speaks only the highest.
"""

from __future__ import annotations

from typing import NamedTuple

from waltz_log.errors import ProtocolViolation

__all__ = ["SPOKEN", "Versions", "agreed", "expect_spoken"]


class Versions(NamedTuple):
    """Both inclusive."""

    lowest: int
    highest: int

    def __str__(self) -> str:
        return f"version {self.highest}" if self.lowest == self.highest else f"versions {self.lowest} to {self.highest}"

    @classmethod
    def named(cls, *, highest: int, lowest: int) -> Versions:
        """As a mount request names them; `lowest` 0: only the highest."""
        return cls(min(lowest or highest, highest), highest)


SPOKEN = Versions(lowest=2, highest=2)
"""By this code, as a server and as a client. A change that an older peer would misread raises the highest; dropping the old way raises the lowest."""


def agreed(client: Versions, server: Versions) -> int:
    """Raises `ProtocolViolation`, naming both, where they have none in common."""
    version = min(client.highest, server.highest)
    if version < max(client.lowest, server.lowest):
        raise ProtocolViolation(reason=f"no protocol version in common: the client speaks {client}, this server {server}")
    return version


def expect_spoken(version: int, client: Versions, address: str) -> None:
    """What a server answered, judged by the client. Raises `ProtocolViolation` if the client does not speak it."""
    if not client.lowest <= version <= client.highest:
        raise ProtocolViolation(reason=f"the server chose protocol version {version}, this client speaks {client}: address={address}")
