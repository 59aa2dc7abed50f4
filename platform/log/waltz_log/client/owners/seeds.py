"""Where to find the cluster at first, and again when everything that was learned since fails: the log servers that the application named.

A name is resolved at each attempt and may have many addresses, as that of a headless service; each is tried. One good name is enough. Resolved
addresses keep the name that was given, which a certificate must have.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final, Protocol

from waltz_log.core.cluster_address import SERVERS_EXAMPLE, HostPort, parse_servers
from waltz_log.errors import ClusterUnavailable, InvalidSetting, WaltzError
from waltz_log.transport.given_name import ResolvedAddress

__all__ = ["NamedServers", "Seeds"]

RESOLVE_S: Final = 2.0
"""For the lookup of all names. What has not answered by then is left out of this attempt."""

ADDRESSES_MAX: Final = 256
"""For all names together."""

PROBE_S: Final = 1.0
PROBE: Final = b"srvr"
ANSWERS_OF_ZOOKEEPER: Final = (b"Zookeeper version", b"whitelist", b"not currently serving requests")


class Seeds(Protocol):
    """The addresses that an application knows before it reached the cluster."""

    @property
    def text(self) -> str:
        """As the application wrote it, for messages."""
        ...

    async def resolve(self) -> Sequence[str]:
        """The addresses there are now. Raises `ClusterUnavailable` if there are none."""
        ...

    async def diagnose(self) -> WaltzError | None:
        """What is certainly wrong with the addresses, where no server answered; None: nothing is known to be."""
        ...


class NamedServers:
    """Log servers as `host:port[,host:port]`. Raises `InvalidSetting`."""

    def __init__(self, cluster: str) -> None:
        self.text = cluster
        self._servers = parse_servers(cluster)

    async def resolve(self) -> Sequence[str]:
        found: dict[str, None] = {}
        answers = await asyncio.gather(*map(self._addresses, self._servers), return_exceptions=True)
        failed: list[str] = []
        for server, answer in zip(self._servers, answers, strict=True):
            if isinstance(answer, BaseException):
                if not isinstance(answer, OSError | TimeoutError | UnicodeError):
                    raise answer
                failed.append(f"{server.host}: {answer or 'no answer of DNS'}")
            else:
                found |= dict.fromkeys(answer)
        if not found:
            raise ClusterUnavailable(address=self.text, reason=f"no name resolves: {'; '.join(failed)}")
        return list(found)[:ADDRESSES_MAX]

    async def _addresses(self, server: HostPort) -> list[str]:
        async with asyncio.timeout(RESOLVE_S):
            rows = await asyncio.get_running_loop().getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM)
        return [ResolvedAddress(str(HostPort(str(where[0]), server.port)), server.host) for *_, where in rows]

    async def diagnose(self) -> WaltzError | None:
        for address in await self.resolve():
            if await _is_zookeeper(address):
                reason = f"is the address of ZooKeeper, {address}: clients need log servers, {SERVERS_EXAMPLE}"
                return InvalidSetting(name="cluster", reason=reason, nearest=None)
        return None


async def _is_zookeeper(address: str) -> bool:
    """ZooKeeper answers four letters in plain text, whether or not it permits the command."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            try:
                writer.write(PROBE)
                answer = await reader.read(256)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return any(each in answer for each in ANSWERS_OF_ZOOKEEPER)
