"""When the certificate of the coordinator expires, for the statistics of a log server: ZooKeeper reports no metrics of its own.

The server makes a handshake with each host of the coordinator, at most once in a period and only while statistics are asked for. A host that does not
answer leaves what was known of it, so an alert stays until a renewed certificate was seen.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final

from waltz_log.background_tasks import end_tasks, start_task
from waltz_log.core.cluster_address import parse_coordinator
from waltz_log.loggers import get_logger
from waltz_log.security.certificates import Certificates
from waltz_log.security.settings import TlsSettings, chosen_tls

__all__ = ["PERIOD_S", "CoordinatorCertificate"]

log = get_logger(__name__)

PERIOD_S: Final = 30.0
HANDSHAKE_TIMEOUT_S: Final = 5.0


class CoordinatorCertificate:
    """The certificate of the coordinator at an address, as a process with these settings sees it; nothing without TLS. `close` ends its task."""

    def __init__(self, address: str, tls: TlsSettings | None, now_s: Callable[[], float] = time.monotonic) -> None:
        chosen = chosen_tls(tls)
        self._certificates = None if chosen is None else Certificates(chosen)
        self._hosts = parse_coordinator(address)[0].split(",")
        self._now_s = now_s
        self._expires_s: dict[str, float] = {}
        """By host."""
        self._read_s = -PERIOD_S
        self._reading: asyncio.Task[None] | None = None

    def expires_s(self) -> float | None:
        """The first expiry among the hosts, seconds since 1970, as far as it is known by now. Call it on the event loop."""
        if self._certificates is None:
            return None
        if self._now_s() - self._read_s >= PERIOD_S and (self._reading is None or self._reading.done()):
            self._read_s = self._now_s()
            self._reading = start_task(self._read(self._certificates))
        return min(self._expires_s.values(), default=None)

    async def _read(self, certificates: Certificates) -> None:
        for host in self._hosts:
            try:
                self._expires_s[host] = await asyncio.to_thread(_expiry_of, host, certificates)
            except OSError as error:
                log.info("certificate of the coordinator not seen", host=host, reason=str(error))

    async def close(self) -> None:
        if self._reading is not None:
            await end_tasks([self._reading])


def _expiry_of(address: str, certificates: Certificates) -> float:
    """Seconds since 1970. Blocks. Raises `OSError`, also for a certificate that is not trusted or has expired."""
    host, _, port = address.rpartition(":")
    context = certificates.client_context()
    with (
        socket.create_connection((host, int(port)), HANDSHAKE_TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        found = connection.getpeercert()
    if not found:
        raise OSError("no certificate was presented")
    return float(ssl.cert_time_to_seconds(str(found["notAfter"])))
