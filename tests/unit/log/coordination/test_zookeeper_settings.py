"""The settings of a ZooKeeper whose directory has letters that Java's files of properties do not hold as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from waltz_log.coordination import embedded
from waltz_log.coordination.embedded import property_value


def java_reads(text: bytes) -> str:
    """As `java.util.Properties`: Latin-1, and escapes."""
    return text.decode("latin-1").encode("latin-1").decode("unicode_escape").encode("utf-16", "surrogatepass").decode("utf-16")


@pytest.mark.parametrize("path", ["/tmp/dev", "/home/ada/Büro für Plätze", "/日本/😀", "/a b\\c/=:#!", " /leading"])
def test_java_reads_the_path_that_was_written(path: str) -> None:
    written = property_value(path)
    assert written.isascii()
    assert not written.startswith(" ")
    assert java_reads(written.encode()) == path


def test_the_directory_of_the_data_is_escaped_and_java_gets_a_locale_with_utf8(tmp_path: Path) -> None:
    directory = tmp_path / "Plätze"
    command = embedded.prepare(directory, 2181)
    (line,) = [line for line in (directory / "zoo.cfg").read_bytes().splitlines() if line.startswith(b"dataDir=")]
    assert java_reads(line.removeprefix(b"dataDir=")) == str(directory.resolve() / "data")
    assert command[0] == "/usr/bin/env"
    assert any(part.startswith("LC_ALL=") for part in command[: command.index("-cp")])


def test_a_directory_that_java_could_not_open_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "utf8_locale", lambda environment: None)
    with pytest.raises(OSError, match="no locale with UTF-8"):
        embedded.prepare(tmp_path / "Plätze", 2181)
    assert embedded.prepare(tmp_path / "seats", 2181)
