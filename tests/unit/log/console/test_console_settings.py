"""Where the console may listen."""

from __future__ import annotations

import pytest

from waltz_log.console.settings import ConsoleSettings
from waltz_log.errors import InvalidSetting


@pytest.mark.parametrize("listen", ["127.0.0.1:7080", "localhost:0", "[::1]:80", "127.1.2.3:65535"])
def test_the_loopback_is_accepted(listen: str) -> None:
    host, port = ConsoleSettings(cluster="a:1/b", listen=listen).address
    assert ":" not in host or host == "::1"
    assert 0 <= port <= 65535


@pytest.mark.parametrize("listen", ["0.0.0.0:7080", "[::]:80", "10.0.0.1:80", "example.com:80", "127.0.0.1", "127.0.0.1:x", ":80", "127.0.0.1:70000"])
def test_other_addresses_are_refused_with_a_reason(listen: str) -> None:
    with pytest.raises(InvalidSetting) as error:
        ConsoleSettings(cluster="a:1/b", listen=listen)
    assert error.value.name == "listen"
    assert "loopback" in error.value.reason or "host:port" in error.value.reason
