"""Log lines of a process: a stream that cannot be written costs the line, never what the line is about."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from verification.log_settings import kept_log_settings
from waltz_log.loggers import get_logger
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
