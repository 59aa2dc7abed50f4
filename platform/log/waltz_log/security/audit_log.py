"""The audit log: each administrative action and each denial, as one JSON object a line.

Lines go to the logger `waltz.audit` of Python's logging. `open_audit` gives it a file that rotates; without one, a process logs them like its other
events. A line holds names and never a payload. One principal's denials are limited: the next line says how many were left out.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from pydantic import Field

from waltz_log.errors import InvalidSetting, NotAllowed, PermissionDenied
from waltz_log.loggers import get_logger
from waltz_log.settings import Settings

__all__ = ["AuditSettings", "DenialLimit", "acted", "denied", "open_audit"]

log = get_logger(__name__)

LOGGER: Final = logging.getLogger("waltz.audit")

WINDOW_S: Final = 10.0
DENIALS_MAX: Final = 20
"""Lines of one principal within a window: enough to see what it tries, and a bound for one that tries without pause."""
PRINCIPALS_MAX: Final = 1024
"""Principals whose denials are counted. The one that was denied longest ago is forgotten first."""


class AuditSettings(Settings):
    """A file for the audit log. A node of several workers writes one for each, with the worker's number at its end."""

    file: Path = Field(description="File that lines are appended to. Its folder must exist.")
    bytes_max: int = Field(
        default=64 * 1024 * 1024, ge=4096, description="The file is renamed to FILE.1 when it reaches this size, and older files move up."
    )
    files_max: int = Field(default=10, ge=1, le=1000, description="Renamed files to keep; the oldest is removed.")


class DenialLimit:
    """Which denials are written. `now_s`: seconds that only rise."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._windows: OrderedDict[str | None, list[float]] = OrderedDict()
        """By principal: when its window began, how many lines it has, how many were left out since."""

    def count(self, principal: str | None) -> int | None:
        """How many denials of the principal were left out before this one, which is written; None: leave this one out too."""
        now_s = self._now_s()
        window = self._windows.setdefault(principal, [now_s, 0, 0])
        self._windows.move_to_end(principal)
        while len(self._windows) > PRINCIPALS_MAX:
            self._windows.popitem(last=False)
        if now_s - window[0] >= WINDOW_S:
            window[0], window[1] = now_s, 0
        if window[1] >= DENIALS_MAX:
            window[2] += 1
            return None
        window[1] += 1
        left_out, window[2] = int(window[2]), 0
        return left_out


_limit = DenialLimit()


def denied(error: NotAllowed, *, verified: bool = True) -> None:
    """Records that a peer was refused, by the rules of access or by the properties of a topic. `verified` False: nothing proves the principal, as
    without TLS. Such denials share one limit, because a client may state many names."""
    principal, stated_by = (error.principal, None) if verified else (None, error.principal)
    left_out = _limit.count(principal)
    if left_out is None:
        return
    if isinstance(error, PermissionDenied):
        operation, resource, roles = error.operation, error.resource, error.roles
    else:
        operation, resource, roles = error.action, error.topic, ""
    if _open_files():
        facts = {"operation": operation, "resource": resource, "roles": roles, "stated_by": stated_by, "left_out": left_out}
        _write("request denied", {"principal": principal, **{name: value for name, value in facts.items() if value}})
    else:
        log.warning(
            "request denied", principal=principal, operation=operation, resource=resource, roles=roles, stated_by=stated_by, left_out=left_out
        )


def acted(event: str, **facts: str | int | None) -> None:
    """Records that the cluster was administered: what changed, and who did it if that is known."""
    if _open_files():
        _write(event, facts)
    else:
        log.info("cluster administered", action=event, facts=" ".join(f"{name}={value}" for name, value in facts.items() if value is not None))


def _write(event: str, facts: Mapping[str, str | int | None]) -> None:
    LOGGER.info(json.dumps({"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}))


class _Lines(RotatingFileHandler):
    """A line that cannot be written, as on a full disk, is reported and does not end the call that it is about."""

    def handleError(self, record: logging.LogRecord) -> None:
        log.exception("audit line not written", file=self.baseFilename, line=record.getMessage())


def _open_files() -> list[_Lines]:
    return [each for each in LOGGER.handlers if isinstance(each, _Lines)]


def open_audit(settings: AuditSettings | None, worker: int | None = None) -> None:
    """Opens the file of this process, and closes an earlier one. Raises `InvalidSetting` if it cannot be opened."""
    for handler in _open_files():
        LOGGER.removeHandler(handler)
        with suppress(OSError):  # its lines were reported when they were not written
            handler.close()
    if settings is None:
        return
    path = settings.file if worker is None else settings.file.with_name(f"{settings.file.name}-{worker}")
    try:
        lines = _Lines(path, maxBytes=settings.bytes_max, backupCount=settings.files_max, encoding="utf-8")
    except OSError as error:
        raise InvalidSetting(name="audit.file", reason=f"{path} cannot be written: {error.strerror}", nearest=None) from None
    lines.setFormatter(logging.Formatter("%(message)s"))
    LOGGER.addHandler(lines)
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
