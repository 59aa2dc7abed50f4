"""The expiry of the coordinator's certificate: seen by a handshake, kept while nothing answers, and renewed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from waltz_log.processes.coordinator_certificate import PERIOD_S, CoordinatorCertificate
from waltz_log.security.authority import DevelopmentAuthority
from waltz_log.security.certificates import Certificates


async def test_the_first_expiry_among_hosts_appears_stays_while_none_answers_and_rises_with_a_renewal(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path)
    served, later = authority.issue("zookeeper", "main", days=3), authority.issue("node", "other", days=90)
    servers = [await _serve(Certificates(each)) for each in (served, later)]
    hosts = ",".join(f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers)
    now_s = 0.0
    seen = CoordinatorCertificate(f"{hosts}/waltz", authority.issue("node", "a"), lambda: now_s)

    async def expiry() -> float | None:
        nonlocal now_s
        now_s += PERIOD_S
        seen.expires_s()
        assert seen._reading is not None
        await seen._reading
        return seen.expires_s()

    assert seen.expires_s() is None
    assert await expiry() == Certificates(served).current().expires_s
    authority.issue("zookeeper", "main", days=60)
    await asyncio.sleep(0.6)  # files are read again after half a second
    assert await expiry() == Certificates(served).current().expires_s
    for server in servers:
        server.close()
        await server.wait_closed()
    assert await expiry() == Certificates(served).current().expires_s
    await seen.close()


def test_without_tls_nothing_is_asked() -> None:
    assert CoordinatorCertificate("127.0.0.1:1/waltz", None).expires_s() is None


async def _serve(certificates: Certificates) -> asyncio.Server:
    async def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    return await asyncio.start_server(accept, "127.0.0.1", 0, ssl=certificates.server_context())
