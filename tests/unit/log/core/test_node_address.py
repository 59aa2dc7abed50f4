"""What a node may announce as its address."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from waltz_log.core.node_address import unreachable_reason
from waltz_log.errors import InvalidSetting
from waltz_log.server import ServerSettings
from waltz_log.storage import StorageSettings


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        *((host, "is a wildcard") for host in ("", "0.0.0.0", "[::]", "::", "0", "00.0x0", "0x0", "0.0", "[::ffff:0.0.0.0]", "[0:0::0]", "[::%1]")),
        *((host, "is a link-local address") for host in ("[fe80::1]", "[fe80::1%eth0]", "[febf::]", "169.254.1.2", "[::ffff:169.254.1.2]")),
        *((host, "is a multicast address") for host in ("224.0.0.1", "[ff02::1]")),
        *((host, None) for host in ("127.0.0.1", "[::1]", "10.0.0.1", "log1", "0.example.com", "00a", "waltz-0.waltz.prod.svc.cluster.local")),
    ],
)
def test_no_node_announces_what_other_machines_cannot_reach(host: str, reason: str | None) -> None:
    assert unreachable_reason(f"{host}:5101") == reason
    for make in (
        lambda: ServerSettings(coordinator="h:1/w", listen=f"{host}:0"),
        lambda: StorageSettings(coordinator="h:1/w", name="a", directory=Path("d"), listen=f"{host}:0"),
    ):
        if reason is None:
            make()
        else:
            with pytest.raises(InvalidSetting, match=f"^listen {reason}, at which no other machine reaches the node: name a host or an address"):
                make()


@pytest.mark.parametrize("host", ["0", "00", "0x0", "0.0", "0.0.0", "0x0.0.00.0"])
def test_what_the_resolver_accepts_as_the_wildcard_is_known(host: str) -> None:
    assert socket.inet_aton(host) == bytes(4)
    assert unreachable_reason(f"{host}:1") == "is a wildcard"
