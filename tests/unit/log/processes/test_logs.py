"""Log lines of a process: a stream that cannot be written costs the line, never what the line is about."""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import structlog

from verification.log_settings import kept_log_settings
from waltz_log.loggers import VALUE_BYTES_MAX, get_logger
from waltz_log.processes.logs import configure_logs

FULL = Path("/dev/full")


@pytest.fixture(autouse=True)
def configured() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with kept_log_settings():
        configure_logs("info")
        yield
    root.handlers[:], root.level = handlers, level


@pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")
def test_a_line_that_a_full_disk_does_not_hold_is_lost_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    log, of_a_library = get_logger("waltz_log.test"), logging.getLogger("library")
    full = FULL.open("w", buffering=1)
    try:
        with pytest.raises(OSError, match="No space left"):
            print("the disk is full", file=full, flush=True)
        monkeypatch.setattr(sys, "stderr", full)
        for _ in range(3):
            log.warning("replica failed", error="x" * 10_000)
            of_a_library.warning("a line of a library")
    finally:
        with suppress(OSError):
            full.close()
    again = io.StringIO()
    monkeypatch.setattr(sys, "stderr", again)
    log.warning("replica failed")
    of_a_library.warning("a line of a library")
    assert [line.partition(" level=")[2] for line in again.getvalue().splitlines()] == [
        'warning event="replica failed"',
        'warning event="a line of a library"',
    ]


HOSTILE = {
    "escape": "\x1b",
    "color": "\x1b[31mred",
    "clear": "\x1b[2J",
    "title": "\x1b]0;title\x07",
    "single-byte control sequence": "\x9b2J",
    "direction override": "\u202egnp.exe",
    "isolate": "\u2066x",
    "line end": "x\nlevel=error event=forged",
    "return": "x\rlevel=error",
    "separator": "x\u2028level=error",
    "null": "\x00",
    "half a pair": "\ud800",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("configure", [True, False], ids=["configured", "unconfigured"])
def test_a_text_from_outside_is_printable_in_a_line(text: str, configure: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the library, whether the application configured structlog or not; in a trace, and of other libraries, in processes."""
    with kept_log_settings():
        if configure:
            configure_logs("info")
        else:
            structlog.reset_defaults()
        get_logger("waltz_log.test").warning("request denied", resource=text, number=1)
        if configure:
            try:
                raise ValueError(text)
            except ValueError:
                get_logger("waltz_log.test").exception("call failed")
            logging.getLogger("library").warning("odd %s", text)
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).splitlines()
    assert len(lines) == (3 if configure else 1)
    own_escapes = re.compile(r"\x1b\[[0-9;]*m")  # structlog's own colors
    assert all((line if configure else own_escapes.sub("", line.split("resource")[0])).isprintable() for line in lines)
    assert text not in lines[0]


def test_a_long_value_is_cut_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger("waltz_log.test").warning("request denied", resource="\x00" * 1_000_000)
    logging.getLogger("library").warning("odd %s", "\u00e9" * 1_000_000)
    assert all(len(line.encode()) < 3 * VALUE_BYTES_MAX for line in capsys.readouterr().err.splitlines())
