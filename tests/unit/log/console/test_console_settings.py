"""Where the console may listen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from waltz_log.console.serving import run
from waltz_log.console.settings import ConsoleSettings
from waltz_log.errors import InvalidSetting
from waltz_log.security.authority import DevelopmentAuthority


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
    assert ("loopback" in error.value.reason and "set `tls`" in error.value.reason) or "host:port" in error.value.reason


@pytest.mark.parametrize("listen", ["0.0.0.0:7080", "[::]:80", "10.0.0.1:80", "example.com:80"])
def test_every_address_is_accepted_with_tls(tmp_path: Path, listen: str) -> None:
    file = tmp_path / "console.yaml"
    file.write_text(f"cluster: a:1/b\nlisten: '{listen}'\ntls: {{certificate: a.pem, key: a.key, authorities: b.pem}}\n")
    settings = ConsoleSettings.load(file, prefix="WALTZ_CONSOLE", environment={})
    assert settings.listen == listen
    assert settings.tls is not None


@pytest.mark.parametrize("name", ["certificate", "key", "authorities"])
def test_a_file_that_is_missing_is_named_before_the_console_listens(tmp_path: Path, name: str) -> None:
    tls = DevelopmentAuthority(tmp_path / "ours").issue("operator", "console", serve=True)
    missing = tls.model_copy(update={name: tmp_path / "missing"})
    with pytest.raises(InvalidSetting, match=rf"tls.{name}: {tmp_path}/missing cannot be read: No such file or directory"):
        run(ConsoleSettings(cluster="a:1/b", listen="127.0.0.1:0", tls=missing))


def test_a_key_of_another_certificate_and_one_from_tomorrow_are_refused_at_start(tmp_path: Path) -> None:
    authority = DevelopmentAuthority(tmp_path / "ours")
    tls, other = authority.issue("operator", "console", serve=True), authority.issue("operator", "other")
    with pytest.raises(InvalidSetting, match=rf"{other.key} is not the key of {tls.certificate}: name the two files that were made together"):
        run(ConsoleSettings(cluster="a:1/b", listen="127.0.0.1:0", tls=tls.model_copy(update={"key": other.key})))
    early = DevelopmentAuthority(tmp_path / "ours", now=datetime.now(UTC) + timedelta(days=1)).issue("operator", "early")
    with pytest.raises(InvalidSetting, match=rf"{early.certificate} is valid from .* which this machine's clock has not reached: correct the clock"):
        run(ConsoleSettings(cluster="a:1/b", listen="127.0.0.1:0", tls=early))
